"""Where a group's offsets go when they are reset (pure). What is out of range goes to its edge."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from kdist.errors import UserError
from kdist.model import NO_OFFSET, OffsetRange, TopicPartition


class ToEarliest(NamedTuple):
    """Where each partition begins."""


class ToLatest(NamedTuple):
    """Where each partition ends: what comes from then on."""


class ToOffset(NamedTuple):
    """The same offset in each partition."""

    offset: int


class ToTime(NamedTuple):
    """The first record at or after a time, in ms since 1970; the end where there is none."""

    timestamp_ms: int


class ShiftBy(NamedTuple):
    """So many records further; back, if negative."""

    records: int


Target = ToEarliest | ToLatest | ToOffset | ToTime | ShiftBy


class OffsetMove(NamedTuple):
    """Where a group goes on in a partition; `before` is None if it had committed nothing."""

    partition: TopicPartition
    before: int | None
    offset: int
    end: int

    @property
    def lag(self) -> int:
        """Records that are left to read from there."""
        return self.end - self.offset


def plan_moves(
    target: Target,
    committed: Mapping[TopicPartition, int | None],
    ranges: Mapping[TopicPartition, OffsetRange],
    found: Mapping[TopicPartition, int],
) -> list[OffsetMove]:
    """A move for each partition of `committed`; `found` is where the time of a `ToTime` is.

    `UserError` for a shift of what was never committed.
    """
    moves = []
    for each, before in committed.items():
        start, end = ranges[each]
        aim = _aim(target, each, before, ranges[each], found)
        moves.append(OffsetMove(each, before, max(start, min(aim, end)), end))
    return moves


def _aim(
    target: Target,
    partition: TopicPartition,
    before: int | None,
    there: OffsetRange,
    found: Mapping[TopicPartition, int],
) -> int:
    match target:
        case ToEarliest():
            return there.start
        case ToLatest():
            return there.end
        case ToOffset(offset):
            return offset
        case ToTime():
            return there.end if found[partition] == NO_OFFSET else found[partition]
        case ShiftBy(records):
            if before is None:
                raise UserError(f"{partition} cannot be shifted: the group has no offset there")
            return before + records
