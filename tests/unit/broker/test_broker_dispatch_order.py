"""Requests behind unfinished produces see them done; produces behind produces do not wait."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import pytest

from kdist.broker.broker import Broker
from kdist.broker.dispatch import Dispatch
from kdist.errors import Error
from kdist.groups import coordinator
from kdist.network.connection import Connection, ResponseSlot
from kdist.protocol.create_topics import CreateTopicsRequest, NewTopic, TopicSetting
from kdist.protocol.delete_topics import DeleteTopicsRequest, TopicToDelete
from kdist.protocol.describe_configs import TOPIC
from kdist.protocol.describe_groups import DescribeGroupsRequest
from kdist.protocol.fetch import FetchPartition, FetchRequest, FetchTopic
from kdist.protocol.frame import RequestHeader, decode_response, encode_request
from kdist.protocol.incremental_alter_configs import (
    SET,
    ChangedResource,
    IncrementalAlterConfigsRequest,
    SettingChange,
)
from kdist.protocol.list_groups import ListGroupsRequest
from kdist.protocol.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from kdist.protocol.metadata import MetadataRequest
from kdist.protocol.versions import api_for
from kdist.replication.writer import Writers
from kdist.runtime.steps import SLICE_US
from tests.simulator.cluster import Cluster, create, produce_request
from tests.unit.broker.broker_produces import long_batch
from tests.unit.broker.test_broker_dispatch import Raw, end_request, raw

Request = tuple[Any, int]  # and its version
Scenario = Callable[[Cluster, Broker, Raw], Awaitable[None]]


def run(scenario: Scenario, *, is_careful: bool = False) -> None:
    """With a topic `clicks` that a thread writes to, or with `flush.before.expose`."""
    cluster = Cluster()

    async def around() -> None:
        broker = await cluster.started()
        settings = {"flush_before_expose": "true", "flush_ms": "1000"} if is_careful else {}
        await create(await cluster.client(), "clicks", **settings)
        if not is_careful:
            slow_down(cluster, broker)
        await scenario(cluster, broker, await raw(cluster))

    cluster.run(around())


pytestmark = pytest.mark.played(by=run)


def slow_down(cluster: Cluster, broker: Broker) -> None:
    """Have a thread do all writes of the next minute."""
    end_ns = cluster.clock.monotonic_ns() + 60 * 10**9
    writers_of(broker).thread_until_ns = end_ns


def writers_of(broker: Broker) -> Writers:
    return broker.service.replicas._context.writers


def dispatch_of(broker: Broker) -> Dispatch:
    (dispatch,) = broker.service._dispatches
    return dispatch


async def ask(cluster: Cluster, way: Raw, requests: Sequence[Request]) -> list[Any]:
    """Send all in one piece; returns the answer to each, None for acks=0."""
    way.received.clear()
    way.send(b"".join(framed(n, *request) for n, request in enumerate(requests)))
    answers: list[Any] = [None] * len(requests)
    answered = [n for n, (request, _) in enumerate(requests) if getattr(request, "acks", 1)]
    await cluster.until(lambda: len(way.frames()) == len(answered))
    for number, frame in zip(answered, way.frames(), strict=True):
        request, version = requests[number]
        correlation_id, answers[number] = decode_response(request.api, version, frame)
        assert correlation_id == number
    return answers


def framed(number: int, request: Any, version: int) -> bytes:
    return bytes(encode_request(RequestHeader(request.api.key, version, number, "t"), request))


def produce(acks: int) -> Request:
    return produce_request("clicks", b"x", acks=acks), 9


def ends() -> Request:
    return end_request("clicks"), 1


def fetch(offset: int, wait_ms: int = 0) -> Request:
    part = FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=1 << 20)
    topic = FetchTopic(topic="clicks", partitions=[part])
    return FetchRequest(max_wait_ms=wait_ms, min_bytes=1, max_bytes=1 << 20, topics=[topic]), 11


def end_of(answer: Any) -> int:
    return int(answer.topics[0].partitions[0].offset)


def long_produce(acks: int) -> Request:
    """One that a thread has to unpack."""
    request, version = produce(acks)
    request.topic_data[0].partition_data[0].records = long_batch()
    return request, version


def offset_of(answer: Any) -> int:
    """Of a produce."""
    return int(answer.responses[0].partition_responses[0].base_offset)


def size_of(answer: Any) -> int:
    """Of what a fetch got."""
    return len(answer.responses[0].partitions[0].records or b"")


def error_of(answer: Any) -> int:
    """Of a produce."""
    return int(answer.responses[0].partition_responses[0].error_code)


@pytest.mark.parametrize(("acks", "is_careful"), [(-1, True), (-1, False), (1, False), (0, False)])
def test_reads_behind_slow_produces_see_their_records(acks: int, is_careful: bool) -> None:
    async def scenario(cluster: Cluster, _broker: Broker, way: Raw) -> None:
        asked = [produce(acks), produce(acks), ends(), fetch(0), produce(acks), fetch(2), ends()]
        _, _, end, two, _, one, new_end = await ask(cluster, way, asked)
        assert (end_of(end), end_of(new_end)) == (2, 3)
        assert size_of(two) == 2 * size_of(one) > 0

    run(scenario, is_careful=is_careful)


@pytest.mark.parametrize("is_careful", [True, False])
def test_a_fast_path_fetch_behind_slow_produces_sees_their_records(is_careful: bool) -> None:
    """It takes a fast path as the next of its kind does, whatever came between."""

    async def scenario(cluster: Cluster, _broker: Broker, way: Raw) -> None:
        sizes = []
        for _ in range(4):
            asked = [fetch(0), fetch(0), produce(-1), fetch(0), fetch(0)]
            answers = await ask(cluster, way, asked)
            sizes += [size_of(answers[n]) for n in (0, 1, 3, 4)]
        assert sizes == [sizes[2] * n for n in (0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3, 4, 4)]

    run(scenario, is_careful=is_careful)


async def test_a_disk_that_turns_slow_under_fast_path_produces_changes_nothing(
    cluster: Cluster, broker: Broker, way: Raw, /
) -> None:
    """The fast path takes them, and only when the fetch flushes them do they prove slow."""
    writers = writers_of(broker)
    for _ in range(3):
        writers.thread_until_ns = 0
        before, _, _ = await ask(cluster, way, [ends(), produce(1), produce(1)])
        flush = dispatch_of(broker)._flush

        def flush_slowly(flush: Callable[[], None] = flush) -> None:
            slow_down(cluster, broker)
            flush()

        dispatch_of(broker)._flush = flush_slowly
        *_, after = await ask(cluster, way, [produce(1), produce(1), ends()])
        dispatch_of(broker)._flush = flush
        assert end_of(after) == end_of(before) + 4


@pytest.mark.parametrize(("acks", "is_careful"), [(-1, True), (-1, False), (1, False)])
def test_what_comes_behind_a_produce_that_takes_long_to_check_is_done_after_it(
    acks: int, is_careful: bool
) -> None:
    async def scenario(cluster: Cluster, broker: Broker, way: Raw) -> None:
        if not is_careful:
            writers_of(broker).thread_until_ns = 0
        for first in (0, 5):
            asked = [produce(acks), long_produce(acks), produce(acks), ends(), fetch(first + 1)]
            more = [long_produce(acks), long_produce(acks), ends()]
            answers = await ask(cluster, way, [*asked, *more])
            produced = [answers[number] for number in (0, 1, 2, 5, 6)]
            assert [error_of(each) for each in produced] == [0] * 5
            assert [offset_of(each) for each in produced] == list(range(first, first + 5))
            assert [end_of(answers[number]) for number in (3, 7)] == [first + 3, first + 5]
            assert size_of(answers[4]) > 0

    run(scenario, is_careful=is_careful)


async def test_a_connection_that_ends_while_its_produce_is_checked_harms_nobody(
    cluster: Cluster, broker: Broker, way: Raw, /
) -> None:
    writers_of(broker).thread_until_ns = 0
    writers_of(broker).tasks.blocking_ms_max = 5000  # type: ignore[attr-defined]
    way.send(framed(1, *long_produce(-1)))
    way.send(framed(2, *long_produce(1)))
    await cluster.until(lambda: broker.service.replicas.produce_checks.under_way > 0)
    way.transport.abort()  # type: ignore[attr-defined]
    other = await raw(cluster)
    (end,) = await ask(cluster, other, [ends()])
    assert end_of(end) == 0
    await cluster.until(lambda: broker.service.replicas.produce_checks.under_way == 0)
    (end,) = await ask(cluster, other, [ends()])
    assert end_of(end) == 1


@pytest.mark.played(by=run, is_careful=True)
async def test_produces_behind_produces_are_handled_at_once_and_share_a_flush(
    cluster: Cluster, broker: Broker, way: Raw, /
) -> None:
    await ask(cluster, way, [produce(-1)])
    before = broker.measures.storage.flush_seconds.count
    answers = await ask(cluster, way, [*[produce(-1)] * 50, ends()])
    assert broker.measures.storage.flush_seconds.count - before <= 2
    assert end_of(answers[-1]) == 51


async def test_a_waiting_fetch_does_not_delay_requests_behind_it(
    cluster: Cluster, _broker: Broker, way: Raw, /
) -> None:
    """As before: else what it waits for could not come on its own connection."""
    start_ns = cluster.clock.monotonic_ns()
    asked = [fetch(0, 30_000), produce(1), ends()]
    waited, _, end = await ask(cluster, way, asked)
    assert cluster.clock.monotonic_ns() - start_ns < 10**10
    assert (size_of(waited) > 0, end_of(end)) == (True, 1)


async def test_requests_behind_produces_proceed_when_these_fail(
    cluster: Cluster, _broker: Broker, way: Raw, /
) -> None:
    full = cluster.disks[1]
    full.fail(errno.ENOSPC, when=lambda call: call.name == "write", forever=False)
    refused, end, taken, new_end = await ask(cluster, way, [produce(1), ends(), produce(1), ends()])
    assert (error_of(refused), end_of(end)) == (Error.KAFKA_STORAGE_ERROR, 0)
    assert (error_of(taken), end_of(new_end)) == (0, 1)


def change(value: int) -> Request:
    """Of what a batch may have."""
    setting = SettingChange(name="max.message.bytes", config_operation=SET, value=str(value))
    resource = ChangedResource(resource_type=TOPIC, resource_name="clicks", configs=[setting])
    return IncrementalAlterConfigsRequest(resources=[resource], validate_only=False), 1


async def test_a_produce_behind_a_settings_change_is_checked_by_the_new_settings(
    cluster: Cluster, _broker: Broker, way: Raw, /
) -> None:
    asked = [each for value in (50, 1000) * 5 for each in (change(value), produce(1))]
    answers = await ask(cluster, way, asked)
    assert [error_of(answer) for answer in answers[1::2]] == [Error.MESSAGE_TOO_LARGE, 0] * 5


@pytest.mark.parametrize("changes", [1, 2, 20])
async def test_a_recreated_topic_has_its_own_settings_only(
    cluster: Cluster, _broker: Broker, way: Raw, /, changes: int
) -> None:
    """Notifications of what the one before it had are still looked at meanwhile."""
    deleted = DeleteTopicsRequest(topics=[TopicToDelete(name="clicks")], timeout_ms=10_000)
    new = NewTopic(
        name="clicks",
        num_partitions=1,
        replication_factor=1,
        assignments=[],
        configs=[TopicSetting(name="max.message.bytes", value="50")],
    )
    made = CreateTopicsRequest(topics=[new], timeout_ms=10_000)
    asked = [*(change(1000 + n) for n in range(changes)), (deleted, 6), (made, 7), produce(1)]
    answers = await ask(cluster, way, asked)
    assert error_of(answers[-1]) == Error.MESSAGE_TOO_LARGE


METADATA: Request = MetadataRequest(topics=None), 9


def carry_out_slowly(broker: Broker) -> list[int]:
    """Have Metadata take a while; how many of them were under way whenever one began."""
    routes = dispatch_of(broker)._routes
    key = MetadataRequest.api.key
    answer, begun, done = routes.waiting[key], [], []

    async def slowly(request: Any, call: Any) -> Any:
        begun.append(1)
        seen.append(len(begun) - len(done))
        await asyncio.sleep(0.001)
        done.append(1)
        return await answer(request, call)

    seen: list[int] = []
    routes.waiting[key] = slowly  # type: ignore[index]
    return seen


async def test_of_a_burst_of_requests_that_tasks_carry_out_one_is_under_way_at_a_time(
    cluster: Cluster, broker: Broker, way: Raw, /
) -> None:
    under_way = carry_out_slowly(broker)
    answers = await ask(cluster, way, [METADATA] * 300)
    assert under_way == [1] * 300
    assert all(answer.topics for answer in answers)


async def test_each_connection_may_have_one_request_that_a_task_carries_out(
    cluster: Cluster, broker: Broker, way: Raw, /
) -> None:
    under_way = carry_out_slowly(broker)
    ways = [way, *[await raw(cluster) for _ in range(3)]]
    for each in ways:
        each.send(b"".join(framed(number, *METADATA) for number in range(20)))
    await cluster.until(lambda: all(len(each.frames()) == 20 for each in ways))
    assert (max(under_way), len(under_way)) == (4, 80)


async def test_requests_that_need_no_task_go_on_beside_one_that_does(
    cluster: Cluster, broker: Broker, way: Raw, /
) -> None:
    routes, done = dispatch_of(broker)._routes, asyncio.Event()
    answer = routes.waiting[MetadataRequest.api.key]

    async def later(request: Any, call: Any) -> Any:
        await done.wait()
        return await answer(request, call)

    routes.waiting[MetadataRequest.api.key] = later  # type: ignore[index]
    before = broker.measures.requests[("ListOffsets",)].answered
    way.send(b"".join(framed(n, *each) for n, each in enumerate([METADATA, ends(), METADATA])))
    answered = broker.measures.requests[("ListOffsets",)]
    await cluster.until(lambda: answered.answered == before + 1)
    done.set()
    await cluster.until(lambda: len(way.frames()) == 3)


async def test_a_request_that_waits_for_a_task_is_not_carried_out_once_tasks_are_cancelled(
    cluster: Cluster, broker: Broker, way: Raw, /
) -> None:
    async def wait(_request: Any, _call: Any) -> Any:
        calls.append(1)
        await asyncio.Event().wait()

    calls: list[int] = []
    dispatch_of(broker)._routes.waiting[MetadataRequest.api.key] = wait  # type: ignore[index]
    way.send(framed(0, *METADATA) * 2)
    await cluster.until(lambda: bool(calls))
    dispatch_of(broker).cancel()
    await asyncio.sleep(1)
    assert len(calls) == 1


async def test_a_request_that_waits_for_a_task_is_dropped_when_that_task_crashes(
    cluster: Cluster, broker: Broker, way: Raw, /
) -> None:
    """Its connection takes no more requests, and ends."""

    async def crash(_request: Any, _call: Any) -> Any:
        calls.append(1)
        raise KeyError("a bug")

    calls: list[int] = []
    routes = dispatch_of(broker)._routes
    routes.waiting[MetadataRequest.api.key] = crash  # type: ignore[index]
    way.send(framed(0, *METADATA) * 3)
    await cluster.until(lambda: way.is_closed)
    assert len(calls) == 1
    assert not broker.failure.done()


@pytest.mark.played(by=run, is_careful=True)
async def test_malformed_bytes_behind_produces_end_the_connection_once_these_are_answered(
    cluster: Cluster, _broker: Broker, way: Raw, /
) -> None:
    way.send(framed(0, *produce(-1)) + b"\0\0\0\1?" + framed(1, *ends()))
    await cluster.until(lambda: way.is_closed)
    (frame,) = way.frames()
    assert error_of(decode_response(api_for(0), 9, frame)[1]) == 0


@pytest.mark.parametrize(
    "asked",
    [
        (DescribeGroupsRequest(groups=["g"]), 5),
        (ListGroupsRequest(), 4),
        (
            ListOffsetsRequest(
                topics=[
                    ListOffsetsTopic(
                        name="clicks",
                        partitions=[ListOffsetsPartition(partition_index=0, timestamp=-1)] * 1500,
                    )
                ]
            ),
            7,
        ),
    ],
    ids=lambda asked: str(asked[0].api.name),
)
async def test_of_requests_whose_answers_take_steps_one_of_a_connection_is_under_way(
    cluster: Cluster, broker: Broker, way: Raw, /, asked: Request, monkeypatch: pytest.MonkeyPatch
) -> None:
    handle, dispatch, under_way = Dispatch._handle, dispatch_of(broker), []

    def counting(
        self: Dispatch, connection: Connection, frame: memoryview, *arguments: Any
    ) -> None:
        handle(self, connection, frame, *arguments)
        if self is not dispatch or int.from_bytes(frame[:2], "big") != asked[0].api.key:
            return  # of another test's broker, or the controller's
        slots = [each for each in connection._responses if isinstance(each, ResponseSlot)]
        under_way.append(sum(each.chunks is None for each in slots))

    monkeypatch.setattr(Dispatch, "_handle", counting)
    for name in ("describe_groups", "list_groups"):
        monkeypatch.setattr(coordinator, name, lambda *_: iter([SLICE_US] * 5))
    under_way.clear()
    await ask(cluster, way, [asked] * 5)
    assert under_way == [1] * 5
