"""Finds a mirror's position in a partition, from the target's own log.

The last batch of the target partition with the mirror's mark has the position
(`position_marker.py`). That is the log's last batch, unless others write there too. Then the log is
read from where it ended at the mirror's last commit, which is noted in the metadata of each commit
to the source. If it is not there either, the log is searched backwards from there: an unclean
election may have taken our last batches, and others may have written at their offsets since. What
is left of ours then says where to go on, unless compaction may have removed the missing ones.

Some commits override the log, and say so in their note: those of `kdist mirror seek`; and, until a
batch is sent, the mirror's own commits of such a position, or of one that it reached only past
control records. The note of a stopped partition has the reason, for `kdist mirror status`.
"""

from __future__ import annotations

import logging
import re
from typing import NamedTuple, TypeGuard

from kdist.client.cluster import Cluster
from kdist.client.fetch_once import fetch_at
from kdist.client.offsets import OffsetAndMetadata
from kdist.errors import ApiError, Error, UserError
from kdist.mirror.position_marker import Run, last_run, read_run
from kdist.model import NO_EPOCH, OffsetRange, TopicPartition

logger = logging.getLogger(__name__)

SOUGHT = "sought"  # the beginning of the note of a commit that overrides the target's log
_NOTE = re.compile(rf"(?:{SOUGHT} )?target=(\d+)(?: stopped: (.*))?", re.DOTALL)
_BACK_FIRST = 1_000  # offsets to search before the noted end; then ten times as many, and so on
_NOTE_LENGTH_MAX = 1000  # a broker accepts 4096 characters of metadata with an offset


class TargetPosition(NamedTuple):
    """A mirror's position, and the source's leader epoch there, or `NO_EPOCH`.

    `position` is None if the partition was never mirrored. `run` is that of our last batch in the
    target, None if there is none. `target_start` and `target_end` are the target's log's.
    """

    position: int | None
    leader_epoch: int
    run: Run | None
    target_start: int
    target_end: int


def note_of(target_end: int, *, overrides: bool = False, stopped: object = None) -> str:
    """The note of a commit: the target's log end offset, and whether it overrides that log.

    `stopped` is why the partition has stopped, if it has.
    """
    note = f"{SOUGHT} target={target_end}" if overrides else f"target={target_end}"
    return note if stopped is None else f"{note} stopped: {stopped}"[:_NOTE_LENGTH_MAX]


def why_stopped(note: str) -> str | None:
    """Why the partition with this note has stopped; None if the note does not say so."""
    noted = _NOTE.fullmatch(note)
    return noted[2] if noted else None


async def look_up_position(
    cluster: Cluster,
    target: TopicPartition,
    mark: int,
    committed: OffsetAndMetadata | None,
    offsets: OffsetRange,
) -> TargetPosition:
    """Ask the target, which has these offsets. `UserError` if it has lost records that it
    acknowledged; `ApiError`.
    """
    start, end = offsets
    noted = _NOTE.fullmatch(committed.metadata) if committed else None
    noted_end = int(noted[1]) if noted else None
    run = await _find_run(cluster, target, mark, noted_end, (start, end))
    if (
        run is None
        and committed is not None
        and noted_end is not None
        and not _is_sought(committed)
    ):
        run = await _find_run_before(cluster, target, mark, (start, min(noted_end, end)), committed)
    has_lost = noted_end is not None and end < noted_end
    # After an unclean election our last batch is not beyond the committed offset, and we go on from
    # it. If there is none, or one beyond it, this is another log, that of a recreated topic.
    if has_lost and (run is None or committed is None or run.next_offset > committed.offset):
        raise copy_recreated(target, end, noted_end or 0, has_ours=run is not None)
    if _overrides(committed, run) and not has_lost:
        return TargetPosition(committed.offset, committed.leader_epoch, run, start, end)
    if run is not None:
        same = committed is not None and committed.offset == run.next_offset
        epoch = committed.leader_epoch if committed is not None and same else NO_EPOCH
        return TargetPosition(run.next_offset, epoch, run, start, end)
    if committed is None:
        return TargetPosition(None, NO_EPOCH, None, start, end)
    return TargetPosition(committed.offset, committed.leader_epoch, None, start, end)


