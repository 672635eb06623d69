"""What this broker is to a partition: its leader in an epoch, or a follower in one.

A role is a value. Work that spans ticks keeps the role it began in, and ends when that is no longer
the partition's.
"""

from __future__ import annotations

from typing import NamedTuple


class Leading(NamedTuple):
    """This broker leads the partition, and has led it without a break since the epoch `since`."""

    epoch: int
    since: int


class Following(NamedTuple):
    """Another broker leads the partition, or none (-1)."""

    epoch: int
    leader: int


Role = Leading | Following


def still_leads(role: Role, now: Role) -> bool:
    """Whether a broker that had `role` has led ever since, in whatever epochs.

    Then nothing was cut off its log: what it appended in that role is at the same offsets.
    """
    return isinstance(role, Leading) and isinstance(now, Leading) and now.since == role.since
