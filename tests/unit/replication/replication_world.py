"""A broker's replicas on a simulated disk, in virtual time, for the tests of the packages above.

`World` tells them what a controller would; `Turns` stands for the ticks of the network's loop: what
is to happen at the end of one happens there, and what a request's bytes were is gone after it.
"""

from __future__ import annotations

import random
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from kdist.config.storage import StorageSettings
from kdist.config.topic import TopicSettings
from kdist.errors import Error
from kdist.metrics.replication import ReplicationMetrics
from kdist.metrics.storage import StorageMetrics
from kdist.model import TopicPartition
from kdist.network.connection_state import Reason
from kdist.protocol.leader_and_isr import (
    LeaderAndIsrPartition,
    LeaderAndIsrRequest,
    LeaderAndIsrResponse,
    LeaderAndIsrTopic,
)
from kdist.protocol.stop_replica import (
    StoppedPartition,
    StoppedTopic,
    StoppedTopicState,
    StopReplicaRequest,
    StopReplicaResponse,
    UngroupedPartition,
)
from kdist.records.batch import Batch, read_header
from kdist.records.build import build_batch, read_batch
from kdist.replication.partition import Partition
from kdist.replication.replicas import Replicas
from kdist.runtime.steps import run_steps
from kdist.security.subjects import ANYBODY, Subject
from kdist.storage.background import DirectoryContext
from kdist.storage.directory import LogDirectory
from kdist.storage.meta import Identity
from kdist.testing.simulated_disk import SimulatedDisk
from kdist.testing.virtual_clock import VirtualClock
from tests.stepped_process import SteppedProcess

BROKER = 1
CLICKS = TopicPartition("clicks", 0)
VIEWS = TopicPartition("views", 3)
TOPIC_ID = uuid.UUID(int=7)
START_MS = 1_700_000_000_000


class Turns:
    """The end of a tick: callbacks wait for `end`, which a task brings about by itself as well."""

    def __init__(self, tasks: SteppedProcess) -> None:
        self._tasks = tasks
        self._callbacks: list[Callable[[], None]] = []

    def schedule(self, callback: Callable[[], None]) -> None:
        if not self._callbacks:
            self._tasks.call_soon(self.end)
        self._callbacks.append(callback)

    def end(self) -> None:
        callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            callback()


class Client:
    """A connection as handlers see it."""

    subject: Subject = ANYBODY

    def __init__(self) -> None:
        self.is_closed = False
        self.pending_produces = 0
        self.is_held = False
        self.has_room = True

    def hold(self, _reason: Reason) -> None:
        assert not self.is_held
        self.is_held = True

    def end_hold(self, _reason: Reason) -> None:
        assert self.is_held
        self.is_held = False

    def end_pending_produce(self) -> None:
        self.pending_produces -= 1

    def finish_soon(self) -> None:
        self.is_closed = True


