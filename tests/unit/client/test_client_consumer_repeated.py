"""Repeating one encoded fetch: what is sent, when it stops, and what calls change meanwhile."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from kdist.client.consumer.repeated import RepeatedFetch
from kdist.errors import ApiError, Error
from kdist.model import TopicPartition
from kdist.network.client import Client
from kdist.protocol import fetch
from kdist.protocol.envelope import decode_request, encode_request
from kdist.protocol.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic
from kdist.protocol.framing import SIZE_BYTES
from kdist.protocol.headers import RequestHeader, put_correlation_id
from tests.simulator.cluster import Cluster
from tests.unit.client.client_group_world import TOPIC, Group, consumer_on, with_topic

ZERO, ONE = TopicPartition(TOPIC, 0), TopicPartition(TOPIC, 1)
ANSWER = FetchResponse(responses=[])
LATE = ApiError(Error.REQUEST_TIMED_OUT)


class Peer:
    """Notes what is sent, in place of a client's connection."""

    def __init__(self, version: int) -> None:
        self.version = version
        self.sent: list[tuple[int, FetchRequest]] = []

    def version_of(self, _api: object, _newest: int) -> int:
        return self.version

    def encode(self, request: FetchRequest, version: int, correlation_id: int) -> bytearray:
        return encode_request(RequestHeader(fetch.API.key, version, correlation_id, "me"), request)

    def repeat(self, frame: bytearray, *_: object) -> None:
        put_correlation_id(frame, len(self.sent) + 7)
        header, request = decode_request(bytes(frame[SIZE_BYTES:]))
        assert len(frame) == SIZE_BYTES + int.from_bytes(frame[:SIZE_BYTES], "big")
        self.sent.append((header.correlation_id, request))


def request(offset: int) -> FetchRequest:
    asked = FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=1 << 20)
    topics = [FetchTopic(topic=TOPIC, partitions=[asked])]
    return FetchRequest(max_wait_ms=500, min_bytes=1, session_epoch=-1, topics=topics)


def repeated(peer: Any) -> RepeatedFetch:
    return RepeatedFetch(peer, request(0), ZERO, 0, 30_000)


def as_read(version: int, offset: int) -> FetchRequest:
    """The request as a broker reads it, if it was encoded by the general path."""
    _, found = decode_request(bytes(Peer(version).encode(request(offset), version, 1)[SIZE_BYTES:]))
    assert isinstance(found, FetchRequest)
    return found


@pytest.mark.parametrize("version", [4, 7, 11, 12])
def test_each_request_equals_the_general_paths_and_reports_that_it_was_sent(version: int) -> None:
    async def scenario() -> None:
        peer = Peer(version)
        fetches, told = repeated(peer), []
        next_offsets = iter([1 << 40, 5, None])
        run = asyncio.ensure_future(
            fetches.run(3, lambda _: next(next_offsets), lambda: told.append(len(peer.sent)))
        )
        await asyncio.sleep(0)
        for _ in range(3):
            assert not fetches.done()
            fetches.set_result(ANSWER)
        await run
        assert [found for found, _ in peer.sent] == [7, 8, 9]
        assert [found for _, found in peer.sent] == [
            as_read(version, each) for each in (3, 1 << 40, 5)
        ]
        assert told == [2, 3, 3]
        assert fetches.done()

    asyncio.run(scenario())


def test_an_exception_is_raised_where_the_fetch_is_run() -> None:
    async def scenario() -> None:
        def refuse(_: FetchResponse) -> int | None:
            raise LATE

        def fail(_: FetchResponse) -> int | None:
            raise ValueError("a bug")

        told: list[str] = []
        fetches = repeated(Peer(12))
        run = asyncio.ensure_future(fetches.run(3, refuse, lambda: told.append("now")))
        await asyncio.sleep(0)
        fetches.set_result(ANSWER)
        with pytest.raises(ApiError, match="REQUEST_TIMED_OUT"):
            await run
        assert told == ["now"]  # a fetch may have been completed before
        run = asyncio.ensure_future(fetches.run(3, fail, lambda: None))
        await asyncio.sleep(0)
        with pytest.raises(ValueError, match="a bug"):
            fetches.set_result(ANSWER)  # the loop's handler hears of it
        with pytest.raises(ValueError, match="a bug"):
            await run
        run = asyncio.ensure_future(fetches.run(3, refuse, lambda: None))
        await asyncio.sleep(0)
        fetches.set_exception(LATE)
        with pytest.raises(ApiError, match="REQUEST_TIMED_OUT"):
            await run
        run = asyncio.ensure_future(fetches.run(3, refuse, lambda: None))
        await asyncio.sleep(0)
        run.cancel()
        await asyncio.wait([run])
        assert fetches.done()  # so nobody passes it an answer

    asyncio.run(scenario())


def test_a_consumer_of_one_partition_encodes_its_request_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    encoded: list[str] = []
    encode = Client.encode

    async def scenario(cluster: Cluster, group: Group) -> None:
        def noted(self: Client, request: Any, version: int, correlation_id: int) -> bytearray:
            if self._loop is cluster.loop:  # not what an earlier test has left
                encoded.append(request.api.name)
            return encode(self, request, version, correlation_id)

        consumer = consumer_on(cluster, "reader")
        consumer.assign([ZERO])
        consumer.seek_to_beginning()
        monkeypatch.setattr(Client, "encode", noted)
        for number in range(20):
            await group.produce(2)
            found = await consumer.poll(10)
            assert [record.offset for record in found] == [number]
        assert encoded.count("Fetch") == 2  # for two offsets, to see where the offset is encoded
        await consumer.close()

    with_topic(scenario, partitions=2)


def test_seeks_pauses_and_other_partitions_end_the_repetition() -> None:
    async def scenario(cluster: Cluster, group: Group) -> None:
        await group.produce(20)
        consumer = consumer_on(cluster, "reader", fetch_max_wait_ms=400)
        consumer.assign([ZERO])
        consumer.seek_to_beginning()
        assert await values(consumer, 10) == [2 * each for each in range(10)]
        await asyncio.sleep(0.1)  # a fetch waits at the end
        consumer.seek(ZERO, 8)
        assert await values(consumer, 2) == [16, 18]
        await asyncio.sleep(0.1)
        consumer.pause(ZERO)
        await group.produce(2)
        assert await consumer.poll(2) == []
        consumer.resume(ZERO)
        assert await values(consumer, 1) == [20]
        await asyncio.sleep(0.1)
        consumer.assign([ZERO, ONE])
        consumer.seek_to_beginning(ONE)
        assert sorted(await values(consumer, 11)) == [2 * each + 1 for each in range(11)]
        consumer.assign([ONE])
        await group.produce(2)
        assert await values(consumer, 1) == [23]
        await consumer.close()

    with_topic(scenario, partitions=2)


async def values(consumer: Any, count: int) -> list[int]:
    """The values of this many records."""
    found: list[int] = []
    while len(found) < count:
        records = await consumer.poll(10)
        assert records, f"after {found} nothing came in ten seconds"
        found += [int(record.value) for record in records]
    return found
