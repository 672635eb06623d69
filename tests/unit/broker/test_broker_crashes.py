"""What a bug or a failing disk costs: the request, a command, the term, or the broker."""

from __future__ import annotations

import asyncio
import errno
import logging
from collections.abc import Callable
from typing import Any

import pytest

from kdist.broker.broker import Broker, State
from kdist.broker.crashes import ends_broker, error_response
from kdist.controller import commands
from kdist.controller.loading import Loader
from kdist.errors import DiskFailed, Error, PoisonousRequest
from kdist.protocol import describe_cluster, fetch, find_coordinator, metadata, produce
from kdist.protocol.create_topics import CreateTopicsRequest, NewTopic
from kdist.protocol.describe_cluster import DescribeClusterRequest
from kdist.protocol.fetch import FetchPartition, FetchRequest, FetchTopic
from kdist.protocol.find_coordinator import FindCoordinatorRequest
from kdist.protocol.frame import RequestHeader, decode_response, encode_request, encode_response
from kdist.protocol.metadata import MetadataRequest
from kdist.protocol.versions import TABLE, api_for
from kdist.replication import partition as partition_module
from kdist.replication.partition import Partition
from kdist.storage.names import CLEAN_SHUTDOWN
from kdist.testing.simulated_disk import Call
from kdist.zk import znodes
from kdist.zk.client import SessionState
from kdist.zk.election import claim
from tests.refusals import refused
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


pytestmark = pytest.mark.played(by=play)


async def created(cluster: Cluster, name: str) -> Error:
    client = await cluster.client()
    new = NewTopic(name=name, num_partitions=1, replication_factor=1, assignments=[], configs=[])
    answer = await client.send(CreateTopicsRequest(topics=[new], timeout_ms=20_000), 5)
    return Error.of(answer.topics[0].error_code)


async def claimed(cluster: Cluster) -> None:
    """There is a controller, and it sends no requests."""
    zk = cluster.ensemble.client()
    await zk.connect()
    assert await claim(zk, 7, 0)


def is_sync_of_log(call: Call) -> bool:
    return call.name in ("sync", "sync_filesystem") and "checkpoint" not in call.path


async def stopping(cluster: Cluster, broker: Broker) -> None:
    """As the process does, with a flush under way."""
    client = await cluster.client()
    assert (await create(client, "clicks")).error_code == 0
    assert (await send_records(client, "clicks", b"v")).error_code == 0
    directory = broker.service.directory
    (log,) = directory.logs.values()
    cluster.disks[1].fail(when=is_sync_of_log, forever=False)
    directory.flusher.request(log)
    await broker.stop()


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


async def test_a_crash_that_its_response_cannot_carry_closes_the_connection(
    cluster: Cluster, broker: Broker, /
) -> None:
    broker.service._routes.waiting[metadata.API.key] = fail_later  # type: ignore[index]
    way = await closed_after(cluster, MetadataRequest(topics=[]), 1)
    assert not way.frames()
    assert crashes(broker, "Metadata") == 1


async def test_requests_before_a_crash_are_answered_and_those_behind_it_are_not(
    cluster: Cluster, broker: Broker, /
) -> None:
    broker.service._routes.direct[find_coordinator.API.key] = fail  # type: ignore[index]
    way = await raw(cluster)
    produced = framed(produce_request("clicks", b"x", acks=1), 9, 7)
    way.send(produced + framed(FindCoordinatorRequest(key="g"), 1, 8) + produced)
    await cluster.until(lambda: way.is_closed)
    assert [each[:4] for each in way.frames()] == [b"\0\0\0\7", b"\0\0\0\10"]
    assert next(iter(broker.service.directory.logs.values())).end_offset == 1


async def test_a_waiting_fetch_that_crashes_when_it_is_woken_costs_only_its_connection(
    cluster: Cluster, broker: Broker, /, monkeypatch: pytest.MonkeyPatch
) -> None:
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


async def test_records_that_cannot_be_validated_cost_their_connection(
    cluster: Cluster, broker: Broker, /, monkeypatch: pytest.MonkeyPatch
) -> None:
    await create(await cluster.client(), "keyed", cleanup_policy="compact")
    with monkeypatch.context() as patched:
        patched.setattr(partition_module, "validating", fail)
        for _ in range(2):
            way = await closed_after(cluster, produce_request("keyed", b"x"), 7)
            assert not way.frames()
    assert crashes(broker, "Produce") == 2
    assert not broker.failure.done()


