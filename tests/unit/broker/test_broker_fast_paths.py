"""The same bytes get the same answers with fast paths and without, for one subject only."""

from __future__ import annotations

import asyncio
import errno
import random
from dataclasses import replace
from typing import Any

import pytest

from kdist.broker.broker import Broker
from kdist.broker.fast_path import Scope
from kdist.errors import Error
from kdist.model import Principal
from kdist.protocol.fetch import (
    FetchPartition,
    FetchPartitionResult,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    FetchTopicResult,
)
from kdist.protocol.frame import RequestHeader, decode_response, encode_request
from kdist.protocol.produce import ProducePartitionResult, ProduceResponse, ProduceTopicResult
from kdist.records.batch import HEADER_SIZE, seal
from kdist.replication.partition import Partition
from kdist.security.subjects import ANYBODY, Subject
from kdist.testing.simulated_network import SimulatedNetwork
from kdist.testing.simulated_transport import Conditions
from tests.examples import first_of
from tests.simulator.cluster import Cluster, create, produce_request
from tests.unit.broker.broker_fetches import Asked
from tests.unit.broker.broker_fetches import Broker as FetchedBroker
from tests.unit.broker.broker_produces import fields_of, frame_of
from tests.unit.broker.test_broker_dispatch import Raw, raw
from tests.unit.replication.replication_world import CLICKS, batch

PEERS = 4
STEPS = 150

SETTINGS: list[dict[str, Any]] = [
    {"max_message_bytes": 100},
    {"compression_type": "gzip"},
    {"cleanup_policy": frozenset({"compact"})},
    {"max_message_bytes": 2000, "segment_bytes": 5000},
    {"index_interval_bytes": 50},
    {"flush_before_expose": True, "flush_ms": 20},
    {},
]


def produce(rng: random.Random) -> bytes:
    sequences = [(-1, -1)] * 5 + [(rng.randrange(2), rng.randrange(9)) for _ in range(5)]
    values = [bytes(rng.choice([0, 10, 300])) for _ in range(rng.choice([1, 1, 3]))]
    data = batch(values, **fields_of(*rng.choice(sequences)))
    if rng.random() < 0.1:
        data[rng.randrange(HEADER_SIZE)] ^= 1 << rng.randrange(8)
        if rng.random() < 0.7:
            seal(data, 0, len(data))
    version, acks = 9, 1
    if rng.random() < 0.1:
        version, acks = rng.choice([2, 3, 8, 11]), rng.choice([-1, 0, 1])
    correlation_id = rng.randrange(99)
    frame = bytes(frame_of(data, version=version, acks=acks, correlation_id=correlation_id))
    return frame if rng.random() < 0.95 else frame + data


def fetch(rng: random.Random) -> bytes:
    offset, most = rng.randrange(60), 1 << 20
    part = FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=most)
    topics = [FetchTopic(topic=CLICKS.topic, partitions=[part])]
    bytes_min = rng.choice([1, 1, 2000])
    request = FetchRequest(max_wait_ms=30, min_bytes=bytes_min, max_bytes=most, topics=topics)
    header = RequestHeader(1, rng.choice([4, 12, 12, 12]), rng.randrange(99), "tests")
    return bytes(encode_request(header, request))[4:]


