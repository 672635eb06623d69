"""Plans resets of a group's offsets (pure). A target out of range is moved to the nearest end."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from kdist.errors import UserError
from kdist.model import NO_OFFSET, OffsetRange, TopicPartition


class ToEarliest(NamedTuple):
    """The first offset of each partition."""


class ToLatest(NamedTuple):
    """The end of each partition: only records that come later are read."""


class ToOffset(NamedTuple):
    """The same offset in each partition."""

    offset: int


class ToTime(NamedTuple):
    """The first record at or after a time, in ms since the epoch; the end where there is none."""

    timestamp_ms: int


class ShiftBy(NamedTuple):
    """So many offsets forward; backward if negative."""

    records: int


Target = ToEarliest | ToLatest | ToOffset | ToTime | ShiftBy


class OffsetMove(NamedTuple):
    """A new offset for a group in a partition; `before` is None if it had none."""

    partition: TopicPartition
    before: int | None
    offset: int
    end: int

    @property
    def lag(self) -> int:
        """The lag after the move: offsets from there to the end."""
        return self.end - self.offset


def plan_moves(
    target: Target,
    committed: Mapping[TopicPartition, int | None],
    ranges: Mapping[TopicPartition, OffsetRange],
    found: Mapping[TopicPartition, int],
) -> list[OffsetMove]:
    """A move for each partition of `committed`; `found` has the offsets for the time of a `ToTime`.

    `UserError` for a `ShiftBy` where the group has no committed offset.
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
