"""Brokers in a simulated network for a producer: what they keep, and how they fail on demand.

Sequences are checked as Kafka does: a producer's batches in a partition must follow each other, the
last five are recognised as duplicates, and a new epoch begins at 0. A `Fault` says what happens to
one produce request.
"""

from __future__ import annotations

import asyncio
import random
import uuid
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple, TypeVar, cast

from kdist.client.producer.asynchronous import AsyncProducer
from kdist.client.producer.core import ProducerContext
from kdist.errors import Error, ProtocolError
from kdist.model import NO_PRODUCER_ID, ZERO_UUID, TopicPartition
from kdist.network.connection_state import CLOSED
from kdist.network.receiving import FrameReceiver
from kdist.network.tick import Tick
from kdist.protocol.api_versions import ApiVersion, ApiVersionsRequest, ApiVersionsResponse
from kdist.protocol.frame import decode_request, encode_response
from kdist.protocol.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from kdist.protocol.metadata import (
    MetadataBroker,
    MetadataPartitionResult,
    MetadataRequest,
    MetadataResponse,
    MetadataTopicResult,
)
from kdist.protocol.produce import (
    ProducePartitionResult,
    ProduceRequest,
    ProduceResponse,
    ProduceTopicResult,
)
from kdist.protocol.versions import TABLE
from kdist.records.batch import BatchHeader, read_header
from kdist.records.build import read_batch
from kdist.records.record import Record
from kdist.testing.simulated_network import SimulatedHost, SimulatedNetwork
from kdist.testing.virtual_clock import VirtualClock
from kdist.testing.virtual_loop import VirtualLoop

T = TypeVar("T")
PORT = 9092
REMEMBERED = 5


class Fault(NamedTuple):
    """What happens to a batch: is it written, is it answered, and with which error."""

    is_written: bool = True
    error: Error = Error.NONE
    is_cut: bool = False
    delay_s: float = 0.0


FINE = Fault()


class Kept:
    """One partition: its records, and the state of its producers."""

    def __init__(self) -> None:
        self.records: list[Record] = []
        self.batches: list[BatchHeader] = []
        self.producers: dict[int, tuple[int, int, deque[tuple[int, int]]]] = {}

    def values(self) -> list[bytes | None]:
        return [record.value for record in self.records]

    def append(self, data: bytes) -> tuple[Error, int]:
        """Write a batch, unless its epoch or sequence forbids it."""
        header = read_header(data, 0)
        records = read_batch(data)
        if header.producer_id != NO_PRODUCER_ID:
            error, offset = self._check(header)
            if error or offset >= 0:
                return error, offset
        base = len(self.records)
        self.records += [each._replace(offset=base + n) for n, each in enumerate(records)]
        self.batches.append(header)
        if header.producer_id != NO_PRODUCER_ID:
            known = self.producers[header.producer_id]
            known[2].append((header.base_sequence, base))
            self.producers[header.producer_id] = (
                header.producer_epoch,
                header.last_sequence + 1,
                known[2],
            )
        return Error.NONE, base

    def _check(self, header: BatchHeader) -> tuple[Error, int]:
        """An error, the offset of a duplicate's first copy, or -1: write it."""
        epoch, following, known = self.producers.get(header.producer_id, (-1, 0, deque()))
        if header.producer_epoch < epoch:
            return Error.INVALID_PRODUCER_EPOCH, -1
        if header.producer_epoch > epoch:
            if header.base_sequence and epoch >= 0:
                return Error.OUT_OF_ORDER_SEQUENCE_NUMBER, -1
            if header.base_sequence:
                return Error.UNKNOWN_PRODUCER_ID, -1
            self.producers[header.producer_id] = (
                header.producer_epoch,
                0,
                deque(maxlen=REMEMBERED),
            )
            return Error.NONE, -1
        for sequence, offset in known:
            if sequence == header.base_sequence:
                return Error.NONE, offset
        if header.base_sequence != following:
            return Error.OUT_OF_ORDER_SEQUENCE_NUMBER, -1
        return Error.NONE, -1