def blob(rng: random.Random, peer: int) -> bytes:
    """Some requests in one piece: half of the peers mostly produce, and the others mostly fetch."""
    frames = []
    for _ in range(rng.choice([1, 2, 8])):
        is_usual = rng.random() < 0.9
        frame = (produce if is_usual is (peer < PEERS // 2) else fetch)(rng)
        frames.append(len(frame).to_bytes(4, "big") + frame)
    return b"".join(frames)


def slow_down(_: Broker, partition: Partition) -> None:
    """Have a thread do the writes of the next while."""
    writers = partition._context.writers
    writers.thread_until_ns = writers.clock.monotonic_ns() + 50_000_000


def resign(_: Broker, partition: Partition) -> None:
    partition.resign()


def lead(broker: Broker, partition: Partition) -> None:
    state = partition.state
    state = state._replace(leader=broker.id, leader_epoch=state.leader_epoch + 1)
    partition.lead_or_follow(state, partition.replicas)


class Side:
    """A broker and its peers."""

    def __init__(self, seed: int, *, has_fast_paths: bool) -> None:
        self.cluster = Cluster(seed)
        still = Conditions(delay_ms_max=0, cut_share=0)
        self.cluster.network = SimulatedNetwork(self.cluster.loop, random.Random(seed), still)
        self.rng = random.Random(seed)
        self.has_fast_paths = has_fast_paths
        self.ways: list[Raw] = []
        self.received: list[bytes] = []  # behind each step

    async def play(self) -> None:
        self.broker = await self.cluster.started()
        # As long on both sides: a fetch is told of what a thread has appended by then.
        self.cluster.processes[1]._some_ms = lambda: 2.5  # type: ignore[method-assign]
        await create(await self.cluster.client(), CLICKS.topic)
        if not self.has_fast_paths:
            (dispatch,) = self.broker.service._dispatches
            dispatch._fast_paths = {}
        self.partition = self.broker.service.replicas.partitions[CLICKS]
        self.settings = self.partition.log.settings
        self.ways = [await raw(self.cluster) for _ in range(PEERS)]
        for _ in range(STEPS):
            await self.step()
        self.cluster.disks[1].heal()

    async def step(self) -> None:
        rng, disk = self.rng, self.cluster.disks[1]
        if not self.partition.is_leader:
            lead(self.broker, self.partition)
        if rng.random() < 0.1:
            self.partition.configure(replace(self.settings, **rng.choice(SETTINGS)))
        if rng.random() < 0.1:
            rng.choice([slow_down, resign, lead])(self.broker, self.partition)
        disk.heal()
        if rng.random() < 0.1:
            disk.fail(errno.ENOSPC, when=lambda call: call.name in ("write", "create"))
        for peer in rng.sample(range(PEERS), rng.choice([1, 2, 3])):
            if self.ways[peer].is_closed:
                self.ways[peer] = await raw(self.cluster)
            self.ways[peer].send(blob(rng, peer))
        await asyncio.sleep(0.1)
        self.received.append(b"".join(bytes(way.received) for way in self.ways))
        assert not self.broker.failure.done()

    def log(self) -> list[bytes]:
        return [each.file.read(0, each.size) for each in self.partition.log.segments]


MALLORY = Subject(Principal("User", "mallory"), "")
REFUSED = Error.TOPIC_AUTHORIZATION_FAILED


def fetch_request() -> FetchRequest:
    part = FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1 << 20)
    topics = [FetchTopic(topic="clicks", partitions=[part])]
    return FetchRequest(max_wait_ms=0, min_bytes=1, max_bytes=1 << 20, topics=topics)


def refusal_of(request: Any) -> Any:
    if isinstance(request, FetchRequest):
        refused = FetchPartitionResult(
            partition_index=0, error_code=REFUSED, high_watermark=-1, records=b""
        )
        return FetchResponse(responses=[FetchTopicResult(topic="clicks", partitions=[refused])])
    result = ProducePartitionResult(index=0, error_code=REFUSED, base_offset=-1)
    return ProduceResponse(
        responses=[ProduceTopicResult(name="clicks", partition_responses=[result])]
    )


def error_in(response: Any) -> int:
    (topic,) = response.responses
    (result,) = (
        topic.partitions if isinstance(topic, FetchTopicResult) else topic.partition_responses
    )
    return int(result.error_code)


def refuse_mallory(broker: Broker, key: int) -> None:
    """As an authorizer would, ahead of the handler."""
    routes: Any = broker.service._routes
    handler = routes.direct[key]

    def authorize(request: Any, call: Any) -> None:
        if call.connection.subject is MALLORY:
            call.answer(refusal_of(request))
        else:
            handler(request, call)

    routes.direct[key] = authorize


async def connect(cluster: Cluster, broker: Broker, subject: Subject) -> Raw:
    way = await raw(cluster)
    await asyncio.sleep(0.1)
    (listener,) = broker._gateway._listeners
    max(listener.connections, key=lambda each: each.number).subject = subject
    return way


@pytest.mark.parametrize("seed", first_of(range(3)))
def test_answers_and_logs_do_not_depend_on_the_fast_paths(seed: int) -> None:
    short, long = (Side(seed, has_fast_paths=each) for each in (True, False))
    for side in (short, long):
        side.cluster.run(side.play())
    for step, (one, other) in enumerate(zip(short.received, long.received, strict=True)):
        assert one == other, f"the answers of step {step} differ"
    assert short.log() == long.log()


@pytest.mark.parametrize(
    ("request_", "version"), [(produce_request("clicks", b"x", acks=1), 9), (fetch_request(), 11)]
)
def test_a_refused_client_is_refused_again_whoever_else_sends_the_same(
    request_: Any, version: int
) -> None:
    cluster, api = Cluster(), request_.api

    async def scenario() -> None:
        broker = await cluster.started()
        await create(await cluster.client(), "clicks")
        refuse_mallory(broker, api.key)
        for subject, error in ((MALLORY, REFUSED), (ANYBODY, Error.NONE), (MALLORY, REFUSED)):
            way = await connect(cluster, broker, subject)
            for number in range(3):
                header = RequestHeader(api.key, version, number, "a client")
                way.send(bytes(encode_request(header, request_)))
                await cluster.until(lambda way=way, number=number: len(way.frames()) > number)
            answers = [decode_response(api, version, each)[1] for each in way.frames()]
            assert [error_in(each) for each in answers] == [error] * 3

    cluster.run(scenario())


@pytest.mark.parametrize("scope", [(MALLORY, "PLAINTEXT"), (ANYBODY, "OTHER")])
def test_templates_are_shared_within_a_subject_and_a_listener_only(scope: Scope) -> None:
    asked = Asked(FetchedBroker())
    one, same, other = asked.register(), asked.register(), asked.register(scope=scope)
    assert one is not None
    assert same is not None
    assert other is not None
    assert one[2] is same[2] is not other[2]
