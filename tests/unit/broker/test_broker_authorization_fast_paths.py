"""The same bytes get the same answers with fast paths and without, whoever sends them, at each
moment in a history of ACLs."""

from __future__ import annotations

import asyncio
import random

import pytest

from kdist.broker.broker import Broker
from kdist.broker.fast_path import fetch as fetch_path
from kdist.model import Principal
from kdist.network.connection import Connection
from kdist.protocol.fetch import API, FetchPartition, FetchRequest, FetchTopic
from kdist.protocol.frame import RequestHeader, decode_response, encode_request
from kdist.security.acls import (
    Acl,
    Operation,
    Pattern,
    PatternType,
    Permission,
    ResourceType,
)
from kdist.security.subjects import Subject
from kdist.testing.simulated_network import SimulatedNetwork
from kdist.testing.simulated_transport import Conditions
from tests.examples import first_of
from tests.simulator.cluster import Cluster, create, produce_request
from tests.unit.broker.broker_fetches import LISTENER, Asked
from tests.unit.broker.broker_fetches import Broker as FetchedBroker
from tests.unit.broker.broker_rights import ALICE, BOB, raw_of, started
from tests.unit.broker.test_broker_dispatch import Raw

STEPS = 150
FETCH_ID = 700
PEERS = [(ALICE, "10.0.0.1"), (ALICE, "10.0.0.2"), (BOB, "10.0.0.1")] * 2


class Client:
    """A connection, and the fetch session that it has."""

    def __init__(self, way: Raw) -> None:
        self.way = way
        self.session = (0, -1)
        self.seen = 0

    def produce(self, rng: random.Random) -> bytes:
        request = produce_request(
            "clicks", b"v" * rng.choice([1, 300]), acks=rng.choice([1, 1, 1, -1])
        )
        return bytes(encode_request(RequestHeader(0, 9, rng.randrange(99), "c"), request))

    def fetch(self, rng: random.Random) -> bytes:
        self.follow()
        if self.session == (0, -1) and rng.random() < 0.5:
            self.session = 0, 0
        part = FetchPartition(partition=0, fetch_offset=3, partition_max_bytes=1 << 20)
        topics = [FetchTopic(topic="clicks", partitions=[part])]
        named = not self.session[0] or rng.random() < 0.3
        request = FetchRequest(
            session_id=self.session[0],
            session_epoch=self.session[1],
            max_wait_ms=30,
            min_bytes=rng.choice([1, 1, 1, 4000]),
            topics=topics if named else [],
        )
        return bytes(encode_request(RequestHeader(1, 12, FETCH_ID, "c"), request))

    def follow(self) -> None:
        """Read on which session the client is, as a client does."""
        frames = self.way.frames()
        for each in frames[self.seen :]:
            if each[:4] != FETCH_ID.to_bytes(4, "big"):
                continue
            _, answer = decode_response(API, 12, each)
            if answer.error_code or not answer.session_id:
                self.session = 0, -1
            else:
                epoch = self.session[1] + 1 if self.session[0] == answer.session_id else 1
                self.session = answer.session_id, epoch
        self.seen = len(frames)


class Side:
    """A broker and its peers."""

    def __init__(self, seed: int, *, has_fast_paths: bool) -> None:
        self.cluster = Cluster(seed)
        still = Conditions(delay_ms_max=0, cut_share=0)
        self.cluster.network = SimulatedNetwork(self.cluster.loop, random.Random(seed), still)
        self.rng = random.Random(seed)
        self.has_fast_paths = has_fast_paths
        self.received: list[bytes] = []  # behind each step
        self.taken = 0

    async def play(self) -> None:
        broker = await started(self.cluster)
        self.cluster.processes[1]._some_ms = lambda: 2.5  # type: ignore[method-assign]
        await create(await self.cluster.client(), "clicks")
        (dispatch,) = broker.service._dispatches
        if not self.has_fast_paths:
            dispatch._fast_paths = {}
        self.count(broker)
        clients = [Client(await raw_of(self.cluster, *each)) for each in PEERS]
        for _ in range(STEPS):
            await self.step(broker, clients)
        assert not broker.failure.done()

    def count(self, broker: Broker) -> None:
        """Count the requests that a fast path takes."""
        (dispatch,) = broker.service._dispatches
        handle = dispatch.on_frame

        def on_frame(connection: Connection, frame: memoryview) -> bool:
            is_taken = handle(connection, frame)
            self.taken += is_taken
            return is_taken

        dispatch.on_frame = on_frame  # type: ignore[method-assign]

    async def step(self, broker: Broker, clients: list[Client]) -> None:
        rng = self.rng
        for number in rng.sample(range(len(clients)), 3):
            client, is_usual = clients[number], rng.random() < 0.9
            kind = client.produce if is_usual is (number < 3) else client.fetch
            client.way.transport.write(kind(rng))
        await asyncio.sleep(rng.choice([0, 0.01]))
        if rng.random() < 0.15:
            self.change(broker)
        await asyncio.sleep(0.1)
        self.received.append(b"|".join(bytes(each.way.received) for each in clients))

    def change(self, broker: Broker) -> None:
        rng = self.rng
        acls = {
            Acl(
                rng.choice(["User:alice", "User:alice", "User:bob", "User:*"]),
                rng.choice(["*", "*", "10.0.0.1", "10.0.0.2"]),
                rng.choice([Operation.READ, Operation.WRITE, Operation.ALL, Operation.ALL]),
                rng.choice([*[Permission.ALLOW] * 5, Permission.DENY]),
            )
            for _ in range(rng.randrange(5))
        }
        kind = rng.choice([PatternType.LITERAL, PatternType.PREFIXED])
        broker.authorizer.table.set(Pattern(ResourceType.TOPIC, "clicks", kind), acls)
        broker.authorizer.changed()


@pytest.mark.parametrize("seed", first_of(range(8)))
def test_answers_do_not_depend_on_the_fast_paths_whatever_acls_do(seed: int) -> None:
    short, long = (Side(seed, has_fast_paths=each) for each in (True, False))
    for side in (short, long):
        side.cluster.run(side.play())
    for step, (one, other) in enumerate(zip(short.received, long.received, strict=True)):
        assert one == other, f"the answers of step {step} differ"
    assert short.taken > STEPS / 4
    assert not long.taken


def test_scopes_are_few_and_go_with_what_they_recognise() -> None:
    asked = Asked(FetchedBroker())
    for number in range(fetch_path._SCOPES_MAX + 1):
        subject = Subject(Principal("User", str(number)), "")
        assert asked.register(scope=(subject, LISTENER)) is not None
    assert len(asked.path._templates) == 1
    asked.path.forget()
    assert not asked.path._templates