async def check_end(
    cluster: Cluster,
    target: TopicPartition,
    mark: int,
    known: tuple[Run | None, int],
    offsets: OffsetRange,
) -> None:
    """Check that our last batch in the target, which has these offsets now, is of the run known.

    With it is known where the log ended. `ApiError` if another mirror has written since, or the log
    has lost its end.
    """
    run, known_end = known
    found = await _find_run(cluster, target, mark, known_end, offsets)
    if offsets.end < known_end or found not in (None, run):
        raise ApiError(
            Error.OUT_OF_ORDER_SEQUENCE_NUMBER,
            f"another mirror has written to {target} of the target, or that has lost its end",
        )


def copy_recreated(
    target: TopicPartition, end: int, known_end: int, *, has_ours: bool
) -> UserError:
    """The error for a target that lacks records that it had.

    `has_ours`: it already has batches of ours again, and earlier ones cannot follow them.
    """
    before = "stop the mirror, delete it once more, and then " if has_ours else ""
    return UserError(
        f"{target} of the target ends at offset {end}, but was mirrored into up to {known_end}:"
        f" was it deleted and recreated? {before}`kdist mirror seek` says from where to fill it"
        " again"
    )


def _is_sought(committed: OffsetAndMetadata) -> bool:
    return committed.metadata.startswith(SOUGHT)


def _overrides(
    committed: OffsetAndMetadata | None, run: Run | None
) -> TypeGuard[OffsetAndMetadata]:
    """Whether the committed offset overrides the target's log, and is beyond it."""
    if committed is None or not _is_sought(committed):
        return False
    return run is None or run.next_offset < committed.offset


async def _find_run(
    cluster: Cluster,
    target: TopicPartition,
    mark: int,
    noted_end: int | None,
    bounds: tuple[int, int],
) -> Run | None:
    start, end = bounds
    if start == end:
        return None  # empty, perhaps by retention
    run = last_run((await fetch_at(cluster, target, end - 1, 1)).headers(), mark)
    if run is not None:
        return run
    offset = start if noted_end is None else min(max(start, noted_end - 1), end)
    if end - offset > 1:
        logger.info("others write to %s: searching our last batch from %d on", target, offset)
    while offset < end:
        headers = list((await fetch_at(cluster, target, offset)).headers())
        if not headers:
            break  # the remaining offsets were compacted away
        run = last_run(headers, mark) or run
        offset = headers[-1].next_offset
    return run


async def _find_run_before(
    cluster: Cluster,
    target: TopicPartition,
    mark: int,
    bounds: tuple[int, int],
    committed: OffsetAndMetadata,
) -> Run | None:
    """The run of our last batch in the bounds, at whose end the log ended at the commit.

    If the batches up to the committed offset are not there, they are lost, and others have their
    offsets: the run says what to send again. But if the log has offsets without a batch after that
    run, compaction may have removed ours: then None, as everything had arrived.
    """
    start, end = bounds
    back = _BACK_FIRST
    while start < end:
        begin = max(start, end - back)
        run, is_dense = await _search(cluster, target, mark, (begin, end))
        if run is not None:
            return run if is_dense or run.next_offset >= committed.offset else None
        if begin == start:
            break
        back *= 10
    return None


async def _search(
    cluster: Cluster, target: TopicPartition, mark: int, bounds: tuple[int, int]
) -> tuple[Run | None, bool]:
    """The run of our last batch in the bounds, and whether no offset after it lacks a batch."""
    offset, end = bounds
    found, is_dense = None, True
    while offset < end:
        headers = list((await fetch_at(cluster, target, offset)).headers())
        if not headers:
            return found, False
        for header in headers:
            is_dense &= header.base_offset <= offset
            if (run := read_run(header, mark)) is not None:
                found, is_dense = run, True
            offset = header.next_offset
    return found, is_dense
