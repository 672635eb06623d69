"""Commits that are tried again, wait for each other, or are cut short: none undoes a later one."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from kdist.client.committed import Offsets
from kdist.client.consumer.aio import Consumer
from kdist.client.consumer.commits import CommitFailed
from kdist.client.offsets import OffsetAndMetadata
from kdist.errors import ApiError, Error, KdistError
from kdist.model import TopicPartition
from kdist.protocol.offset_commit import (
    OffsetCommitPartitionResult,
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetCommitTopicResult,
)
from tests.refusals import refused
from tests.simulator.cluster import Cluster
from tests.unit.client.client_group_world import HASTY, TOPIC, Group, consumer_on, with_topic

pytestmark = pytest.mark.played(by=with_topic)

ZERO = TopicPartition(TOPIC, 0)
BY_HAND = HASTY | {"enable_auto_commit": False}


class Loading:
    """A coordinator that answers that it is loading, and notes the commits that it gets."""

    def __init__(self, consumer: Consumer) -> None:
        self.is_on = True
        self.sent: list[dict[TopicPartition, int]] = []
        membership = consumer._core.membership
        assert membership is not None
        self._ask = membership.coordinator.ask
        membership.coordinator.ask = self.ask  # type: ignore[method-assign]

    async def ask(self, request: Any, *others: Any, **named: Any) -> Any:
        if not isinstance(request, OffsetCommitRequest):
            return await self._ask(request, *others, **named)
        sent = {
            TopicPartition(topic.name, each.partition_index): each.committed_offset
            for topic in request.topics
            for each in topic.partitions
        }
        self.sent.append(sent)
        if not self.is_on:
            return await self._ask(request, *others, **named)
        await asyncio.sleep(0.001)
        code = Error.COORDINATOR_LOAD_IN_PROGRESS.code
        topics = [
            OffsetCommitTopicResult(
                name=topic.name,
                partitions=[
                    OffsetCommitPartitionResult(
                        partition_index=each.partition_index, error_code=code
                    )
                    for each in topic.partitions
                ],
            )
            for topic in request.topics
        ]
        return OffsetCommitResponse(topics=topics)


async def keep_polling(consumer: Consumer) -> None:
    while True:
        await consumer.poll(0.2)


async def by_call(consumer: Consumer, offsets: dict[TopicPartition, int]) -> KdistError | None:
    try:
        await consumer.commit(offsets)
    except KdistError as error:
        return error
    return None


async def in_background(
    consumer: Consumer, offsets: dict[TopicPartition, int]
) -> KdistError | None:
    told: asyncio.Future[KdistError | None] = asyncio.get_running_loop().create_future()
    consumer.commit_async(offsets, lambda _, error: told.set_result(error))
    return await told


@pytest.mark.played(by=with_topic, partitions=4)
@pytest.mark.parametrize("commit", [by_call, in_background])
@pytest.mark.parametrize("strategy", ["range", "cooperative-sticky"])
async def test_a_commit_that_is_tried_again_in_a_later_generation_leaves_out_what_was_lost(
    cluster: Cluster, group: Group, /, commit: Callable[..., Any], strategy: str
) -> None:
    """It was sent as of the new generation, and moved another member's offset back."""
    named = {"partition_assignment_strategy": strategy}
    first = consumer_on(cluster, "first", **BY_HAND, **named)
    first.subscribe([TOPIC])
    polling = [asyncio.ensure_future(keep_polling(first))]
    await cluster.until(lambda: len(first.assignment()) == 4)
    loading = Loading(first)
    asked = dict.fromkeys(first.assignment(), 1)
    committing = asyncio.ensure_future(commit(first, asked))
    second = consumer_on(cluster, "second", **BY_HAND, **named)
    second.subscribe([TOPIC])
    polling.append(asyncio.ensure_future(keep_polling(second)))
    await cluster.until(lambda: len(first.assignment()) == len(second.assignment()) == 2)
    moved = second.assignment()
    await second.commit(dict.fromkeys(moved, 5))
    loading.is_on = False
    error = await committing
    assert isinstance(error, CommitFailed)
    kept = first.assignment() if strategy == "cooperative-sticky" else frozenset()
    found = await second.committed(asked)
    assert found == {
        each: OffsetAndMetadata(5)
        if each in moved
        else OffsetAndMetadata(1)
        if each in kept
        else None
        for each in asked
    }
    for each in polling:
        each.cancel()
    await asyncio.wait(polling)
    await first.close()
    await second.close()


async def assigned(cluster: Cluster, **settings: Any) -> tuple[Consumer, Loading]:
    consumer = consumer_on(cluster, "reader", **BY_HAND | settings)
    consumer.assign([ZERO])
    return consumer, Loading(consumer)


async def test_commits_that_wait_are_joined_and_each_callback_is_called_once(
    cluster: Cluster, group: Group, /
) -> None:
    """Each was sent by itself, so they queued without end, and a commit behind them failed."""
    await group.produce(1)
    consumer, loading = await assigned(cluster)
    loading.is_on = False
    await consumer.commit({ZERO: 0})
    loading.sent.clear()
    told: list[tuple[int, KdistError | None]] = []

    def note(offsets: Offsets, error: KdistError | None) -> None:
        told.append((offsets[ZERO].offset, error))

    consumer.commit_async({ZERO: 0}, note)
    await cluster.until(lambda: loading.sent)
    for offset in range(1, 1000):
        consumer.commit_async({ZERO: offset}, note)
    await consumer.commit({ZERO: 1000})
    assert [each[ZERO] for each in loading.sent] == [0, 999, 1000]
    assert told == [(offset, None) for offset in range(1000)]
    await consumer.close()


async def test_a_close_does_not_wait_for_commits_that_get_no_answer(
    cluster: Cluster, group: Group, /
) -> None:
    consumer, loading = await assigned(cluster)
    told: list[KdistError | None] = []
    for offset in range(3):
        consumer.commit_async({ZERO: offset}, lambda _, error: told.append(error))
        await asyncio.sleep(0.1)
    begun_s = cluster.loop.time()
    await consumer.close()
    await asyncio.sleep(0)
    assert cluster.loop.time() - begun_s < 12
    assert [each.error for each in told if isinstance(each, ApiError)] == [
        Error.REQUEST_TIMED_OUT
    ] * 3
    assert loading.sent


async def test_a_commit_behind_one_that_gets_no_answer_says_so(
    cluster: Cluster, group: Group, /
) -> None:
    consumer, _ = await assigned(cluster)
    consumer.commit_async({ZERO: 1})
    with refused(Error.REQUEST_TIMED_OUT):
        await consumer.commit({ZERO: 2}, 3)
    await consumer.close()


async def test_a_failing_callback_is_heard_of_at_once_and_keeps_no_other_from_being_called(
    cluster: Cluster, group: Group, /
) -> None:
    """Its exception was seen when its task was collected."""
    consumer, loading = await assigned(cluster)
    loading.is_on = False
    heard: list[BaseException] = []
    cluster.loop.set_exception_handler(lambda _, context: heard.append(context["exception"]))
    told: list[int] = []

    def fail(*_: object) -> None:
        raise ValueError("of the application")

    consumer.commit_async({ZERO: 1}, fail)
    consumer.commit_async({ZERO: 2}, lambda *_: told.append(2))
    await consumer.commit({ZERO: 3})
    await asyncio.sleep(0)
    assert told == [2]
    assert [type(each) for each in heard] == [ValueError]
    await consumer.close()