class World:
    """One broker. `failures` is what `on_failure` heard; `known` the cluster's other partitions."""

    def __init__(
        self, *, seed: int = 0, topic: TopicSettings | None = None, **storage: Any
    ) -> None:
        self.rng = random.Random(seed)
        self.clock = VirtualClock(START_MS)
        self.disk = SimulatedDisk(self.rng, self.clock)
        self.disk.make_directory("/d01")
        self.disk.sync_directory("/")
        self.topic = topic or TopicSettings()
        defaults = {"reserved_bytes": 0, "preallocation_step_bytes": 0, "writeback_step_bytes": 0}
        self.storage = StorageSettings(**{**defaults, **storage})
        self.failures: list[BaseException] = []
        self.known: set[TopicPartition] = set()
        self.open()

    def open(self, saved_high_watermarks: Mapping[TopicPartition, int] | None = None) -> None:
        """Start on what the disk holds."""
        self.tasks = SteppedProcess(self.clock, self.rng)
        self.ticks = Turns(self.tasks)
        self.metrics = ReplicationMetrics()
        context = DirectoryContext(
            files=self.disk,
            clock=self.clock,
            tasks=self.tasks,
            rng=self.rng,
            settings=self.storage,
            metrics=StorageMetrics(),
            settings_of=lambda _topic: self.topic,
            on_failure=self.failures.append,
        )
        self.directory = LogDirectory("/d01", Identity(BROKER, "cluster"), context).open()
        self.replicas = Replicas(
            self.directory,
            BROKER,
            self.ticks.schedule,
            self.metrics,
            lambda key: key in self.known,
            saved_high_watermarks or self.directory.saved_high_watermarks,
        )
        self.directory.high_watermarks = self.replicas.high_watermarks
        self.replicas.broker_epoch = 5

    def restart(self, saved_high_watermarks: Mapping[TopicPartition, int] | None = None) -> None:
        """Stop cleanly and start again."""
        self.settle()
        self.directory.close()
        self.open(saved_high_watermarks)

    def settle(self, ms: float = 50) -> None:
        """Run what was requested."""
        self.tasks.run_for_ms(ms)

    # The controller's requests

    def tell(
        self,
        key: TopicPartition = CLICKS,
        *,
        version: int = 7,
        topic_id: uuid.UUID | None = None,
        controller_epoch: int = 1,
        broker_epoch: int = 5,
        **state: Any,
    ) -> LeaderAndIsrResponse:
        """Send a LeaderAndIsr of one partition and wait for its answer."""
        ids = {"controller_epoch": controller_epoch, "broker_epoch": broker_epoch}
        heard = self.send(key, version=version, topic_id=topic_id, **ids, **state)
        assert self.tasks.run_until(lambda: bool(heard), 10_000)
        return heard[0]

    def send(
        self,
        key: TopicPartition = CLICKS,
        *,
        version: int = 7,
        topic_id: uuid.UUID | None = None,
        controller_epoch: int = 1,
        broker_epoch: int = 5,
        **state: Any,
    ) -> list[LeaderAndIsrResponse]:
        """Send a LeaderAndIsr of one partition; where its answer will be."""
        heard: list[LeaderAndIsrResponse] = []
        told = told_state(key, version, controller_epoch, **state)
        topics = LeaderAndIsrTopic(
            topic_name=key.topic,
            topic_id=topic_id or topic_id_of(key.topic),
            partition_states=[told],
        )
        request = LeaderAndIsrRequest(
            controller_id=9,
            controller_epoch=controller_epoch,
            broker_epoch=broker_epoch,
            ungrouped_partition_states=[told] if version < 2 else [],
            topic_states=[topics] if version >= 2 else [],
            live_leaders=[],
        )
        self.replicas.apply_leader_and_isr(request, version, heard.append)
        return heard

    def stop(
        self, key: TopicPartition = CLICKS, *, leader_epoch: int = -2, delete: bool = True
    ) -> StopReplicaResponse:
        """Send a StopReplica of one partition and wait for its answer."""
        heard: list[StopReplicaResponse] = []
        self.replicas.apply_stop_replica(stop_request(key, leader_epoch, delete), heard.append)
        assert self.tasks.run_until(lambda: bool(heard), 10_000)
        return heard[0]

    def lead(
        self, key: TopicPartition = CLICKS, *, replicas: Sequence[int] = (BROKER,), **topic: Any
    ) -> Partition:
        """A partition that this broker leads, created if need be, the only replica in sync."""
        if topic:
            self.topic = replace(self.topic, **topic)
        if key not in self.replicas.partitions:
            answer = self.tell(key, replicas=list(replicas))
            assert error_of(answer) is Error.NONE
        return self.replicas.partitions[key]


def topic_id_of(topic: str) -> uuid.UUID:
    """The id that a topic has unless a test says otherwise."""
    return TOPIC_ID if topic == CLICKS.topic else uuid.uuid5(TOPIC_ID, topic)


