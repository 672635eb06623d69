"""A DeleteRecords that waits until every replica that is alive has deleted the records (KIP-107).

The low watermark is the lowest log start offset of these replicas: what lies below it is nowhere.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from kdist.errors import Error
from kdist.replication.delayed import DelayedOperation
from kdist.replication.roles import Role, still_leads

OnDeleted = Callable[[Error], None]


class Trimmed(Protocol):
    """What `DelayedDelete` needs of a partition."""

    role: Role

    @property
    def low_watermark(self) -> int: ...


class DelayedDelete(DelayedOperation):
    """Waits until the low watermark is `offset`, or more."""

    __slots__ = ("_done", "_offset", "_partition", "_role")

    def __init__(self, partition: Trimmed, role: Role, offset: int, done: OnDeleted) -> None:
        self._partition = partition
        self._role = role
        self._offset = offset
        self._done = done

    def attempt(self) -> bool:
        partition = self._partition
        if not still_leads(self._role, partition.role):
            self._done(Error.NOT_LEADER_OR_FOLLOWER)
        elif partition.low_watermark >= self._offset:
            self._done(Error.NONE)
        else:
            return False
        return True

    def expire(self) -> None:
        self._done(Error.REQUEST_TIMED_OUT)
