"""What groups are given: settings, time, chance, the log; and the order in which they act.

A method decides, changes the group, and adds what follows from it (answers, appends) to `Actions`,
which run when the method is through. So an answer that brings the next request at once, or a log
that is done at once, never finds a group half changed.
"""

from __future__ import annotations

import dataclasses
import random
import uuid
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Protocol, TypeVar

from kdist.config.groups import GroupSettings
from kdist.errors import Error
from kdist.groups.placement import partition_for
from kdist.metrics.groups import GroupMetrics
from kdist.model import TopicPartition
from kdist.runtime.clock import Clock
from kdist.runtime.tasks import Tasks, Timer

PREFIX_CHARS_MAX = 1000

LogRecord = tuple[bytes, bytes | None]
"""Key and value of a record; a null value is a tombstone."""

Response = TypeVar("Response")
Action = Callable[[], None]


class OffsetsLog(Protocol):
    """The partitions of `__consumer_offsets` that this broker leads."""

    def append(
        self, partition: int, records: list[LogRecord], done: Callable[[Error], None]
    ) -> None:
        """Append the records as one batch and call `done` once, now or later.

        With NONE when all in-sync replicas have the batch, else with the error of the append.
        Batches of one partition stand in the log in the order of the calls.
        """
        ...


class Actions:
    """What is decided and not yet done, in order."""

    def __init__(self) -> None:
        self._waiting: deque[Action] = deque()
        self._is_running = False

    def add(self, action: Action) -> None:
        """Do it when what is being decided now is through."""
        self._waiting.append(action)

    def run(self) -> None:
        """Do all; an action that comes back here only adds to the queue."""
        if self._is_running:
            return
        self._is_running = True
        try:
            while self._waiting:
                self._waiting.popleft()()
        finally:
            self._is_running = False


@dataclasses.dataclass(slots=True, kw_only=True)
class World:
    """Passed in by the broker, shared by all groups of a coordinator.

    `partitions` is how many `__consumer_offsets` has, whatever the settings say. `is_known` says
    whether the cluster has a partition: commits for others are refused.
    """

    settings: GroupSettings
    partitions: int
    clock: Clock
    tasks: Tasks
    chance: random.Random
    log: OffsetsLog
    metrics: GroupMetrics
    is_known: Callable[[TopicPartition], bool]
    actions: Actions = dataclasses.field(default_factory=Actions)

    def answer(self, reply: Callable[[Response], None], response: Response) -> None:
        """Answer a request, after what is being decided now."""
        self.actions.add(partial(reply, response))

    def call_later(self, delay_ms: float, callback: Action) -> Timer:
        """A timer of a group."""
        return self.tasks.call_later(delay_ms, partial(self._come_back, callback))

    def partition_for(self, group_id: str) -> int:
        """The partition whose leader coordinates the group."""
        return partition_for(group_id, self.partitions)

    def append(
        self, group_id: str, records: list[LogRecord], done: Callable[[Error], None]
    ) -> None:
        """Append to the group's partition, after what is being decided now."""
        partition = self.partition_for(group_id)
        come_back = partial(self._come_back_with, done)
        self.actions.add(partial(self.log.append, partition, records, come_back))

    def new_member_id(self, prefix: str) -> str:
        """A member id that none has: the client id or instance id, and a random UUID.

        A client's id may fill a string to its limit, and what is made of it has to fit one too.
        """
        made = uuid.UUID(int=self.chance.getrandbits(128), version=4)
        return f"{prefix[:PREFIX_CHARS_MAX]}-{made}"

    def _come_back(self, callback: Action) -> None:
        callback()
        self.actions.run()

    def _come_back_with(self, done: Callable[[Error], None], error: Error) -> None:
        done(error)
        self.actions.run()
