"""Deleting from a log's start: segments past retention, and records below DeleteRecords' offset.

A power loss may come between any two steps, hence their order: first the log start offset, saved,
then the files, from the start forwards, so that the rest has no hole. `retention.py` decides.
"""

from __future__ import annotations

import logging
from collections.abc import Container, Sequence

from kdist.errors import DiskFull
from kdist.runtime.files import Files
from kdist.storage.log import Log
from kdist.storage.names import snapshot_offset
from kdist.storage.retention import RetentionLimits, SegmentFacts, plan_retention
from kdist.storage.segment import Segment

logger = logging.getLogger(__name__)


def release(log: Log, high_watermark: int, now_ms: int) -> list[Segment]:
    """Advance the log start offset past the segments due for deletion, and return those.

    The caller saves the start offsets of all logs at once, then calls `drop`: a power loss in
    between leaves segments that nobody reads, never a hole.
    """
    plan = plan_retention([_facts(s) for s in log.segments], _limits(log, high_watermark), now_ms)
    delete = plan.delete
    if plan.roll_first and not _can_roll(log, now_ms):
        delete = delete[:-1]  # the next check will find the last one again
    for deletion in delete:
        logger.info("%s: deleting segment %d, which %s", log.partition, *deletion)
    gone = log.segments[: len(delete)]
    if gone:
        log.delete_records(log.segments[len(gone)].base_offset)
    return gone


def _can_roll(log: Log, now_ms: int) -> bool:
    """Roll the log; False if an append is in progress or the disk is full."""
    if log.is_appending:
        return False
    try:
        log.roll(now_ms)
    except DiskFull as error:
        logger.warning("%s", error)
        return False
    return True


def drop(log: Log, segments: Sequence[Segment], *, is_start_saved: bool) -> None:
    """Remove segments that lie below the start offset.

    They are removed even if the start offset could not be saved, for lack of space, but then each
    durably before the next: one that came back alone after a power loss would leave a hole.
    """
    metrics = log.context.metrics
    for segment in segments:
        log.retire([segment])
        metrics.deleted_segments += 1
        metrics.deleted_bytes += segment.size
        if not is_start_saved:
            log.context.files.sync_directory(log.directory)
    discard_snapshots(log.context.files, log.directory, log.forget_snapshots())
    log.epochs.truncate_from_start(log.segments[0].base_offset)


def _facts(segment: Segment) -> SegmentFacts:
    timestamp = segment.largest_timestamp[0]
    return SegmentFacts(segment.base_offset, segment.size, timestamp, segment.modified_ms)


def _limits(log: Log, high_watermark: int) -> RetentionLimits:
    settings = log.settings
    deletes = "delete" in settings.cleanup_policy
    return RetentionLimits(
        retention_ms=settings.retention_ms if deletes else -1,
        retention_bytes=settings.retention_bytes if deletes else -1,
        log_start_offset=log.start_offset,
        high_watermark=high_watermark,
        log_end_offset=log.end_offset,
    )


def discard_snapshots(files: Files, directory: str, wanted: Container[int]) -> None:
    """Remove the producer snapshots on the disk that are of other offsets than these."""
    for name in files.list(directory):
        offset = snapshot_offset(name)
        if offset is not None and offset not in wanted:
            files.remove(f"{directory}/{name}")
