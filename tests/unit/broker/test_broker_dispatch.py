"""From frames to handlers: versions, malformed bytes, senseless content, the order of answers."""

from __future__ import annotations

import asyncio
import dataclasses
import random
import struct
from typing import Any

import pytest

from kdist.broker.broker import Broker
from kdist.broker.handlers import api_versions
from kdist.errors import DiskFailed, Error
from kdist.protocol.api import Api
from kdist.protocol.api_versions import ApiVersionsRequest
from kdist.protocol.create_partitions import CreatePartitionsRequest, GrownTopic
from kdist.protocol.create_topics import CreateTopicsRequest, NewTopic
from kdist.protocol.delete_topics import DeleteTopicsRequest, TopicToDelete
from kdist.protocol.describe_configs import TOPIC, DescribeConfigsRequest, DescribedResource
from kdist.protocol.frame import RequestHeader, decode_response, encode_request
from kdist.protocol.heartbeat import HeartbeatRequest
from kdist.protocol.incremental_alter_configs import (
    SET,
    ChangedResource,
    IncrementalAlterConfigsRequest,
    SettingChange,
)
from kdist.protocol.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from kdist.protocol.metadata import MetadataRequest, MetadataTopic
from kdist.protocol.produce import ProducePartition, ProduceTopic
from kdist.protocol.schema import wire_fields
from kdist.protocol.versions import TABLE, advertised_versions, api_for
from kdist.records.build import build_batch
from kdist.records.compression import Codec
from kdist.wire.crc32c import crc32c
from tests.refusals import refused
from tests.simulator.cluster import (
    PORT,
    Cluster,
    create,
    produce,
    produce_request,
    records,
)
from tests.unit.network.network_world import RawPeer
from tests.unit.protocol.protocol_samples import Case, sample


class Raw(RawPeer):
    """A connection that sends bytes as they are."""

    def send(self, *contents: bytes) -> None:
        self.transport.write(b"".join(contents))


async def raw(cluster: Cluster) -> Raw:
    return await cluster.network.host("raw").connect(Raw, "m1", PORT)


def frame(key: int, version: int, body: bytes = b"") -> bytes:
    """A request with a header of version 1 and correlation id 7."""
    content = struct.pack(">hhih", key, version, 7, -1) + body
    return struct.pack(">i", len(content)) + content


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


def senseless_frame(api: Api, rng: random.Random) -> bytes:
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


async def test_every_api_of_the_version_table_is_wired(cluster: Cluster) -> None:
    broker = await cluster.started()
    routes = broker.service._routes
    wired = {*routes.direct, *routes.waiting}
    assert wired == {api.key for api in TABLE}


async def test_api_versions_lists_the_apis_of_the_listener_in_every_version(
    cluster: Cluster,
) -> None:
    await cluster.started()
    client = await cluster.client()
    for version in range(5):
        request = ApiVersionsRequest(client_software_name="t", client_software_version="1")
        answer = await client.send(request, version)
        assert answer.error_code == 0
        assert answer.api_keys == advertised_versions(to_brokers=True)


async def test_an_unknown_version_of_api_versions_is_answered_in_version_0(
    cluster: Cluster,
) -> None:
    await cluster.started()
    way = await raw(cluster)
    way.send(frame(18, 99))
    await cluster.until(lambda: way.received)
    correlation_id, answer = decode_response(api_for(18), 0, way.frames()[0])
    assert (correlation_id, answer.error_code) == (7, Error.UNSUPPORTED_VERSION)
    (own,) = answer.api_keys
    assert (own.api_key, own.min_version, own.max_version) == (18, 0, 4)
    assert not way.is_closed


def test_software_without_a_name_is_an_invalid_request() -> None:
    answer = api_versions.answer(ApiVersionsRequest(client_software_name=" "), 3, to_brokers=False)
    assert answer.error_code == Error.INVALID_REQUEST


@pytest.mark.parametrize(
    "hostile",
    [
        frame(3, 99),  # an unknown version
        frame(999, 0),  # an unknown API
        frame(3, 1, b"\x7f\xff\xff\xff"),  # two billion topics, none of which come
        frame(0, 3, b"\0"),  # a produce that ends too soon
        struct.pack(">i", -5),
        struct.pack(">i", 2_000_000_000),
    ],
)
async def test_malformed_bytes_close_their_connection_only(
    cluster: Cluster, hostile: bytes
) -> None:
    broker = await cluster.started()
    client = await cluster.client()
    way = await raw(cluster)
    way.send(hostile)
    await cluster.until(lambda: way.is_closed)
    assert not way.received
    assert (await client.send(MetadataRequest(topics=[]), 1)).controller_id == 1
    assert not broker.failure.done()


