"""A stream in virtual time: a source in memory with gaps, a target that fails, mirrors that die.

The target's brokers judge sequences as kdist's storage does, which is as Kafka does since 2.5, and
keep each batch's bytes. A `Mirror` is one process's stream; several may believe that it is theirs.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TypeVar

from kdist.client.cluster import parse_addresses
from kdist.client.consumer.batch import Batch
from kdist.client.offsets import OffsetAndMetadata
from kdist.errors import ApiError, Error
from kdist.metrics.mirror import FlowMetrics
from kdist.mirror.position_marker import mark_of
from kdist.mirror.stream import Route, Stream
from kdist.mirror.target import Target
from kdist.model import TopicPartition
from kdist.network.client import ClientSettings
from kdist.protocol.fetch import (
    FetchPartitionResult,
    FetchRequest,
    FetchResponse,
    FetchTopicResult,
)
from kdist.protocol.list_offsets import (
    EARLIEST_TIMESTAMP,
    ListOffsetsPartitionResult,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopicResult,
)
from kdist.protocol.metadata import MetadataTopicResult
from kdist.records.batch import read_header
from kdist.records.build import build_batch, read_batch
from kdist.storage.producers import ProducerStates
from kdist.testing.simulated_network import SimulatedNetwork
from kdist.testing.virtual_clock import VirtualClock
from kdist.testing.virtual_loop import VirtualLoop
from tests.unit.client.producer_world import PORT, Brokers, Kept
from tests.written_records import patch

T = TypeVar("T")
PARTITION = TopicPartition("t", 0)
ROUTE = Route(PARTITION, PARTITION, mark_of("source", PARTITION))


class Log(Kept):
    """A partition of the target."""

    def __init__(self) -> None:
        super().__init__()
        self.start = 0
        self.last_stable: int | None = None  # if a transaction is open
        self.data: list[bytes] = []
        self._states = ProducerStates()

    def append(self, data: bytes) -> tuple[Error, int]:
        header, base = read_header(data), len(self.records)
        try:
            duplicate = self._states.check(header)
        except ApiError as error:
            return error.error, -1
        if duplicate is not None:
            return Error.NONE, duplicate.first_offset
        self._states.append(header, base)
        kept = bytearray(data)
        patch(kept, 0, base_offset=base, leader_epoch=0)
        self.data.append(bytes(kept))
        self.records += read_batch(kept)
        return Error.NONE, base

    def forget_producers(self) -> None:
        """Forget all producers, as a broker does when their newest records are old."""
        self._states = ProducerStates()

    def make_anew(self) -> None:
        """Empty the log, as of a topic that was deleted and recreated."""
        self.records.clear()
        self.data.clear()
        self.forget_producers()

    def lose_last(self) -> None:
        """Drop the last batch, as an unclean election would."""
        del self.records[read_header(self.data.pop()).base_offset :]
        self.forget_producers()

    def read(self, offset: int) -> bytes:
        """The batches from the one that has this offset on."""
        return b"".join(each for each in self.data if read_header(each).next_offset > offset)


class TargetBrokers(Brokers):
    """The brokers of one topic: they answer where it ends, and what is in it."""

    def log(self, partition: TopicPartition = PARTITION) -> Log:
        found = self.kept.setdefault(partition, Log())
        assert isinstance(found, Log)
        return found

    def topic(self, name: str) -> MetadataTopicResult:
        for number in range(self.partitions):
            self.log(TopicPartition(name, number))
        return super().topic(name)

    def answer(self, broker: int, request: Any) -> Any:
        if isinstance(request, ListOffsetsRequest):
            level = request.isolation_level
            return ListOffsetsResponse(topics=[self._ends(each, level) for each in request.topics])
        if isinstance(request, FetchRequest):
            return FetchResponse(responses=[self._read(each) for each in request.topics])
        return super().answer(broker, request)

    def _ends(self, topic: Any, isolation_level: int) -> ListOffsetsTopicResult:
        found = []
        for each in topic.partitions:
            log = self.log(TopicPartition(topic.name, each.partition_index))
            is_limited = isolation_level and log.last_stable is not None
            end = log.last_stable if is_limited else len(log.records)
            at = log.start if each.timestamp == EARLIEST_TIMESTAMP else end
            found.append(
                ListOffsetsPartitionResult(
                    partition_index=each.partition_index, error_code=0, offset=at
                )
            )
        return ListOffsetsTopicResult(name=topic.name, partitions=found)

    def _read(self, topic: Any) -> FetchTopicResult:
        found = []
        for each in topic.partitions:
            log = self.log(TopicPartition(topic.topic, each.partition))
            found.append(
                FetchPartitionResult(
                    partition_index=each.partition,
                    error_code=0,
                    high_watermark=len(log.records),
                    records=log.read(each.fetch_offset),
                )
            )
        return FetchTopicResult(topic=topic.topic, partitions=found)


def source_batches(rng: random.Random, count: int, gaps: float) -> list[Batch]:
    """Batches with gaps between some of their offsets, as transaction markers leave them."""
    offset, made = rng.randrange(100), []
    for number in range(count):
        offset += rng.random() < gaps
        values = [b"%d.%d" % (number, each) for each in range(rng.randrange(1, 5))]
        data = build_batch(values, timestamp_ms=number, base_offset=offset, leader_epoch=0)
        made.append(Batch(PARTITION, read_header(data), bytes(data), 0, 0))
        offset += len(values)
    return made


def values_of(batches: list[Batch]) -> list[bytes | None]:
    return [value for batch in batches for value in batch.raw_values()]


class Mirror:
    """One mirror process: a stream, and the source that it reads, in memory."""

    def __init__(self, scene: Scene, number: int) -> None:
        self.scene = scene
        network = scene.network.host(f"mirror{number}")
        settings = ClientSettings("m", request_timeout_ms=1_000, connect_timeout_ms=1_000)
        self.target = Target(network, parse_addresses(f"b0:{PORT}"), settings)
        self.metrics = FlowMetrics()
        self.stream = Stream(ROUTE, self, self.target, self.metrics, lambda _: None)
        self.sought: list[int] = []  # where the stream asked to read from
        self._reading: asyncio.Task[None] | None = None
        self.stream.start()

    async def committed(self, partition: TopicPartition) -> OffsetAndMetadata | None:
        return self.scene.committed

    async def begin(self, partition: TopicPartition) -> None:
        return None

    async def start_offset(self, partition: TopicPartition, *, is_emptied: bool) -> int:
        return 0

    def fault_of(self, partition: TopicPartition) -> None:
        return None

    async def commit(self, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        (self.scene.committed,) = offsets.values()

    def commit_position(self) -> None:
        if self.stream.position is not None:
            self.scene.committed = OffsetAndMetadata(self.stream.position, self.stream.note)

    def read_from(self, partition: TopicPartition, offset: int, leader_epoch: int) -> None:
        self.sought.append(offset)
        self.read_no_more(partition)
        left = [each for each in self.scene.source if each.end > offset]
        self._reading = asyncio.get_running_loop().create_task(self._read(left))

    async def _read(self, left: list[Batch]) -> None:
        rng = self.scene.rng
        while left:
            count = rng.randrange(1, 8)
            self.stream.put(left[:count])
            left = left[count:]
            await asyncio.sleep(rng.random() / 10)

    def read_no_more(self, partition: TopicPartition) -> None:
        if self._reading is not None:
            self._reading.cancel()

    async def die(self) -> None:
        """Die as if by kill -9: what is in flight may or may not arrive."""
        await self.stream.stop()
        if self.scene.rng.random() < 0.5:
            self.target.close()


class Scene:
    """What a test works with."""

    def __init__(self, brokers: TargetBrokers, network: SimulatedNetwork, seed: int) -> None:
        self.brokers = brokers
        self.network = network
        self.rng = random.Random(seed)
        self.source: list[Batch] = []
        self.committed: OffsetAndMetadata | None = None
        self._count = 0

    def mirror(self) -> Mirror:
        self._count += 1
        return Mirror(self, self._count)

    @property
    def arrived(self) -> list[bytes | None]:
        return self.brokers.log().values()

    async def until(self, holds: Callable[[], bool], limit_s: float = 600) -> None:
        end_s = self.network.loop.time() + limit_s
        while not holds():
            assert self.network.loop.time() < end_s, "it did not happen"
            await asyncio.sleep(0.05)


def play(work: Callable[[Scene], Awaitable[T]], *, hosts: int = 1, seed: int = 1) -> T:
    """The result of `work`, in a world of its own."""
    loop = VirtualLoop(VirtualClock())
    network = SimulatedNetwork(loop, random.Random(seed))
    brokers = TargetBrokers(network, hosts, partitions=1)

    async def run() -> T:
        await brokers.start()
        return await work(Scene(brokers, network, seed))

    try:
        return loop.run_until_complete(run())
    finally:
        loop.close()
