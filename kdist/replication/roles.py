"""What this broker is to a partition: its leader in an epoch, or a follower in one.

A role is a value. Work that spans ticks keeps the role it began in, and ends when that is no longer
the partition's.
"""

from __future__ import annotations

from typing import NamedTuple


class Leading(NamedTuple):
    """This broker leads the partition."""

    epoch: int


class Following(NamedTuple):
    """Another broker leads the partition, or none (-1)."""

    epoch: int
    leader: int


Role = Leading | Following