async def test_answers_come_in_the_order_of_requests(cluster: Cluster) -> None:
    await cluster.started()
    client = await cluster.client()
    await create(client, "clicks")
    way = await raw(cluster)
    for number in range(20):
        # Metadata takes a task, and ends later than what is answered at once.
        request = MetadataRequest(topics=[]) if number % 2 else ApiVersionsRequest()
        version, key = (1, 3) if number % 2 else (0, 18)
        way.send(bytes(encode_request(RequestHeader(key, version, number, "t"), request)))
    await cluster.until(lambda: len(way.frames()) == 20)
    assert [struct.unpack_from(">i", each)[0] for each in way.frames()] == list(range(20))


async def test_a_request_sees_the_effect_of_earlier_ones_in_the_same_tick(cluster: Cluster) -> None:
    """Produces that wait for the tick's end are settled before anything else looks at a log."""
    await cluster.started()
    client = await cluster.client()
    await create(client, "clicks")
    await produce(client, "clicks", b"0", acks=1)
    way, sent = await raw(cluster), b""
    for number in range(12):
        request: Any = produce_request("clicks", b"x", acks=-1 if number % 6 == 4 else 1)
        version, key = 9, 0
        if number % 3 == 2:
            request, version, key = end_request("clicks"), 1, 2
        sent += bytes(encode_request(RequestHeader(key, version, number, "t"), request))
    way.send(sent)
    await cluster.until(lambda: len(way.frames()) == 12)
    offsets = []
    for number, each in enumerate(way.frames()):
        if number % 3 == 2:
            _, ends = decode_response(api_for(2), 1, each)
            offsets.append(ends.topics[0].partitions[0].offset)
        else:
            correlation_id, answer = decode_response(api_for(0), 9, each)
            assert correlation_id == number
            offsets.append(answer.responses[0].partition_responses[0].base_offset)
    assert offsets == [1, 2, 3, 3, 4, 5, 5, 6, 7, 7, 8, 9]


async def test_a_request_behind_a_change_sees_its_effect(cluster: Cluster) -> None:
    """All in one piece, without waiting for any answer."""
    await cluster.started()
    new = NewTopic(
        name="clicks", num_partitions=1, replication_factor=1, assignments=[], configs=[]
    )
    retention = SettingChange(name="retention.ms", config_operation=SET, value="60000")
    clicks = {"resource_type": TOPIC, "resource_name": "clicks"}
    changed = ChangedResource(**clicks, configs=[retention])
    described = DescribedResource(**clicks, configuration_keys=["retention.ms"])
    grown = GrownTopic(name="clicks", count=2, assignments=None)
    asked = MetadataRequest(topics=[MetadataTopic(name="clicks")], allow_auto_topic_creation=False)
    requests: list[tuple[Any, int]] = [
        (CreateTopicsRequest(topics=[new], timeout_ms=10_000), 7),
        (produce_request("clicks", b"x", acks=1), 9),
        (CreatePartitionsRequest(topics=[grown], timeout_ms=10_000, validate_only=False), 3),
        (asked, 12),
        (IncrementalAlterConfigsRequest(resources=[changed], validate_only=False), 1),
        (DescribeConfigsRequest(resources=[described]), 4),
        (DeleteTopicsRequest(topics=[TopicToDelete(name="clicks")], timeout_ms=10_000), 6),
        (asked, 12),
    ]
    way, sent = await raw(cluster), b""
    for number, (request, version) in enumerate(requests):
        header = RequestHeader(request.api.key, version, number, "t")
        sent += bytes(encode_request(header, request))
    way.send(sent)
    await cluster.until(lambda: len(way.frames()) == len(requests))
    answers = [
        decode_response(request.api, version, each)[1]
        for (request, version), each in zip(requests, way.frames(), strict=True)
    ]
    made, produced, grew, seen, altered, settings, deleted, gone = answers
    assert made.topics[0].error_code == 0
    assert produced.responses[0].partition_responses[0].error_code == 0
    assert grew.results[0].error_code == 0
    assert len(seen.topics[0].partitions) == 2
    assert altered.responses[0].error_code == 0
    assert settings.results[0].configs[0].value == "60000"
    assert deleted.responses[0].error_code == 0
    assert gone.topics[0].error_code == Error.UNKNOWN_TOPIC_OR_PARTITION