def told_state(
    key: TopicPartition, version: int, controller_epoch: int, **state: Any
) -> LeaderAndIsrPartition:
    """One partition of a LeaderAndIsr: led by this broker unless `state` says otherwise."""
    defaults = {
        "leader": BROKER,
        "leader_epoch": 0,
        "isr": [BROKER],
        "partition_epoch": 0,
        "replicas": [BROKER],
    }
    return LeaderAndIsrPartition(
        topic_name=key.topic if version < 2 else "",
        partition_index=key.partition,
        controller_epoch=controller_epoch,
        **{**defaults, **state},
    )


def leader_request(
    keys: Sequence[TopicPartition], topic_id: uuid.UUID = TOPIC_ID
) -> LeaderAndIsrRequest:
    """A LeaderAndIsr of partitions of one topic, all led by this broker."""
    states = [told_state(key, 7, 1) for key in keys]
    topic = LeaderAndIsrTopic(topic_name=keys[0].topic, topic_id=topic_id, partition_states=states)
    return LeaderAndIsrRequest(
        controller_id=9, controller_epoch=1, broker_epoch=5, topic_states=[topic], live_leaders=[]
    )


def stop_request(
    key: TopicPartition, leader_epoch: int, delete: bool, version: int = 3
) -> StopReplicaRequest:
    """A StopReplica of one partition, in the form of a version."""
    request = StopReplicaRequest(controller_id=9, controller_epoch=1, broker_epoch=5)
    if version < 3:
        request.delete_partitions = delete
    if version == 0:
        request.ungrouped_partitions = [
            UngroupedPartition(topic_name=key.topic, partition_index=key.partition)
        ]
    elif version < 3:
        request.topics = [StoppedTopic(name=key.topic, partition_indexes=[key.partition])]
    else:
        stopped = StoppedPartition(
            partition_index=key.partition, leader_epoch=leader_epoch, delete_partition=delete
        )
        topic = StoppedTopicState(topic_name=key.topic, partition_states=[stopped])
        request.topic_states = [topic]
    return request


def error_of(answer: LeaderAndIsrResponse | StopReplicaResponse) -> Error:
    """The error of the one partition in an answer."""
    if isinstance(answer, LeaderAndIsrResponse) and answer.topics:
        return Error.of(answer.topics[0].partition_errors[0].error_code)
    return Error.of(answer.partition_errors[0].error_code)


def batch(values: Sequence[bytes | None], *, timestamp: int = START_MS, **fields: Any) -> bytearray:
    """A record batch as a producer sends it."""
    return build_batch(values, timestamp_ms=timestamp, **fields)


def append_open(world: World, partition: Partition, value: bytes, **fields: Any) -> None:
    """Append a batch of a transaction, which clients cannot yet, and end the tick."""
    producer = {"producer_id": 3, "producer_epoch": 0, "base_sequence": 0}
    data = batch([value], is_transactional=True, **producer, **fields)
    own = Batch(read_header(data), memoryview(bytearray(data)))
    assert partition.append([own], world.clock.now_ms()).is_published
    world.ticks.end()


def append(
    world: World,
    partition: Partition,
    *values: bytes | None,
    heard: list[Any] | None = None,
    **fields: Any,
) -> int:
    """Append a batch as a producer would and end the tick; its first offset.

    With `heard`, the outcome may come later, and goes there.
    """
    now_ms = world.clock.now_ms()
    data = batch(values, **{"timestamp": now_ms, **fields})
    append = partition.append(run_steps(partition.check(data, 9, 1, now_ms)), now_ms)
    append.then(lambda outcome: None if heard is None else heard.append(outcome))
    if not append.is_published:
        return -1
    world.ticks.end()
    return append.start_offset


def values_in(data: bytes) -> list[tuple[int, bytes | None]]:
    """Offset and value of every record in whole batches; a cut one at the end is passed over."""
    found: list[tuple[int, bytes | None]] = []
    position = 0
    while position + 61 <= len(data):
        header = read_header(data, position)
        if header.size > len(data) - position:
            break
        found += [(record.offset, record.value) for record in read_batch(data, position)]
        position += header.size
    return found
