"""Well-formed requests with senseless content, of every API for clients, do not end the broker.

Each is sent on a connection of its own; a broker may answer it or close that connection. None meets
a bug in its handler.
"""

from __future__ import annotations

import asyncio
import dataclasses
import random
import struct
from typing import Any

import pytest

from kdist.broker.broker import Broker
from kdist.protocol.api import Api
from kdist.protocol.envelope import encode_request
from kdist.protocol.headers import RequestHeader
from kdist.protocol.produce import ProducePartition, ProduceTopic
from kdist.protocol.schema import wire_fields
from kdist.protocol.versions import TABLE
from kdist.records.build import build_batch
from kdist.records.compression import Codec
from kdist.wire.crc32c import crc32c
from tests.simulator.cluster import Cluster, create, produce, records
from tests.unit.broker.test_broker_dispatch import Raw, raw
from tests.unit.protocol.protocol_samples import Case, sample

REQUESTS = 60
NAMES = ("clicks", "g", "__consumer_offsets", "consumer", "new", "")
NUMBERS = (-2, -1, 0, 1, 2, 3)
MAX_TIMESTAMP_AT, CRC_AT = 35, 17
ADVERTISED = [api for api in TABLE if not api.is_between_brokers]


def bomb() -> bytes:
    """A batch of a few KB with a record of 48 MiB, whose newest timestamp is not said."""
    batch = build_batch([bytes(48 << 20)], timestamp_ms=1_700_000_000_000, codec=Codec.ZSTD)
    struct.pack_into(">q", batch, MAX_TIMESTAMP_AT, -1)
    struct.pack_into(">I", batch, CRC_AT, crc32c(batch[CRC_AT + 4 :]))
    return bytes(batch)


def make_telling(value: Any, version: int, rng: random.Random) -> Any:
    """Replace half of a request's values with values that mean something to this broker."""
    if isinstance(value, list):
        return [make_telling(each, version, rng) for each in value]
    if dataclasses.is_dataclass(value):
        for field in wire_fields(type(value)):
            if field.is_in(version):
                now = make_telling(getattr(value, field.name), version, rng)
                setattr(value, field.name, now)
        return value
    if rng.randrange(2):
        return value
    if isinstance(value, str):
        return rng.choice(NAMES)
    if type(value) is int:
        return rng.choice(NUMBERS)
    return rng.choice((records(b"x"), BOMB)) if isinstance(value, bytes) else value


def frame(api: Api, rng: random.Random) -> bytes:
    version = rng.randint(api.oldest, api.newest)
    request = make_telling(sample(Case(api.request, version), rng), version, rng)
    if hasattr(request, "topics") and api.name in ("CreateTopics", "CreatePartitions"):
        for topic in request.topics:  # ten thousand partitions would be made, and take their time
            for field in ("num_partitions", "count"):
                if getattr(topic, field, 0) > max(NUMBERS):
                    setattr(topic, field, 3)
    if api.name == "Produce" and not rng.randrange(8):  # nearly all others name no partition
        partition = ProducePartition(index=0, records=BOMB)
        request.topic_data = [ProduceTopic(name="clicks", partition_data=[partition])]
        request.acks, request.transactional_id = 1, None
        version = max(version, 7)
    return bytes(encode_request(RequestHeader(api.key, version, 1, "hostile"), request))


BOMB = bomb()


def check_unharmed(broker: Broker) -> None:
    assert not broker.failure.done(), broker.failure
    assert not any(each.crashed for each in broker.measures.requests.values())


@pytest.mark.parametrize("api", ADVERTISED, ids=lambda api: str(api.name))
def test_senseless_requests_do_no_harm(api: Api) -> None:
    cluster = Cluster(seed=api.key)
    rng = random.Random(api.key)

    async def scenario() -> None:
        broker = await cluster.started()
        client = await cluster.client()
        await create(client, "clicks", 2)
        broker.service.creation.create_offsets_topic()
        ways: list[Raw] = []
        for _ in range(REQUESTS):
            way = await raw(cluster)
            way.send(frame(api, rng))
            ways.append(way)
            await asyncio.sleep(0.05)
        await asyncio.sleep(40)
        assert any(way.received for way in ways), "some were answered"
        check_unharmed(broker)
        made = await create(client, "still-there")
        assert made.error_code in (0, 36)
        assert (await produce(client, "still-there", b"x")).error_code == 0

    cluster.run(scenario())


def test_truncated_or_altered_requests_close_their_connection_at_worst() -> None:
    cluster = Cluster(seed=1)
    rng = random.Random(1)

    async def scenario() -> None:
        broker = await cluster.started()
        client = await cluster.client()
        await create(client, "clicks", 2)
        for _ in range(400):
            damaged = bytearray(frame(rng.choice(ADVERTISED), rng))
            for _ in range(rng.randint(1, 4)):
                damaged[rng.randrange(4, len(damaged))] = rng.randrange(256)
            way = await raw(cluster)
            way.send(bytes(damaged[: rng.randint(4, len(damaged))]))
            await asyncio.sleep(0.02)
        check_unharmed(broker)
        assert (await produce(client, "clicks", b"x")).error_code == 0

    cluster.run(scenario())
