"""Large requests and answers: decoded and made in steps, for as much memory as one may take."""

from __future__ import annotations

import asyncio
import struct
from typing import Any

import pytest

from kdist.broker.dispatch import Dispatch
from kdist.errors import Error
from kdist.protocol import codec_source
from kdist.protocol.fetch import FetchPartition, FetchRequest, FetchTopic
from kdist.protocol.frame import RequestHeader, decode_response, encode_request
from kdist.protocol.heartbeat import HeartbeatRequest
from kdist.protocol.metadata import MetadataRequest, MetadataTopic
from kdist.protocol.versions import api_for
from tests.simulator.cluster import Cluster, create, produce
from tests.unit.broker.test_broker_dispatch import Raw, raw

NAMES = 5000
FETCH, METADATA, HEARTBEAT = 1, 3, 12


def many_names(number: int, count: int = NAMES) -> bytes:
    topics = [MetadataTopic(name=f"clicks-{topic}") for topic in range(count)]
    request = MetadataRequest(topics=topics, allow_auto_topic_creation=False)
    return bytes(encode_request(RequestHeader(METADATA, 9, number, "c"), request))


def heartbeat(number: int) -> bytes:
    request = HeartbeatRequest(group_id="g", generation_id=1, member_id="m")
    return bytes(encode_request(RequestHeader(HEARTBEAT, 4, number, "c"), request))


def numbers_of(way: Raw) -> list[int]:
    return [struct.unpack_from(">i", frame)[0] for frame in way.frames()]


async def test_a_large_request_is_answered_whole_and_in_its_place(cluster: Cluster) -> None:
    await cluster.started()
    await create(await cluster.client(), "clicks-7")
    way = await raw(cluster)
    way.send(heartbeat(1) + many_names(2) + heartbeat(3) + many_names(4) + heartbeat(5))
    await cluster.until(lambda: len(way.frames()) == 5)
    assert numbers_of(way) == [1, 2, 3, 4, 5]
    for frame in (way.frames()[1], way.frames()[3]):
        answer = decode_response(api_for(METADATA), 9, frame)[1]
        found = [topic.name for topic in answer.topics if not topic.error_code]
        assert (len(answer.topics), found) == (NAMES, ["clicks-7"])


def test_each_step_is_a_callback_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(codec_source, "STEP_BYTES", 0)
    monkeypatch.setattr("kdist.protocol.compiler._STEPPED", {})
    cluster, steps = Cluster(), []
    go_on = Dispatch._go_on_decoding

    def counting(*arguments: Any) -> None:
        steps.append(1)
        go_on(*arguments)

    monkeypatch.setattr(Dispatch, "_go_on_decoding", counting)

    async def scenario() -> None:
        await cluster.started()
        way = await raw(cluster)
        way.send(many_names(1))
        await cluster.until(lambda: len(way.frames()) == 1)
        assert len(steps) > NAMES

    cluster.run(scenario())


@pytest.mark.parametrize("cut", [100, 40_000])
async def test_a_large_request_that_is_malformed_ends_its_connection_alone(
    cluster: Cluster, cut: int
) -> None:
    broker = await cluster.started()
    client = await cluster.client()
    await create(client, "clicks")
    way = await raw(cluster)
    body = many_names(2)[4:-cut]
    way.send(heartbeat(1) + struct.pack(">i", len(body)) + body + heartbeat(3))
    await cluster.until(lambda: way.is_closed)
    assert numbers_of(way) == [1]
    assert not broker.failure.done()
    assert (await produce(client, "clicks", b"x")).error_code == 0


async def test_a_large_request_is_answered_before_what_came_with_it_ends_its_connection(
    cluster: Cluster,
) -> None:
    broker = await cluster.started()
    way = await raw(cluster)
    await asyncio.sleep(1)
    [listener] = broker._gateway._listeners
    connection = max(listener.connections, key=lambda each: each.number)
    received = many_names(1, 4000) + b"\x7f\xff\xff\xff" + bytes(10)
    connection.get_buffer(-1)[: len(received)] = received
    connection.buffer_updated(len(received))
    await cluster.until(lambda: way.is_closed)
    assert numbers_of(way) == [1]


async def test_a_large_request_whose_peer_goes_meanwhile_is_dropped(cluster: Cluster) -> None:
    broker = await cluster.started()
    before = broker.measures.network.open_connections
    ways = [await raw(cluster) for _ in range(4)]
    for number, way in enumerate(ways):
        way.send(many_names(1))
        await asyncio.sleep(number / 1000)
        way.transport.abort()  # type: ignore[attr-defined]
    await asyncio.sleep(1)
    assert not broker.failure.done()
    assert broker.measures.network.open_connections == before


async def test_a_large_request_of_an_unknown_version_is_answered_if_it_asks_for_versions(
    cluster: Cluster,
) -> None:
    await cluster.started()
    way = await raw(cluster)
    content = struct.pack(">hhih", 18, 99, 7, -1) + bytes(100_000)
    way.send(struct.pack(">i", len(content)) + content + heartbeat(8))
    await cluster.until(lambda: len(way.frames()) == 2)
    answer = decode_response(api_for(18), 0, way.frames()[0])[1]
    assert answer.error_code == Error.UNSUPPORTED_VERSION
    assert numbers_of(way) == [7, 8]


def test_a_client_that_does_not_read_has_no_more_than_a_few_answers_converted_for_it() -> None:
    cluster, count = Cluster(), 12

    def old_fetch(number: int) -> bytes:
        part = FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1 << 21)
        topic = FetchTopic(topic="clicks", partitions=[part])
        request = FetchRequest(max_wait_ms=0, min_bytes=1, max_bytes=1 << 21, topics=[topic])
        return bytes(encode_request(RequestHeader(FETCH, 3, number, "c"), request))

    async def scenario() -> None:
        broker = await cluster.started()
        client = await cluster.client()
        await create(client, "clicks")
        for _ in range(2):
            assert (await produce(client, "clicks", bytes(900_000))).error_code == 0
        way = await raw(cluster)
        way.transport.pause_reading()  # type: ignore[attr-defined]
        way.send(b"".join(map(old_fetch, range(count))))
        await asyncio.sleep(5)
        [listener] = broker._gateway._listeners
        waiting = sum(each._sender.waiting_bytes for each in listener.connections)
        assert 1 << 20 < waiting < 5 << 20
        way.transport.resume_reading()  # type: ignore[attr-defined]
        await cluster.until(lambda: numbers_of(way) == list(range(count)))
        first = decode_response(api_for(FETCH), 3, way.frames()[0])[1]
        assert len(first.responses[0].partitions[0].records) > 1_800_000

    cluster.run(scenario())