async def test_a_bug_between_the_steps_of_a_write_ends_the_broker(
    cluster: Cluster, broker: Broker, /, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker.service._routes.direct[produce.API.key] = fail  # type: ignore[index]
    client = await cluster.client()
    asking = asyncio.ensure_future(send_records(client, "clicks", b"x"))
    assert await broker.failure is POISON
    await broker.abandon()
    with refused(Error.NETWORK_EXCEPTION):
        await asking


async def test_a_bug_in_queued_produces_ends_the_broker_though_another_request_has_them_written(
    cluster: Cluster, broker: Broker, /, monkeypatch: pytest.MonkeyPatch
) -> None:
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


async def test_a_late_answer_to_a_crashed_request_is_dropped(
    cluster: Cluster, broker: Broker, /
) -> None:
    calls: list[Any] = []

    def fail_and_answer_later(_request: object, call: Any) -> None:
        calls.append(call)
        raise POISON

    key = find_coordinator.API.key
    broker.service._routes.direct[key] = fail_and_answer_later  # type: ignore[index]
    way = await closed_after(cluster, FindCoordinatorRequest(key="g"), 1)
    (call,) = calls
    call.answer(error_response(find_coordinator.API, 1, Error.UNKNOWN_SERVER_ERROR))
    await asyncio.sleep(1)
    assert len(way.frames()) == 1


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
            response = error_response(api, version, Error.UNKNOWN_SERVER_ERROR)
            if response is not None:
                frame = encode_response(version, 1, response)
                _, decoded = decode_response(api, version, bytes(frame)[4:])
                assert decoded.error_code == Error.UNKNOWN_SERVER_ERROR
                carried.add((api.name, version))
    assert ("Fetch", 7) in carried
    assert ("Fetch", 6) not in carried
    assert ("Metadata", 12) not in carried


async def test_an_order_that_meets_a_bug_is_refused_and_the_controller_goes_on(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = commands.plan_topic

    def poisoned(new: NewTopic, *rest: Any) -> Any:
        if new.name == "poison":
            raise ZeroDivisionError
        return plan(new, *rest)

    monkeypatch.setattr(commands, "plan_topic", poisoned)
    broker = await cluster.started()
    term = broker.service.controller._term
    for _ in range(2):
        assert await created(cluster, "poison") is Error.UNKNOWN_SERVER_ERROR
    assert await created(cluster, "clicks") is Error.NONE
    assert broker.service.controller._term is term


async def test_a_znode_that_meets_a_bug_ends_terms_until_it_is_gone_and_no_broker(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = Loader.reassignment

    async def poisoned(self: Loader, watch: Any) -> Any:
        if await self._zk.exists(znodes.REASSIGNMENT.path(), watch):
            raise ZeroDivisionError
        return await read(self, watch)

    monkeypatch.setattr(Loader, "reassignment", poisoned)
    broker = await cluster.started()
    path = znodes.REASSIGNMENT.path()
    metrics = broker.service._measures.controller
    await broker.context.zk.create(path, b"poison")
    await cluster.until(lambda: metrics.crashed == 2)
    await broker.context.zk.delete(path)
    assert await created(cluster, "clicks") is Error.NONE
    assert metrics.crashed < 10


async def test_a_disk_that_fails_while_a_waiting_fetch_is_woken_ends_only_its_own_broker(
    cluster: Cluster,
) -> None:
    """At the end of a tick, where no request is at hand that the failure could belong to."""
    one, two = await cluster.started(1), await cluster.started(2)
    client = await cluster.client(1)
    await create(client, "clicks", 2)
    await cluster.until(lambda: len(one.service.cache.topics["clicks"].partitions) == 2)
    (led,) = (each.partition for each in one.service.replicas.partitions if each[0] == "clicks")
    asked = FetchPartition(partition=led, fetch_offset=0, partition_max_bytes=1 << 20)
    topic = FetchTopic(topic="clicks", partitions=[asked])
    request = FetchRequest(max_wait_ms=5_000, min_bytes=1, max_bytes=1 << 20, topics=[topic])
    waiting = asyncio.ensure_future(client.send(request, 11))
    await asyncio.sleep(0.1)
    cluster.disks[1].fail(when=lambda call: call.name in ("read", "read_cached"))
    await (await cluster.client(1)).tell(produce_request("clicks", b"x", partition=led), 9)
    assert isinstance(await asyncio.wait_for(one.failure, 1), DiskFailed)
    waiting.cancel()
    await one.abandon()
    await cluster.until(lambda: two.service.controller.is_active)
    assert not two.failure.done()
    await two.stop()


@pytest.mark.parametrize("seed", range(5))
async def test_a_flush_that_fails_during_a_stop_is_the_reason_of_the_end(
    cluster: Cluster, seed: int
) -> None:
    broker = await cluster.started()
    await stopping(cluster, broker)
    assert isinstance(broker.failure.result(), DiskFailed)
    assert not cluster.disks[1].exists(f"/d/{CLEAN_SHUTDOWN}")
    await broker.abandon()


@pytest.mark.parametrize("is_under_way", [False, True])
async def test_a_disk_failure_during_a_stop_ends_the_broker_at_once(
    cluster: Cluster, is_under_way: bool
) -> None:
    """It fails under a thread's write, whose end no stop awaits, or under the last flush."""
    broker = await cluster.started()
    client = await cluster.client()
    await create(client, "clicks")
    await send_records(client, "clicks", b"x")
    if is_under_way:
        cluster.processes[1].blocking_ms_max = 2_000
        writers = broker.service.replicas._context.writers
        writers.thread_until_ns = cluster.clock.monotonic_ns() + 10**12
        await client.tell(produce_request("clicks", b"y"), 9)
        await asyncio.sleep(0.1)
    cluster.disks[1].fail(when=lambda call: call.name not in ("read", "list"))
    async with asyncio.timeout(30):
        await broker.stop(drain_ms=100)
    assert isinstance(broker.failure.result(), DiskFailed)
    await broker.abandon()
    assert (broker.state, cluster.zks[1].state) == (State.STOPPED, SessionState.CLOSED)
    assert cluster.ensemble.tree.exists(znodes.BROKER.path(1)) is None


async def test_a_start_that_is_cancelled_after_the_disk_failed_leaves_no_clean_marker(
    cluster: Cluster,
) -> None:
    broker = await cluster.started()
    await broker.stop()
    await claimed(cluster)
    broker = cluster.broker()
    starting = asyncio.ensure_future(broker.start())
    await asyncio.sleep(30)
    broker.fail(DiskFailed("/d", OSError(errno.EIO, "Input/output error")))
    starting.cancel()
    await asyncio.gather(starting, return_exceptions=True)
    assert not cluster.disks[1].exists(f"/d/{CLEAN_SHUTDOWN}")
