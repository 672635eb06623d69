"""What groups are given (settings, clock, randomness, the log), and the order in which they act.

A method decides, changes the group, and adds what follows (responses, appends) to `Actions`, which
run when the method has finished. So a response that triggers the next request at once, or an append
that completes at once, never finds a group half changed.
"""

from __future__ import annotations

import dataclasses
import random
import struct
import uuid
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Protocol, TypeVar

from kdist.config.groups import GroupSettings
from kdist.errors import Error
from kdist.metrics.groups import GroupMetrics
from kdist.model import TopicPartition
from kdist.runtime.clock import Clock
from kdist.runtime.steps import Slices
from kdist.runtime.tasks import Tasks, Timer

PREFIX_CHARS_MAX = 1000
INT32_MIN = -(1 << 31)
_UNIT = struct.Struct("<H")
_MASK = 0xFFFF_FFFF

LogRecord = tuple[bytes, bytes | None]
"""Key and value of a record; a null value is a tombstone."""

Response = TypeVar("Response")
Reply = Callable[[Response], None]
Action = Callable[[], None]


# Which error answers a failed append to `__consumer_offsets`. Clients handle only a few: each makes
# them do the right thing, look up the coordinator again, rejoin, or give up. One that is not listed
# is passed on unchanged. Source: Apache Kafka's group coordinator.
_EITHER = {
    Error.UNKNOWN_TOPIC_OR_PARTITION: Error.COORDINATOR_NOT_AVAILABLE,
    Error.NOT_ENOUGH_REPLICAS: Error.COORDINATOR_NOT_AVAILABLE,
    Error.NOT_ENOUGH_REPLICAS_AFTER_APPEND: Error.COORDINATOR_NOT_AVAILABLE,
    Error.NOT_LEADER_OR_FOLLOWER: Error.NOT_COORDINATOR,
    Error.KAFKA_STORAGE_ERROR: Error.NOT_COORDINATOR,
}
GENERATION_ERRORS = _EITHER | {
    Error.REQUEST_TIMED_OUT: Error.REBALANCE_IN_PROGRESS,
    Error.MESSAGE_TOO_LARGE: Error.UNKNOWN_SERVER_ERROR,
    Error.RECORD_LIST_TOO_LARGE: Error.UNKNOWN_SERVER_ERROR,
    Error.INVALID_FETCH_SIZE: Error.UNKNOWN_SERVER_ERROR,
}
COMMIT_ERRORS = _EITHER | {
    Error.MESSAGE_TOO_LARGE: Error.INVALID_COMMIT_OFFSET_SIZE,
    Error.RECORD_LIST_TOO_LARGE: Error.INVALID_COMMIT_OFFSET_SIZE,
    Error.INVALID_FETCH_SIZE: Error.INVALID_COMMIT_OFFSET_SIZE,
}


class OffsetsLog(Protocol):
    """The partitions of `__consumer_offsets` that this broker leads."""

    def append(
        self, partition: int, records: list[LogRecord], done: Callable[[Error], None]
    ) -> None:
        """Append the records as one batch, and call `done` once, now or later.

        `done` gets NONE when all in-sync replicas have the batch, else the error of the append.
        Batches of one partition are in the log in the order of the calls.
        """
        ...


class Actions:
    """Queue of actions that were decided but not yet carried out."""

    def __init__(self) -> None:
        self._waiting: deque[Action] = deque()
        self._is_running = False

    def add(self, action: Action) -> None:
        """Run the action after the current decision."""
        self._waiting.append(action)

    def run(self) -> None:
        """Run all queued actions; a call from within an action returns at once."""
        if self._is_running:
            return
        self._is_running = True
        try:
            while self._waiting:
                self._waiting.popleft()()
        finally:
            self._is_running = False


@dataclasses.dataclass(slots=True, kw_only=True)
class GroupsContext:
    """Passed in by the broker, shared by all groups of a coordinator.

    `partitions` is the actual partition count of `__consumer_offsets`, whatever the settings say.
    `is_known` says whether a partition exists in the cluster; commits for others are refused.
    """

    settings: GroupSettings
    partitions: int
    clock: Clock
    tasks: Tasks
    rng: random.Random
    log: OffsetsLog
    metrics: GroupMetrics
    is_known: Callable[[TopicPartition], bool]
    actions: Actions = dataclasses.field(default_factory=Actions)
    slices: Slices = dataclasses.field(init=False)  # what concerns many groups or offsets

    def __post_init__(self) -> None:
        self.slices = Slices(partial(self.call_later, 0))

    def answer(self, reply: Reply[Response], response: Response) -> None:
        """Answer a request, after the current decision."""
        self.actions.add(partial(reply, response))

    def call_later(self, delay_ms: float, callback: Action) -> Timer:
        """Start a timer; the actions that its callback adds are run after it."""
        return self.tasks.call_later(delay_ms, partial(self._come_back, callback))

    def partition_for(self, group_id: str) -> int:
        return partition_for(group_id, self.partitions)

    def append(
        self, group_id: str, records: list[LogRecord], done: Callable[[Error], None]
    ) -> None:
        """Append to the group's partition, after the current decision."""
        partition = self.partition_for(group_id)
        come_back = partial(self._come_back_with, done)
        self.actions.add(partial(self.log.append, partition, records, come_back))

    def new_member_id(self, prefix: str) -> str:
        """A new unique member id: the client id or instance id, and a random UUID.

        The prefix is cut, as a client id may be as long as a protocol string can be.
        """
        made = uuid.UUID(int=self.rng.getrandbits(128), version=4)
        return f"{prefix[:PREFIX_CHARS_MAX]}-{made}"

    def _come_back(self, callback: Action) -> None:
        callback()
        self.actions.run()

    def _come_back_with(self, done: Callable[[Error], None], error: Error) -> None:
        done(error)
        self.actions.run()


# Which partition of `__consumer_offsets` keeps a group: Java's hash of its name


def partition_for(group_id: str, partitions: int) -> int:
    """The group's partition, out of `partitions`. Every broker and tool must compute the same."""
    code = java_hash(group_id)
    return (0 if code == INT32_MIN else abs(code)) % partitions  # as Kafka: abs(MIN) overflows


def java_hash(text: str) -> int:
    """Java's `String.hashCode`: over UTF-16 code units, wrapping at 32 bits, signed."""
    units = text.encode("utf-16-le", "surrogatepass")
    code = 0
    for (unit,) in _UNIT.iter_unpack(units):
        code = code * 31 + unit & _MASK
    return code - (1 << 32) if code >> 31 else code
