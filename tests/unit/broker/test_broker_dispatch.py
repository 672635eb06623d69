"""From frames to handlers: versions, unknown requests, malformed bytes, the order of answers."""

from __future__ import annotations

import asyncio
import struct
from typing import Any

import pytest

from kdist.broker.broker import Broker
from kdist.broker.handlers import api_versions
from kdist.errors import ApiError, DiskFailed, Error
from kdist.protocol.api_versions import ApiVersionsRequest
from kdist.protocol.create_partitions import CreatePartitionsRequest, GrownTopic
from kdist.protocol.create_topics import CreateTopicsRequest, NewTopic
from kdist.protocol.delete_topics import DeleteTopicsRequest, TopicToDelete
from kdist.protocol.describe_configs import TOPIC, DescribeConfigsRequest, DescribedResource
from kdist.protocol.envelope import decode_response, encode_request
from kdist.protocol.headers import RequestHeader
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
from kdist.protocol.versions import TABLE, advertised_versions, api_for
from tests.simulator.cluster import (
    PORT,
    Cluster,
    create,
    produce,
    produce_request,
    records,
)


class Raw(asyncio.BufferedProtocol):
    """A connection that sends bytes, and keeps what comes back."""

    def __init__(self) -> None:
        self.received = bytearray()
        self.is_closed = False
        self._space = bytearray(1 << 16)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport

    def get_buffer(self, sizehint: int) -> bytearray:
        return self._space

    def buffer_updated(self, nbytes: int) -> None:
        self.received += self._space[:nbytes]

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_closed = True

    def send(self, frame: bytes) -> None:
        self.transport.write(frame)  # type: ignore[attr-defined]

    def frames(self) -> list[bytes]:
        """The whole answers, without their sizes."""
        found, start = [], 0
        while start + 4 <= len(self.received):
            (size,) = struct.unpack_from(">i", self.received, start)
            found.append(bytes(self.received[start + 4 : start + 4 + size]))
            start += 4 + size
        return found


async def raw(cluster: Cluster) -> Raw:
    return await cluster.network.host("raw").connect(Raw, "m1", PORT)


def frame(key: int, version: int, body: bytes = b"") -> bytes:
    """A request with a header of version 1 and correlation id 7."""
    content = struct.pack(">hhih", key, version, 7, -1) + body
    return struct.pack(">i", len(content)) + content


def test_every_api_of_the_version_table_is_wired() -> None:
    cluster = Cluster()

    async def scenario() -> None:
        broker = await cluster.started()
        routes = broker.service._routes
        wired = {*routes.direct, *routes.waiting}
        assert wired == {api.key for api in TABLE}

    cluster.run(scenario())


def test_api_versions_lists_the_apis_of_the_listener_in_every_version() -> None:
    cluster = Cluster()

    async def scenario() -> None:
        await cluster.started()
        client = await cluster.client()
        for version in range(5):
            request = ApiVersionsRequest(client_software_name="t", client_software_version="1")
            answer = await client.send(request, version)
            assert answer.error_code == 0
            assert answer.api_keys == advertised_versions(to_brokers=True)

    cluster.run(scenario())


def test_an_unknown_version_of_api_versions_is_answered_in_version_0() -> None:
    cluster = Cluster()

    async def scenario() -> None:
        await cluster.started()
        way = await raw(cluster)
        way.send(frame(18, 99))
        await cluster.until(lambda: way.received)
        correlation_id, answer = decode_response(api_for(18), 0, way.frames()[0])
        assert (correlation_id, answer.error_code) == (7, Error.UNSUPPORTED_VERSION)
        (own,) = answer.api_keys
        assert (own.api_key, own.min_version, own.max_version) == (18, 0, 4)
        assert not way.is_closed

    cluster.run(scenario())


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
def test_malformed_bytes_close_their_connection_only(hostile: bytes) -> None:
    cluster = Cluster()

    async def scenario() -> None:
        broker = await cluster.started()
        client = await cluster.client()
        way = await raw(cluster)
        way.send(hostile)
        await cluster.until(lambda: way.is_closed)
        assert not way.received
        assert (await client.send(MetadataRequest(topics=[]), 1)).controller_id == 1
        assert not broker.failure.done()

    cluster.run(scenario())


def test_answers_come_in_the_order_of_requests() -> None:
    cluster = Cluster()

    async def scenario() -> None:
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

    cluster.run(scenario())


