"""A group of appends to one log: batches that came one by one, and share a write.

The system call is a fifth of what an append of one record costs. What a group must keep is that
each batch of it ends as if it had come alone: its own offsets, its own error, a new segment where
one is due. A write that fails is undone for all of them, and a power loss inside it leaves the
first of them whole, as after single writes.
"""

from __future__ import annotations

from collections.abc import Sequence

from kdist.errors import ApiError
from kdist.records.batch import Batch
from kdist.records.usual import measure
from kdist.storage.log import Log


def append_group(
    log: Log, batches: Sequence[Batch], leader_epoch: int, now_ms: int
) -> Sequence[int]:
    """Append checked batches as the leader of a log that nothing is under way in: their offsets.

    The list is shorter than `batches` if one cannot be appended: it and those behind it were not.
    What is wrong is found by appending it alone. Raises `DiskFailed`, or `ApiError` as
    `Log.append`, and then nothing was appended.
    """
    if duplicate := log.duplicate_of(batches[0].header):
        return [duplicate.first_offset]
    measured = measure(batches)
    if len(batches) > 1 and log.may_roll(measured):
        return _append_singly(log, batches, leader_epoch, now_ms)
    return log.append_now(batches, measured, leader_epoch, now_ms)


def _append_singly(
    log: Log, batches: Sequence[Batch], leader_epoch: int, now_ms: int
) -> Sequence[int]:
    start_offsets: list[int] = []
    for batch in batches:
        try:
            appended = log.append([batch], leader_epoch, now_ms)
        except ApiError:
            if not start_offsets:
                raise
            break
        start_offsets.append(appended.start_offset)
    return start_offsets
