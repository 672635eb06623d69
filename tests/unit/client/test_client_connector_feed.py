"""The feed passes what is fetched to the owning stream, no faster than the stream is read."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Coroutine, Iterable
from typing import Any

import pytest

from kdist.client.classic.connector.feed import Feed
from kdist.client.classic.connector.ownership import Ownership
from kdist.client.classic.connector.settings import read_settings
from kdist.client.classic.connector.stream import ConsumerTimeout, Stream
from kdist.client.classic.connector.streams import Streams
from kdist.client.classic.connector.subscription import Topics
from kdist.client.cluster import NoBroker
from kdist.client.consumer.batch import Batch
from kdist.errors import ApiError, CorruptRecords, Error
from kdist.model import TopicPartition
from kdist.records.batch import iter_headers
from kdist.records.build import build_batch

FIRST, SECOND = TopicPartition("clicks", 0), TopicPartition("clicks", 1)
SETTINGS = read_settings(
    {
        "group.id": "g",
        "zookeeper.connect": "memory",
        "queued.max.message.chunks": 1,
        "consumer.timeout.ms": 0,
    }
)


def on_a_loop(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    @functools.wraps(test)
    def run(*arguments: Any, **named: Any) -> None:
        asyncio.run(test(*arguments, **named))

    return run


class ScriptedConsumer:
    """Stands in for a consumer: it returns what the test put there."""

    def __init__(self) -> None:
        self.given: asyncio.Queue[list[Batch] | Exception] = asyncio.Queue()
        self.assigned: list[TopicPartition] = []
        self.sought: list[tuple[TopicPartition, int]] = []
        self.paused: set[TopicPartition] = set()
        self.ends: list[dict[TopicPartition, int] | Exception] = []

    async def poll_batches(self) -> list[Batch]:
        given = await self.given.get()
        if isinstance(given, Exception):
            raise given
        return given

    async def end_offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        end = self.ends.pop(0)
        if isinstance(end, Exception):
            raise end
        return {each: end[each] for each in partitions}

    def assign(self, partitions: Iterable[TopicPartition]) -> None:
        self.assigned = list(partitions)

    def seek(self, partition: TopicPartition, offset: int) -> None:
        self.sought.append((partition, offset))

    def pause(self, *partitions: TopicPartition) -> None:
        self.paused.update(partitions)

    def resume(self, *partitions: TopicPartition) -> None:
        self.paused.difference_update(partitions)


class Fed:
    """A running feed for one stream."""

    def __init__(self) -> None:
        self.consumer = ScriptedConsumer()
        self.hungry: list[Stream] = []
        self.streams = Streams("c", Topics({"clicks": 1}), SETTINGS, self.hungry.append)
        (self.stream,) = self.streams.by_topic("clicks")
        self.feed = Feed(self.consumer, [], self.streams, reset_to_start=False)  # type: ignore[arg-type]
        self.running = asyncio.get_running_loop().create_task(self.feed.run())

    def own(self, partition: TopicPartition, start: int) -> Ownership:
        ownership = Ownership(partition, "c-0")
        ownership.start = start
        self.feed.add(ownership)
        return ownership

    async def give(self, *given: Batch) -> None:
        self.consumer.given.put_nowait(list(given))
        await asyncio.sleep(0)
        await asyncio.sleep(0)


def batch_of(partition: TopicPartition, offset: int, *values: bytes) -> Batch:
    data = build_batch(values, base_offset=offset, timestamp_ms=0)
    ((at, header),) = iter_headers(data)
    return Batch(partition, header, data, at, offset)


@on_a_loop
async def test_a_full_stream_is_fed_again_when_it_has_room() -> None:
    fed = Fed()
    fed.own(FIRST, 3)
    await fed.give(batch_of(FIRST, 3, b"a"), batch_of(FIRST, 4, b"b"))
    assert fed.consumer.paused == {FIRST}
    fed.own(SECOND, 0)
    assert fed.consumer.paused == {FIRST, SECOND}
    assert fed.consumer.sought == [(FIRST, 3), (SECOND, 0)]
    assert next(fed.stream).offset == 3
    assert fed.hungry == [fed.stream]
    fed.feed.resume(fed.stream)
    assert fed.consumer.paused == set()
    assert next(fed.stream).offset == 4


@on_a_loop
async def test_batches_of_a_released_partition_are_dropped() -> None:
    fed = Fed()
    ownership = fed.own(FIRST, 0)
    fed.own(SECOND, 0)
    fed.feed.remove([ownership])
    assert fed.consumer.assigned == [SECOND]
    await fed.give(batch_of(FIRST, 0, b"a"), batch_of(SECOND, 0, b"b"))
    assert next(fed.stream).value == b"b"
    with pytest.raises(ConsumerTimeout):
        next(fed.stream)


@on_a_loop
async def test_only_permanent_errors_are_raised_in_the_stream() -> None:
    fed = Fed()
    fed.own(FIRST, 0)
    for error in (NoBroker("nobody"), ApiError(Error.NOT_LEADER_OR_FOLLOWER)):
        fed.feed._tell(error)
    with pytest.raises(ConsumerTimeout):
        next(fed.stream)
    for fault in (CorruptRecords("bad"), ApiError(Error.TOPIC_AUTHORIZATION_FAILED)):
        fed.feed._tell(fault)
        with pytest.raises(type(fault), match=fault.error.name):
            next(fed.stream)


@on_a_loop
async def test_feeding_resumes_after_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kdist.client.classic.connector.feed._TRY_AGAIN_S", 0.0)
    fed = Fed()
    fed.own(FIRST, 0)
    fed.consumer.given.put_nowait(CorruptRecords("bad"))
    await fed.give(batch_of(FIRST, 0, b"a"))
    with pytest.raises(CorruptRecords):
        next(fed.stream)
    await asyncio.sleep(0.01)
    assert next(fed.stream).value == b"a"


@on_a_loop
async def test_the_starting_offset_is_asked_for_until_it_is_known(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("kdist.client.classic.connector.feed._TRY_AGAIN_S", 0.0)
    fed = Fed()
    fed.consumer.ends = [NoBroker("nobody"), {FIRST: 17}]
    assert await fed.feed.first_offset(FIRST) == 17
    fed.consumer.ends = [ApiError(Error.TOPIC_AUTHORIZATION_FAILED)]
    with pytest.raises(ApiError, match="TOPIC_AUTHORIZATION_FAILED"):
        await fed.feed.first_offset(FIRST)
