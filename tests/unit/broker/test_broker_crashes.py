"""A bug in a handler costs the request that met it; the broker, where state may be wrong."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

import pytest

from kdist.broker.broker import Broker
from kdist.broker.crashes import crash_response, ends_broker
from kdist.errors import ApiError, DiskFailed, Error, PoisonousRequest
from kdist.protocol import describe_cluster, fetch, find_coordinator, metadata, produce
from kdist.protocol.describe_cluster import DescribeClusterRequest
from kdist.protocol.envelope import decode_response, encode_request, encode_response
from kdist.protocol.fetch import FetchPartition, FetchRequest, FetchTopic
from kdist.protocol.find_coordinator import FindCoordinatorRequest
from kdist.protocol.headers import RequestHeader
from kdist.protocol.metadata import MetadataRequest
from kdist.protocol.versions import TABLE, api_for
from kdist.replication import partition as partition_module
from kdist.replication.partition import Partition
from tests.simulator.cluster import Cluster, create, produce_request
from tests.simulator.cluster import produce as send_records
from tests.unit.broker.test_broker_dispatch import Raw, raw

POISON = KeyError("a bug")


def framed(request: Any, version: int, correlation_id: int = 1) -> bytes:
    header = RequestHeader(request.api.key, version, correlation_id, "a client")
    return bytes(encode_request(header, request))


def fetch_request(wait_ms: int = 0) -> FetchRequest:
    part = FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1 << 20)
    topics = [FetchTopic(topic="clicks", partitions=[part])]
    return FetchRequest(max_wait_ms=wait_ms, min_bytes=1, max_bytes=1 << 20, topics=topics)


def fail(*_: object) -> Any:
    raise POISON


async def fail_later(*_: object) -> Any:
    raise POISON


async def closed_after(cluster: Cluster, request: Any, version: int) -> Raw:
    way = await raw(cluster)
    way.send(framed(request, version))
    await cluster.until(lambda: way.is_closed)
    return way


def crashes(broker: Broker, name: str) -> int:
    return broker.measures.requests[(name,)].crashed


def play(scenario: Callable[[Cluster, Broker], Any]) -> None:
    cluster = Cluster()

    async def around() -> None:
        broker = await cluster.started()
        await create(await cluster.client(), "clicks")
        await scenario(cluster, broker)

    cluster.run(around())


@pytest.mark.parametrize("key", [find_coordinator.API.key, describe_cluster.API.key])
def test_a_poisonous_request_that_is_sent_again_and_again_does_not_end_the_broker(
    key: int, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario(cluster: Cluster, broker: Broker) -> None:
        routes: Any = broker.service._routes
        is_direct = key in routes.direct
        (routes.direct if is_direct else routes.waiting)[key] = fail if is_direct else fail_later
        api = api_for(key)
        request: Any = DescribeClusterRequest(include_cluster_authorized_operations=False)
        if is_direct:
            request = FindCoordinatorRequest(key="g")
        for _ in range(3):
            way = await closed_after(cluster, request, api.oldest)
            (frame,) = way.frames()
            _, answer = decode_response(api, api.oldest, frame)
            assert answer.error_code == Error.UNKNOWN_SERVER_ERROR
        assert crashes(broker, api.name) == 3
        assert not broker.failure.done()
        assert (await send_records(await cluster.client(), "clicks", b"x")).error_code == 0

    play(scenario)
    lines = [each for each in caplog.records if each.levelno == logging.ERROR]
    assert [each.exc_info[1] for each in lines if each.exc_info] == [POISON] * 3


def test_a_crash_that_its_response_cannot_carry_closes_the_connection() -> None:
    async def scenario(cluster: Cluster, broker: Broker) -> None:
        broker.service._routes.waiting[metadata.API.key] = fail_later  # type: ignore[index]
        way = await closed_after(cluster, MetadataRequest(topics=[]), 1)
        assert not way.frames()
        assert crashes(broker, "Metadata") == 1

    play(scenario)


def test_requests_before_a_crash_are_answered_and_those_behind_it_are_not() -> None:
    async def scenario(cluster: Cluster, broker: Broker) -> None:
        broker.service._routes.direct[find_coordinator.API.key] = fail  # type: ignore[index]
        way = await raw(cluster)
        produced = framed(produce_request("clicks", b"x", acks=1), 9, 7)
        way.send(produced + framed(FindCoordinatorRequest(key="g"), 1, 8) + produced)
        await cluster.until(lambda: way.is_closed)
        assert [each[:4] for each in way.frames()] == [b"\0\0\0\7", b"\0\0\0\10"]
        assert next(iter(broker.service.directory.logs.values())).end_offset == 1

    play(scenario)


def test_a_waiting_fetch_that_crashes_when_it_is_woken_costs_only_its_connection(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def scenario(cluster: Cluster, broker: Broker) -> None:
        way = await raw(cluster)
        way.send(framed(fetch_request(wait_ms=60_000), 11))
        await cluster.until(lambda: len(broker.service.replicas.delayed))
        with monkeypatch.context() as patched:
            patched.setattr(Partition, "visible_end", fail)
            await send_records(await cluster.client(), "clicks", b"x", acks=1)
            await cluster.until(lambda: way.is_closed)
        (frame,) = way.frames()
        assert decode_response(fetch.API, 11, frame)[1].error_code == Error.UNKNOWN_SERVER_ERROR
        assert crashes(broker, "Fetch") == 1
        assert not broker.failure.done()
        assert not len(broker.service.replicas.delayed)

    play(scenario)


def test_records_that_cannot_be_validated_cost_their_connection(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def scenario(cluster: Cluster, broker: Broker) -> None:
        await create(await cluster.client(), "keyed", cleanup_policy="compact")
        with monkeypatch.context() as patched:
            patched.setattr(partition_module, "validating", fail)
            for _ in range(2):
                way = await closed_after(cluster, produce_request("keyed", b"x"), 7)
                assert not way.frames()
        assert crashes(broker, "Produce") == 2
        assert not broker.failure.done()

    play(scenario)


def test_a_bug_between_the_steps_of_a_write_ends_the_broker(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def scenario(cluster: Cluster, broker: Broker) -> None:
        broker.service._routes.direct[produce.API.key] = fail  # type: ignore[index]
        client = await cluster.client()
        asking = asyncio.ensure_future(send_records(client, "clicks", b"x"))
        assert await broker.failure is POISON
        await broker.abandon()
        with pytest.raises(ApiError, match="NETWORK_EXCEPTION"):
            await asking

    play(scenario)


def test_a_bug_in_queued_produces_ends_the_broker_though_another_request_has_them_written(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def scenario(cluster: Cluster, broker: Broker) -> None:
        cluster.network.conditions = cluster.network.conditions._replace(cut_share=0)
        way = await raw(cluster)
        produced = framed(produce_request("clicks", b"x", acks=1), 9)
        way.send(produced)  # the fast path knows the next one
        await cluster.until(lambda: len(way.frames()) == 1)
        monkeypatch.setattr(Partition, "append_coalesced", fail)
        way.send(produced + framed(FindCoordinatorRequest(key="g"), 1))
        await cluster.until(lambda: broker.failure.done() or way.is_closed)
        assert broker.failure.done()
        assert broker.failure.result() is POISON
        await broker.abandon()

    play(scenario)


def test_a_late_answer_to_a_crashed_request_is_dropped() -> None:
    async def scenario(cluster: Cluster, broker: Broker) -> None:
        calls: list[Any] = []

        def fail_and_answer_later(_request: object, call: Any) -> None:
            calls.append(call)
            raise POISON

        key = find_coordinator.API.key
        broker.service._routes.direct[key] = fail_and_answer_later  # type: ignore[index]
        way = await closed_after(cluster, FindCoordinatorRequest(key="g"), 1)
        (call,) = calls
        call.answer(crash_response(find_coordinator.API, 1))
        await asyncio.sleep(1)
        assert len(way.frames()) == 1

    play(scenario)


def test_failed_assertions_disks_files_and_memory_end_the_broker_whatever_met_them() -> None:
    errors = [
        AssertionError(),
        DiskFailed("/d", OSError(5, "I/O")),
        FileNotFoundError(),
        MemoryError(),
    ]
    assert all(ends_broker(each, fetch.API.key) for each in errors)
    assert not ends_broker(POISON, fetch.API.key)
    assert ends_broker(POISON, produce.API.key)
    assert not ends_broker(PoisonousRequest(), produce.API.key)


def test_every_crash_response_can_be_encoded() -> None:
    carried = set()
    for api in TABLE:
        for version in range(api.oldest, api.newest + 1):
            response = crash_response(api, version)
            if response is not None:
                frame = encode_response(version, 1, response)
                _, decoded = decode_response(api, version, bytes(frame)[4:])
                assert decoded.error_code == Error.UNKNOWN_SERVER_ERROR
                carried.add((api.name, version))
    assert ("Fetch", 7) in carried
    assert ("Fetch", 6) not in carried
    assert ("Metadata", 12) not in carried