async def test_a_disk_failure_under_a_turns_produces_ends_the_broker_and_answers_none(
    cluster: Cluster,
) -> None:
    broker = await cluster.started()
    client = await cluster.client()
    await create(client, "clicks")
    await produce(client, "clicks", b"0", acks=1)
    cluster.disks[1].fail(when=lambda call: call.name == "write" and ".log" in call.path)
    await client.tell(produce_request("clicks", b"x", acks=1), 9)
    await cluster.until(broker.failure.done)
    assert isinstance(broker.failure.result(), DiskFailed)


def end_request(topic: str) -> ListOffsetsRequest:
    """Where does partition 0 end?"""
    partition = ListOffsetsPartition(partition_index=0, timestamp=-1)
    return ListOffsetsRequest(
        replica_id=-1, topics=[ListOffsetsTopic(name=topic, partitions=[partition])]
    )


async def test_a_produce_without_acks_has_no_answer_and_is_in_the_log(cluster: Cluster) -> None:
    broker = await cluster.started()
    client = await cluster.client()
    await create(client, "clicks")
    await client.tell(produce_request("clicks", b"a", acks=0), 7)
    log = next(iter(broker.service.directory.logs.values()))
    await cluster.until(lambda: log.end_offset == 1)
    assert (await produce(client, "clicks", b"b")).base_offset == 1


async def test_a_failed_produce_without_acks_closes_the_connection(cluster: Cluster) -> None:
    await cluster.started()
    client = await cluster.client()
    await client.tell(produce_request("nobody-knows-it", b"a", acks=0), 7)
    await cluster.until(lambda: client.is_closed)


async def test_requests_before_a_failed_produce_without_acks_are_answered(cluster: Cluster) -> None:
    broker = await cluster.started()
    await create(await cluster.client(), "clicks")
    peer = await raw(cluster)
    asked = [("clicks", 1), ("clicks", 1), ("nobody-knows-it", 0), ("clicks", 1)]
    peer.send(
        b"".join(
            encode_request(
                RequestHeader(0, 7, correlation_id, "c"),
                produce_request(topic, b"a", acks=acks),
            )
            for correlation_id, (topic, acks) in enumerate(asked)
        )
    )
    await cluster.until(lambda: peer.is_closed)
    assert [frame[:4] for frame in peer.frames()] == [b"\0\0\0\0", b"\0\0\0\1"]
    assert next(iter(broker.service.directory.logs.values())).end_offset == 2


async def test_a_handler_that_fails_ends_the_broker(cluster: Cluster) -> None:
    broker = await cluster.started()
    client = await cluster.client()

    async def fail(*_: object) -> None:
        raise AssertionError("a bug")

    broker.service._routes.waiting[3] = fail  # type: ignore[index]
    asking = asyncio.ensure_future(client.send(MetadataRequest(topics=[]), 1))
    assert str(await broker.failure) == "a bug"
    await broker.abandon()
    with refused(Error.NETWORK_EXCEPTION):
        await asking


def test_requests_and_errors_are_counted_by_api() -> None:
    cluster = Cluster()

    async def scenario() -> Broker:
        broker = await cluster.started()
        client = await cluster.client()
        await create(client, "clicks")
        await produce(client, "clicks", b"a")
        heartbeat = HeartbeatRequest(group_id="g", generation_id=1, member_id="m")
        assert (await client.send(heartbeat, 0)).error_code == Error.NOT_COORDINATOR
        return broker

    requests = cluster.run(scenario()).measures.requests
    produced, heartbeats = requests[("Produce",)], requests[("Heartbeat",)]
    assert (produced.answered, produced.failed, produced.seconds.count) == (1, 0, 1)
    assert (heartbeats.answered, heartbeats.failed) == (1, 1)


async def test_a_batch_is_a_view_and_its_own_copy_outlives_the_tick(cluster: Cluster) -> None:
    """Two produces of one connection in one tick use the same receive space."""
    broker = await cluster.started()
    client = await cluster.client()
    await create(client, "clicks")
    first = asyncio.ensure_future(produce(client, "clicks", b"a" * 500))
    second = asyncio.ensure_future(produce(client, "clicks", b"b" * 500))
    assert [(await first).base_offset, (await second).base_offset] == [0, 1]
    log = next(iter(broker.service.directory.logs.values()))
    assert log.size == 2 * len(records(b"a" * 500))


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
            way.send(senseless_frame(api, rng))
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
            damaged = bytearray(senseless_frame(rng.choice(ADVERTISED), rng))
            for _ in range(rng.randint(1, 4)):
                damaged[rng.randrange(4, len(damaged))] = rng.randrange(256)
            way = await raw(cluster)
            way.send(bytes(damaged[: rng.randint(4, len(damaged))]))
            await asyncio.sleep(0.02)
        check_unharmed(broker)
        assert (await produce(client, "clicks", b"x")).error_code == 0

    cluster.run(scenario())
