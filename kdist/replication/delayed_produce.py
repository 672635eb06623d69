"""A produce with acks=all that waits until all in-sync replicas have its records.

It waits for the high watermark in the role in which its records were appended. Once this broker has
not led for a while, the high watermark may have passed other records at the same offsets: then the
answer is an error, whatever the high watermark. So it is once too few replicas
are in sync, since the high watermark then stands still. All these errors mean "perhaps": the
records stay, and may be committed yet.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from kdist.errors import Error
from kdist.replication.delayed import DelayedOperation
from kdist.replication.roles import Role, still_leads

OnCommitted = Callable[[Error], None]


class Committing(Protocol):
    """What `DelayedProduce` needs of a partition."""

    high_watermark: int
    role: Role

    @property
    def is_under_min_isr(self) -> bool: ...

    def request_flush(self) -> None: ...


class DelayedProduce(DelayedOperation):
    """Waits until everything below `end_offset`, appended in `role`, is committed."""

    __slots__ = ("_end_offset", "_partition", "_role", "done")

    def __init__(
        self, partition: Committing, role: Role, end_offset: int, done: OnCommitted
    ) -> None:
        self._partition = partition
        self._role = role
        self._end_offset = end_offset
        self.done = done

    def attempt(self) -> bool:
        partition = self._partition
        if not still_leads(self._role, partition.role):
            self.done(Error.NOT_LEADER_OR_FOLLOWER)
        elif partition.high_watermark >= self._end_offset:
            self.done(Error.NONE)
        elif partition.is_under_min_isr:
            self.done(Error.NOT_ENOUGH_REPLICAS_AFTER_APPEND)
        else:
            partition.request_flush()
            return False
        return True

    def expire(self) -> None:
        self.done(Error.REQUEST_TIMED_OUT)
