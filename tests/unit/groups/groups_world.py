"""A coordinator in virtual time, over a log in memory that can hold back and fail its appends."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

from kdist.config.groups import GroupSettings
from kdist.errors import Error
from kdist.groups.context import GroupsContext, LogRecord
from kdist.groups.coordinator import Caller, GroupCoordinator
from kdist.groups.records import Loading
from kdist.metrics.groups import GroupMetrics
from kdist.model import TopicPartition
from kdist.protocol.join_group import JoinGroupProtocol, JoinGroupRequest
from kdist.protocol.offset_commit import (
    OffsetCommitPartition,
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetCommitTopic,
)
from kdist.protocol.offset_fetch import OffsetFetchRequest, OffsetFetchResponse
from kdist.records.build import build_batch
from kdist.testing.virtual_clock import VirtualClock
from kdist.wire.primitives import Buffer
from tests.stepped_process import SteppedProcess

PARTITIONS = 3
CALLER = Caller(8, "client", "/10.0.0.1")


class MemoryLog:
    """An `OffsetsLog`. `error` is what appends get; while `is_holding`, they wait for `release`."""

    def __init__(self, clock: VirtualClock) -> None:
        self.error = Error.NONE
        self.is_holding = False
        self.appended: dict[int, list[list[LogRecord]]] = {}
        self.on_append: Callable[[int, list[LogRecord]], None] = lambda _partition, _records: None
        self._held: list[Callable[[], None]] = []
        self._clock = clock

    def append(
        self, partition: int, records: list[LogRecord], done: Callable[[Error], None]
    ) -> None:
        error = self.error
        if error is Error.NONE:
            self.appended.setdefault(partition, []).append(records)
            self.on_append(partition, records)
        if self.is_holding:
            self._held.append(lambda: done(error))
        else:
            done(error)

    def release(self) -> None:
        """Complete the waiting appends, each with the outcome set when it was made."""
        held, self._held = self._held, []
        for done in held:
            done()

    def batches(self, partition: int) -> list[bytes]:
        """The partition as record batches."""
        made, offset = [], 0
        for records in self.appended.get(partition, []):
            keys, values = [key for key, _ in records], [value for _, value in records]
            now_ms = self._clock.now_ms()
            made.append(bytes(build_batch(values, keys, timestamp_ms=now_ms, base_offset=offset)))
            offset += len(records)
        return made


class GroupsWorld:
    """A coordinator of all partitions and what it stands on; topics are all known but "nowhere"."""

    def __init__(self, seed: int = 0, **settings: Any) -> None:
        self.settings = GroupSettings(**{"min_session_timeout_ms": 100, **settings})
        self.clock = VirtualClock()
        self.tasks = SteppedProcess(self.clock, random.Random(seed))
        self.log = MemoryLog(self.clock)
        self.metrics = GroupMetrics()
        self.rng = random.Random(seed)
        self.coordinator = self.restarted(is_empty=True)

    def restarted(self, *, is_empty: bool = False) -> GroupCoordinator:
        """A coordinator that starts with what is in the log."""
        self.given = GroupsContext(
            settings=self.settings,
            partitions=PARTITIONS,
            clock=self.clock,
            tasks=self.tasks,
            rng=self.rng,
            log=self.log,
            metrics=self.metrics,
            is_known=self.is_known,
        )
        coordinator = GroupCoordinator(self.given)
        for partition in range(PARTITIONS):
            load(coordinator, partition, [] if is_empty else self.log.batches(partition))
        return coordinator

    @staticmethod
    def is_known(partition: TopicPartition) -> bool:
        return partition.topic != "nowhere"


def load(coordinator: GroupCoordinator, partition: int, batches: Iterable[bytes]) -> None:
    """Have it load a partition in one call."""
    loading = coordinator.begin_loading(partition)
    replay(loading, *batches)
    deque(coordinator.decode(loading), 0)
    coordinator.finish_loading(loading)


def replay(loading: Loading, *batches: Buffer) -> None:
    """Apply these batches in one go."""
    for each in batches:
        deque(loading.replay(each), 0)


def home_of(coordinator: GroupCoordinator, group_id: str) -> int:
    """The partition in which it keeps a group."""
    return coordinator._context.partition_for(group_id)


def group_ids(world: GroupsWorld) -> list[str]:
    """The groups that are coordinated."""
    return sorted(each.group_id for each in world.coordinator.groups())


def join_request(group_id: str = "g", member_id: str = "") -> JoinGroupRequest:
    """A new or known member of a consumer group asks to join."""
    return JoinGroupRequest(
        group_id=group_id,
        session_timeout_ms=10_000,
        rebalance_timeout_ms=60_000,
        member_id=member_id,
        protocol_type="consumer",
        protocols=[JoinGroupProtocol(name="range", metadata=b"")],
    )


def commit(
    world: GroupsWorld,
    group_id: str,
    offset: int = 1,
    *,
    topic: str = "t",
    partitions: Iterable[int] = (0,),
    **fields: Any,
) -> Error:
    """A client outside commits this offset of each partition; the first one's error."""
    positions = [
        OffsetCommitPartition(
            partition_index=each, committed_offset=offset, committed_metadata=None, **fields
        )
        for each in partitions
    ]
    topics = [OffsetCommitTopic(name=topic, partitions=positions)]
    answers: list[OffsetCommitResponse] = []
    request = OffsetCommitRequest(group_id=group_id, topics=topics)
    world.coordinator.offset_commit(request, CALLER, answers.append)
    return Error.of(answers[0].topics[0].partitions[0].error_code)


def fetch(world: GroupsWorld, request: OffsetFetchRequest, version: int) -> OffsetFetchResponse:
    """The answer to an OffsetFetch of that version."""
    answers: list[OffsetFetchResponse] = []
    caller = CALLER._replace(version=version)
    world.coordinator.offset_fetch(request, caller, answers.append)
    return answers[0]
