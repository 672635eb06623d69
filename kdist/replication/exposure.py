"""Waiting for the high watermark: produces with acks=all.

With `flush.before.expose` such a produce requests a flush, which all waiting ones share. After any
flush, whatever caused it, the partition attempts all its waiting operations, fetches included.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from kdist.errors import Error
from kdist.replication.delayed import Delayed

OnExposed = Callable[[Error], None]


class Exposing(Protocol):
    """What `ExposureWait` needs of a partition."""

    is_leader: bool

    @property
    def high_watermark(self) -> int: ...

    def request_flush(self) -> None: ...


class ExposureWait(Delayed):
    """Waits until everything below `end_offset` is committed."""

    __slots__ = ("_end_offset", "_partition", "done")

    def __init__(self, partition: Exposing, end_offset: int, done: OnExposed) -> None:
        self._partition = partition
        self._end_offset = end_offset
        self.done = done

    def attempt(self) -> bool:
        partition = self._partition
        if partition.high_watermark >= self._end_offset:
            self.done(Error.NONE)
        elif not partition.is_leader:
            self.done(Error.NOT_LEADER_OR_FOLLOWER)
        else:
            partition.request_flush()
            return False
        return True

    def expire(self) -> None:
        self.done(Error.REQUEST_TIMED_OUT)
