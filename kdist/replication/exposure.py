"""Waiting for the high watermark: who asked for acks=all, and consumers of what is not flushed yet.

An acks=all produce under `flush.before.expose` asks for a flush, which all who wait share. Flushes
that nobody here asked for (every `flush.messages` records or `flush.ms`) expose records too, for
fetches that wait: they are looked for at short intervals, while there are such fetches.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from kdist.errors import Error
from kdist.replication.delayed import Delayed, Waiting, Watched
from kdist.runtime.tasks import Tasks

LOOK_EVERY_MS = 20

OnExposed = Callable[[Error], None]


class Exposing(Watched, Protocol):
    """What is needed of a partition."""

    is_leader: bool

    @property
    def high_watermark(self) -> int: ...

    def request_flush(self) -> None: ...


class ExposureWait(Delayed):
    """Waits until all below `end_offset` is committed."""

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


class Exposures:
    """Looks whether high watermarks have moved by themselves. Owner: `Replicas`."""

    def __init__(self, tasks: Tasks, waiting: Waiting) -> None:
        self._tasks = tasks
        self._waiting = waiting
        self._seen: dict[Exposing, int] = {}

    def look_for(self, partition: Exposing) -> None:
        """Somebody waits for records of this partition that are not exposed yet."""
        if not self._seen:
            self._tasks.call_later(LOOK_EVERY_MS, self._look)
        self._seen.setdefault(partition, partition.high_watermark)

    def _look(self) -> None:
        seen, self._seen = self._seen, {}
        for partition, high_watermark in seen.items():
            if partition.high_watermark != high_watermark:
                self._waiting.changed(partition)
            elif partition.watchers:
                self.look_for(partition)
