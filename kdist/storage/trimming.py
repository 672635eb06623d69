"""Cutting a log: its end after a change of leader, its start for retention and DeleteRecords.

A power loss may come between any two steps, hence their order: first the checkpoint, lowered, then
the files; segments are removed from the end backwards, or from the start forwards, so that the rest
has no hole.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import partial

from kdist.errors import ApiError, DiskFull, Error
from kdist.storage.index_trust import restart_indexes
from kdist.storage.log import Log
from kdist.storage.names import Suffix, parse_segment_name
from kdist.storage.producer_loading import load_producers
from kdist.storage.reading import with_sound_index
from kdist.storage.retention import RetentionLimits, SegmentFacts, plan_retention
from kdist.storage.scan import DamagedSegment
from kdist.storage.segment import Segment

logger = logging.getLogger(__name__)


def truncate(log: Log, offset: int, now_ms: int) -> None:
    """Drop the batch that holds `offset` and all after it.

    No append may be in progress, and the saved recovery point must not be above that batch's base
    offset: records appended from here on will not be synced, whatever an old checkpoint said of
    these offsets. After `DiskFull` the log is unchanged, or ends at the base offset of one of its
    segments; appends may continue there, or truncation be tried again.
    """
    assert not log.is_appending
    offset = max(offset, log.start_offset)
    segment = log.segments[log.segment_index(offset)]
    found = with_sound_index(log, segment, lambda segment: segment.find(offset))
    position, start = segment.size, offset
    if found is not None:  # else nothing in the segment is at or after `offset`
        position, start = found[0], min(offset, found[1].base_offset)
    assert log.recovery_point <= start
    while log.active is not segment:
        _end_at(log, log.active.base_offset, partial(retire, log, [log.active]))
    discard_snapshots(log, max(start, log.start_offset))
    # Otherwise a segment or snapshot of the records cut off could come back after a power loss,
    # among those appended from here on.
    log.context.files.sync_directory(log.directory)
    if start < log.start_offset:  # only the batch that contains the log start offset is left
        start_over(log, now_ms)
    else:
        _end_at(log, start, partial(_cut, log, position, start))


def start_over(log: Log, now_ms: int) -> None:
    """Replace a log that has nothing at or above its start offset by an empty one from there."""
    gone = log.segments[::-1]
    _end_at(log, log.start_offset, partial(_add_empty_segment, log, now_ms))
    retire(log, gone)  # on `DiskFull`, retention removes the rest: it is below the start offset


def _end_at(log: Log, offset: int, cut: Callable[[], None]) -> None:
    """Make the log end at `offset`, with `cut` for its files; if that raises, nothing is changed.

    For the same reason the producers, whose loading may raise too, are loaded first.
    """
    producers = load_producers(log, offset)
    cut()
    log.end_offset = offset
    log.forget_reserved()
    log.epochs.truncate_from_end(offset)
    log.save_epochs()
    log.producers = producers
    log.is_changed = True


def _add_empty_segment(log: Log, now_ms: int) -> None:
    log.segments.append(Segment.create(log.context.files, log.directory, log.start_offset, now_ms))
    log.renamed_in.add(log.directory)


def _cut(log: Log, position: int, offset: int) -> None:
    """Cut the active segment and its indexes at `position`, where the batch at `offset` begins."""
    segment = log.active
    if position == segment.size:
        return
    segment.sync_targets(is_sealed=True)  # opens all files now, so that no open fails half-way
    segment.cut(position)
    interval_bytes = log.settings.index_interval_bytes
    try:
        walk = segment.walk_spans(restart_indexes(segment, offset), interval_bytes)
        for place, span, _ in walk:
            segment.note_span(place, span, interval_bytes)
    except DamagedSegment as damage:  # older damage, below the cut
        logger.error("%s: the rest of this segment cannot be read", damage)
        segment.size = position


def delete_records(log: Log, offset: int) -> None:
    """Advance the log start offset to `offset` (KIP-107); retention then deletes the segments.

    Durable once the start offsets are saved. OFFSET_OUT_OF_RANGE beyond the log end offset.
    """
    if offset > log.end_offset:
        reason = f"{log.partition} ends at {log.end_offset}, before offset {offset}"
        raise ApiError(Error.OFFSET_OUT_OF_RANGE, reason)
    log.start_offset = max(log.start_offset, offset)


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
        log.start_offset = max(log.start_offset, log.segments[len(gone)].base_offset)
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
    """Remove the segments that `release` returned.

    They are removed even if the start offset could not be saved, for lack of space, but then each
    durably before the next: one that came back alone after a power loss would leave a hole.
    """
    for segment in segments:
        retire(log, [segment])
        if not is_start_saved:
            log.context.files.sync_directory(log.directory)
    discard_snapshots(log, log.end_offset)
    forget_epochs(log)


def forget_epochs(log: Log) -> None:
    """Drop the leader epochs of records below the start offset, once that is saved."""
    if log.epochs.truncate_from_start(log.start_offset):
        log.save_epochs()


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


def retire(log: Log, segments: Sequence[Segment]) -> None:
    """Take segments out of the log, in the order given, and have their files unlinked later."""
    for segment in segments:
        paths = segment.retire()  # first: if that raises, the segment stays, for the next check
        log.segments.remove(segment)
        log.context.metrics.deleted_segments += 1
        log.context.metrics.deleted_bytes += segment.size
        log.context.discard(paths, log.settings.file_delete_delay_ms)
        log.renamed_in.add(log.directory)
    # Without the segment that is now the last: it is active again, and must not be cut to size.
    log.sealed_unsynced = [kept for kept in log.sealed_unsynced if kept in log.segments[:-1]]


def discard_snapshots(log: Log, end_offset: int) -> None:
    """Remove producer snapshots that are neither at a segment's base offset nor at `end_offset`."""
    wanted = {segment.base_offset for segment in log.segments} | {end_offset}
    files = log.context.files
    on_disk = {f"{log.directory}/{name}" for name in files.list(log.directory)}
    for path in on_disk | log.files_to_save.keys():
        parsed = parse_segment_name(path.rpartition("/")[2])
        if parsed and parsed.suffix is Suffix.SNAPSHOT and parsed.base_offset not in wanted:
            log.files_to_save.pop(path, None)
            if path in on_disk:
                files.remove(path)