class Brokers:
    """A cluster of `hosts`, with whatever topics it is asked for. Owner: the loop."""

    def __init__(self, network: SimulatedNetwork, hosts: int, partitions: int = 2) -> None:
        self.loop = network.loop
        self.partitions = partitions
        self.kept: dict[TopicPartition, Kept] = {}
        self.leaders: dict[TopicPartition, int] = {}
        self.ids: dict[str, uuid.UUID] = {}
        self.fault: Callable[[TopicPartition, BatchHeader], Fault] = lambda *_: FINE
        self.topic_errors: dict[str, Error] = {}
        self.batch_bytes_max = 1 << 20
        self.requests: list[Any] = []
        self.epochs: dict[int, int] = {}
        self.hosts: list[SimulatedHost] = [network.host(f"b{n}") for n in range(hosts)]

    async def start(self) -> None:
        for number, host in enumerate(self.hosts):
            await host.listen(lambda n=number: Served(self, n), "", PORT)  # type: ignore[misc]

    def topic(self, name: str) -> MetadataTopicResult:
        error = self.topic_errors.get(name, Error.NONE)
        found = []
        for number in range(0 if error else self.partitions):
            partition = TopicPartition(name, number)
            self.kept.setdefault(partition, Kept())
            leader = self.leaders.setdefault(partition, number % len(self.hosts))
            found.append(
                MetadataPartitionResult(
                    error_code=0,
                    partition_index=number,
                    leader_id=leader,
                    replica_nodes=[0],
                    isr_nodes=[0],
                )
            )
        topic_id = self.ids.get(name, ZERO_UUID)
        return MetadataTopicResult(
            error_code=error.code, name=name, topic_id=topic_id, partitions=found
        )

    def answer(self, broker: int, request: Any) -> Any:
        """The answer to anything but a produce request."""
        self.requests.append(request)
        if isinstance(request, ApiVersionsRequest):
            return ApiVersionsResponse(
                error_code=0,
                api_keys=[
                    ApiVersion(api_key=api.key, min_version=api.oldest, max_version=api.newest)
                    for api in TABLE
                ],
            )
        if isinstance(request, MetadataRequest):
            names = [topic.name for topic in request.topics or ()]
            return MetadataResponse(
                brokers=[
                    MetadataBroker(node_id=n, host=host.name, port=PORT)
                    for n, host in enumerate(self.hosts)
                ],
                topics=[self.topic(name) for name in names if name],
            )
        assert isinstance(request, InitProducerIdRequest)
        number = request.producer_id if request.producer_id >= 0 else 1000 + len(self.epochs)
        self.epochs[number] = self.epochs.get(number, -1) + 1
        return InitProducerIdResponse(
            error_code=0, producer_id=number, producer_epoch=self.epochs[number]
        )

    def produce(self, broker: int, request: ProduceRequest) -> tuple[ProduceResponse, Fault]:
        """Write what the faults allow; returns the worst of the faults."""
        self.requests.append(request)
        worst = FINE
        topics = []
        for topic in request.topic_data:
            results = []
            for each in topic.partition_data:
                key = TopicPartition(topic.name, each.index)
                data = bytes(each.records)
                fault = self.fault(key, read_header(data, 0))
                error, offset = self._write(broker, key, data, fault)
                results.append(
                    ProducePartitionResult(
                        index=each.index, error_code=error.code, base_offset=offset
                    )
                )
                if not worst.is_cut and (fault.is_cut or fault.delay_s):
                    worst = fault
            topics.append(ProduceTopicResult(name=topic.name, partition_responses=results))
        return ProduceResponse(responses=topics), worst

    def _write(
        self, broker: int, key: TopicPartition, data: bytes, fault: Fault
    ) -> tuple[Error, int]:
        if self.leaders.get(key) != broker:
            return Error.NOT_LEADER_OR_FOLLOWER, -1
        if len(data) > self.batch_bytes_max:
            return Error.MESSAGE_TOO_LARGE, -1
        error, offset = Error.NONE, -1
        if fault.is_written:
            error, offset = self.kept[key].append(data)
        return (fault.error, -1) if fault.error else (error, offset)


class Served(FrameReceiver):
    """A broker's side of one connection. Answers leave in the order of the requests."""

    def __init__(self, brokers: Brokers, number: int) -> None:
        super().__init__(Tick(brokers.loop), 100 << 20)
        self._brokers = brokers
        self._number = number
        self._not_before_s = 0.0
        self._answers: deque[bytes] = deque()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self._enter(CLOSED)

    def frame_refused(self, error: ProtocolError) -> None:
        raise error

    def frame_received(self, frame: memoryview) -> None:
        if self.is_closed:
            return
        header, request = decode_request(bytes(frame))
        fault = FINE
        if isinstance(request, ProduceRequest):
            answer, fault = self._brokers.produce(self._number, request)
            if request.acks == 0:
                return
        else:
            answer = self._brokers.answer(self._number, request)
        if fault.is_cut:
            self._enter(CLOSED)
            self._transport.abort()
            return
        data = encode_response(header.api_version, header.correlation_id, answer)
        loop = self._brokers.loop
        self._not_before_s = max(self._not_before_s, loop.time() + fault.delay_s)
        # A loop runs callbacks that are due at the same time in any order.
        self._answers.append(bytes(data))
        loop.call_at(self._not_before_s, self._write)

    def _write(self) -> None:
        answer = self._answers.popleft()
        if not self.is_closed:
            self._transport.write(answer)


class Scene(NamedTuple):
    """What a test works with."""

    brokers: Brokers
    network: SimulatedNetwork
    clock: VirtualClock
    rng: random.Random

    def produces(self) -> list[ProduceRequest]:
        """The produce requests so far."""
        return [each for each in self.brokers.requests if isinstance(each, ProduceRequest)]

    def producer(self, **settings: Any) -> AsyncProducer:
        context = ProducerContext(self.network.host("client"), self.clock, self.rng)
        return AsyncProducer(context=context, **{"bootstrap_servers": f"b0:{PORT}"} | settings)


def play(
    work: Callable[[Scene], Awaitable[T]], *, hosts: int = 1, partitions: int = 1, seed: int = 1
) -> T:
    """The result of `work` on a cluster of its own in virtual time."""
    clock, rng = VirtualClock(), random.Random(seed)
    loop = VirtualLoop(clock)
    network = SimulatedNetwork(loop, rng)
    brokers = Brokers(network, hosts, partitions)

    async def run() -> T:
        await brokers.start()
        return await work(Scene(brokers, network, clock, rng))

    try:
        return loop.run_until_complete(run())
    finally:
        loop.close()