def test_a_request_sees_the_effect_of_earlier_ones_in_the_same_tick() -> None:
    """Produces that wait for the tick's end are settled before anything else looks at a log."""
    cluster = Cluster()

    async def scenario() -> None:
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

    cluster.run(scenario())


def test_a_request_behind_a_change_sees_its_effect() -> None:
    """All in one piece, without waiting for any answer."""
    cluster = Cluster()

    async def scenario() -> None:
        await cluster.started()
        new = NewTopic(
            name="clicks", num_partitions=1, replication_factor=1, assignments=[], configs=[]
        )
        retention = SettingChange(name="retention.ms", config_operation=SET, value="60000")
        clicks = {"resource_type": TOPIC, "resource_name": "clicks"}
        changed = ChangedResource(**clicks, configs=[retention])
        described = DescribedResource(**clicks, configuration_keys=["retention.ms"])
        grown = GrownTopic(name="clicks", count=2, assignments=None)
        asked = MetadataRequest(
            topics=[MetadataTopic(name="clicks")], allow_auto_topic_creation=False
        )
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

    cluster.run(scenario())


def test_a_disk_failure_under_a_turns_produces_ends_the_broker_and_answers_none() -> None:
    cluster = Cluster()

    async def scenario() -> None:
        broker = await cluster.started()
        client = await cluster.client()
        await create(client, "clicks")
        await produce(client, "clicks", b"0", acks=1)
        cluster.disks[1].fail(when=lambda call: call.name == "write" and ".log" in call.path)
        await client.tell(produce_request("clicks", b"x", acks=1), 9)
        await cluster.until(broker.failure.done)
        assert isinstance(broker.failure.result(), DiskFailed)

    cluster.run(scenario())


def end_request(topic: str) -> ListOffsetsRequest:
    """Where does partition 0 end?"""
    partition = ListOffsetsPartition(partition_index=0, timestamp=-1)
    return ListOffsetsRequest(
        replica_id=-1, topics=[ListOffsetsTopic(name=topic, partitions=[partition])]
    )


def test_a_produce_without_acks_has_no_answer_and_is_in_the_log() -> None:
    cluster = Cluster()

    async def scenario() -> None:
        broker = await cluster.started()
        client = await cluster.client()
        await create(client, "clicks")
        await client.tell(produce_request("clicks", b"a", acks=0), 7)
        log = next(iter(broker.service.directory.logs.values()))
        await cluster.until(lambda: log.end_offset == 1)
        assert (await produce(client, "clicks", b"b")).base_offset == 1

    cluster.run(scenario())


def test_a_failed_produce_without_acks_closes_the_connection() -> None:
    cluster = Cluster()

    async def scenario() -> None:
        await cluster.started()
        client = await cluster.client()
        await client.tell(produce_request("nobody-knows-it", b"a", acks=0), 7)
        await cluster.until(lambda: client.is_closed)

    cluster.run(scenario())


def test_requests_before_a_failed_produce_without_acks_are_answered() -> None:
    cluster = Cluster()

    async def scenario() -> None:
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

    cluster.run(scenario())


def test_a_handler_that_fails_ends_the_broker() -> None:
    cluster = Cluster()

    async def scenario() -> None:
        broker = await cluster.started()
        client = await cluster.client()

        async def fail(*_: object) -> None:
            raise AssertionError("a bug")

        broker.service._routes.waiting[3] = fail  # type: ignore[index]
        asking = asyncio.ensure_future(client.send(MetadataRequest(topics=[]), 1))
        assert str(await broker.failure) == "a bug"
        await broker.abandon()
        with pytest.raises(ApiError, match="NETWORK_EXCEPTION"):
            await asking

    cluster.run(scenario())


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


def test_a_batch_is_a_view_and_its_own_copy_outlives_the_tick() -> None:
    """Two produces of one connection in one tick use the same receive space."""
    cluster = Cluster()

    async def scenario() -> None:
        broker = await cluster.started()
        client = await cluster.client()
        await create(client, "clicks")
        first = asyncio.ensure_future(produce(client, "clicks", b"a" * 500))
        second = asyncio.ensure_future(produce(client, "clicks", b"b" * 500))
        assert [(await first).base_offset, (await second).base_offset] == [0, 1]
        log = next(iter(broker.service.directory.logs.values()))
        assert log.size == 2 * len(records(b"a" * 500))

    cluster.run(scenario())
