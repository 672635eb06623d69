"""Reading without a group, in virtual time: positions, read-ahead, what brokers refuse."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from kdist.client.cluster import NoBroker
from kdist.client.consumer.aio import Consumer
from kdist.client.consumer.context import WakenUp
from kdist.client.consumer.fetcher import Fetcher, LogTruncated, OffsetOutOfRange
from kdist.client.consumer.positions import NoOffset
from kdist.client.offsets import OffsetAndMetadata
from kdist.errors import Error, UserError
from kdist.model import TopicPartition
from kdist.protocol.delete_topics import DeleteTopicsRequest, TopicToDelete
from kdist.protocol.fetch import DivergingEpoch, FetchPartition, FetchPartitionResult
from tests.refusals import refused
from tests.simulator.cluster import Cluster, create, produce
from tests.unit.client.client_group_world import TOPIC, Group, consumer_on, with_topic

pytestmark = pytest.mark.played(by=with_topic)

ZERO = TopicPartition(TOPIC, 0)


async def offsets(consumer: Consumer, count: int) -> list[int]:
    found: list[int] = []
    while len(found) < count:
        records = await consumer.poll(10)
        assert records, "nothing came in ten seconds"
        found += [record.offset for record in records]
    return found


async def test_the_offsets_of_what_does_not_exist_are_refused_within_a_second(
    cluster: Cluster, group: Group, /
) -> None:
    consumer, begun_s = consumer_on(cluster, "reader"), cluster.loop.time()
    with refused(Error.UNKNOWN_TOPIC_OR_PARTITION, "clcks-0: no such topic"):
        await consumer.beginning_offsets([TopicPartition("clcks", 0)])
    with refused(Error.UNKNOWN_TOPIC_OR_PARTITION, "clicks-1: topic clicks has partitions 0 to 0"):
        await consumer.end_offsets([ZERO, TopicPartition(TOPIC, 1)])
    assert cluster.loop.time() < begun_s + 2
    await consumer.close()


async def test_a_seek_while_connecting_is_not_undone(cluster: Cluster, group: Group, /) -> None:
    await group.produce(3)
    for steps in range(40):  # wherever the first fetch is by then
        consumer = consumer_on(cluster, "reader")
        consumer.assign([ZERO])
        consumer.seek(ZERO, 1)
        for _ in range(steps):
            await asyncio.sleep(0.0005)
        consumer.seek_to_beginning(ZERO)
        assert await offsets(consumer, 3) == [0, 1, 2]
        await consumer.close()


@pytest.mark.played(by=with_topic, partitions=4)
async def test_no_more_bytes_are_fetched_ahead_than_allowed(
    cluster: Cluster, group: Group, /
) -> None:
    await group.produce(400)
    batch_bytes = 71
    consumer = consumer_on(
        cluster, "reader", max_partition_fetch_bytes=10 * batch_bytes, fetch_max_bytes=4000
    )
    consumer.assign([TopicPartition(TOPIC, number) for number in range(4)])
    consumer.seek_to_beginning()
    assert len(await consumer.poll(10, 1)) == 1
    await asyncio.sleep(20)
    ready = [each.ready_bytes for each in consumer._core.partitions.values()]
    assert all(0 < each <= 30 * batch_bytes for each in ready)
    assert sum(ready) <= 2 * 4000
    found = 1
    while found < 400:
        found += len(await consumer.poll(10))
    await consumer.close()


@pytest.mark.played(by=with_topic, partitions=8)
async def test_a_reader_with_enough_ready_does_not_ask_for_more_after_each_batch(
    cluster: Cluster, group: Group, /
) -> None:
    await group.produce(400)
    consumer = consumer_on(cluster, "reader", fetch_max_bytes=4000)
    consumer.assign([TopicPartition(TOPIC, number) for number in range(8)])
    consumer.seek_to_beginning()
    partitions, completed = consumer._core.partitions.values(), consumer._core.completed
    await cluster.until(lambda: sum(each.ready_bytes for each in partitions) >= 4000)
    batch_bytes = 71
    batches = sum(each.ready_bytes for each in partitions) // batch_bytes
    consumer._core.kick()
    given = 0
    while not completed.is_hungry:
        given += len(completed.take_batches(1))
    assert batches / 8 < given <= batches
    await consumer.close()


def truncated(consumer: Consumer, end: int) -> None:
    """A leader's answer that the log was truncated at `end`."""
    fetcher = consumer._core._fetcher
    position = consumer._core.partitions[ZERO].fetch_position
    asked = FetchPartition(partition=0, fetch_offset=position, partition_max_bytes=1)
    diverging = DivergingEpoch(epoch=1, end_offset=end)
    result = FetchPartitionResult(
        partition_index=0, error_code=0, high_watermark=end, diverging_epoch=diverging
    )
    fetcher._note_one(1, ZERO, asked, result)


async def test_reading_resumes_where_a_log_was_truncated(cluster: Cluster, group: Group, /) -> None:
    await group.produce(6)
    consumer = consumer_on(cluster, "reader", auto_offset_reset="earliest")
    consumer.assign([ZERO])
    assert await offsets(consumer, 6) == [0, 1, 2, 3, 4, 5]
    truncated(consumer, 4)
    assert await offsets(consumer, 2) == [4, 5]
    await consumer.close()


async def test_a_truncated_log_is_an_error_where_offsets_are_not_reset(
    cluster: Cluster, group: Group, /
) -> None:
    await group.produce(6)
    consumer = consumer_on(cluster, "reader", auto_offset_reset="none")
    consumer.assign([ZERO])
    consumer.seek(ZERO, 0)
    await offsets(consumer, 6)
    truncated(consumer, 4)
    with pytest.raises(LogTruncated, match="was read up to offset 6, and then truncated to 4"):
        await consumer.poll(10)
    await consumer.close()


async def test_a_broker_that_refuses_the_offset_it_gave_is_asked_again_after_a_pause(
    cluster: Cluster, group: Group, /, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers: list[float] = []
    note_one = Fetcher._note_one

    def refuse(
        fetcher: Fetcher,
        broker: int,
        key: TopicPartition,
        asked: FetchPartition,
        result: FetchPartitionResult,
    ) -> None:
        answers.append(fetcher._context.now_s())
        if answers[-1] - answers[0] < 5:
            code = Error.OFFSET_OUT_OF_RANGE
            result = FetchPartitionResult(partition_index=0, error_code=code, high_watermark=-1)
        note_one(fetcher, broker, key, asked, result)

    await group.produce(3)
    consumer = consumer_on(cluster, "reader", auto_offset_reset="earliest")
    monkeypatch.setattr(Fetcher, "_note_one", refuse)
    consumer.assign([ZERO])
    assert await offsets(consumer, 3) == [0, 1, 2]
    assert 10 < len(answers) < 150  # two in each tenth of a second, and not one after the other
    await consumer.close()


async def test_without_reset_a_missing_offset_is_an_error_each_time(
    cluster: Cluster, group: Group, /
) -> None:
    await group.produce(2)
    consumer = consumer_on(cluster, "reader", auto_offset_reset="none", group_id="g")
    consumer.assign([ZERO])
    for _ in range(2):
        with pytest.raises(NoOffset, match="no offset is committed for clicks-0"):
            await consumer.poll(10)
    consumer.seek(ZERO, 9)
    with pytest.raises(OffsetOutOfRange, match="clicks-0 has no offset 9"):
        await consumer.poll(10)
    consumer.seek(ZERO, 0)
    assert await offsets(consumer, 2) == [0, 1]
    await consumer.close()


async def test_an_error_at_an_abandoned_position_is_not_raised(
    cluster: Cluster, group: Group, /
) -> None:
    await group.produce(2)
    consumer = consumer_on(cluster, "reader", auto_offset_reset="none")
    consumer.assign([ZERO])
    consumer.seek(ZERO, 9)
    await cluster.until(lambda: consumer._core.context.is_troubled)
    consumer.seek(ZERO, 1)
    assert await offsets(consumer, 1) == [1]
    await consumer.close()


async def test_commits_in_the_background_are_ordered_and_call_back(
    cluster: Cluster, group: Group, /
) -> None:
    await group.produce(5)
    told: list[int] = []
    consumer = consumer_on(cluster, "reader", auto_offset_reset="earliest", group_id="g")
    consumer.assign([ZERO])
    for offset in range(5):
        consumer.commit_async({ZERO: offset}, lambda given, error: told.append(given[ZERO].offset))
    await consumer.commit({ZERO: OffsetAndMetadata(5, "last", 0)})
    assert told == [0, 1, 2, 3, 4]
    assert await consumer.committed([ZERO]) == {ZERO: OffsetAndMetadata(5, "last", 0)}
    await consumer.close()


def test_a_missing_topic_is_reported_once_and_read_when_it_is_created(
    caplog: pytest.LogCaptureFixture,
) -> None:
    cluster = Cluster()

    async def scenario() -> None:
        await cluster.started()
        consumer = consumer_on(cluster, "reader", auto_offset_reset="earliest", group_id="g")
        consumer.subscribe([TOPIC])
        assert await consumer.poll(5) == []
        group = Group(cluster, 2)
        await group.begin()
        await group.produce(4)
        found: list[bytes] = []
        while len(found) < 4:
            records = await consumer.poll(20)
            assert records
            found += [record.value for record in records]
        await consumer.close()

    cluster.run(scenario())
    told = [each.message for each in caplog.records if each.name.startswith("kdist.client")]
    assert told == [f"topic {TOPIC} does not exist: waiting for it"]


async def test_questions_about_a_deleted_topic_are_soon_refused(
    cluster: Cluster, group: Group, /
) -> None:
    await group.produce(2)
    consumer = consumer_on(cluster, "reader", auto_offset_reset="earliest")
    consumer.assign([ZERO])
    assert await offsets(consumer, 2) == [0, 1]
    await group._client.send(
        DeleteTopicsRequest(topics=[TopicToDelete(name=TOPIC)], timeout_ms=10_000), 6
    )
    consumer.seek_to_end(ZERO)
    for ask in (consumer.position, lambda each: consumer.end_offsets([each])):
        begun_s = cluster.loop.time()
        with refused(Error.UNKNOWN_TOPIC_OR_PARTITION, TOPIC):
            await ask(ZERO)  # not only after default_api_timeout_ms
        assert cluster.loop.time() - begun_s < 13
    await consumer.close()


async def test_a_question_about_a_topic_that_comes_back_is_answered(
    cluster: Cluster, group: Group, /
) -> None:
    consumer = consumer_on(cluster, "reader", auto_offset_reset="earliest")
    consumer.assign([TopicPartition("late", 0)])
    position = asyncio.ensure_future(consumer.position(TopicPartition("late", 0)))
    await asyncio.sleep(8)
    end = asyncio.ensure_future(consumer.end_offsets([TopicPartition("late", 0)]))
    await asyncio.sleep(0.2)
    await create(group._client, "late", 1)
    assert await asyncio.gather(position, end) == [0, {TopicPartition("late", 0): 0}]
    await consumer.close()


async def test_how_long_a_topic_was_missing_is_forgotten_with_the_topic(
    cluster: Cluster, group: Group, /
) -> None:
    late = TopicPartition("late", 0)
    consumer = consumer_on(cluster, "reader", auto_offset_reset="earliest")
    consumer.assign([late])
    await asyncio.sleep(5)
    consumer.assign([ZERO])
    await asyncio.sleep(15)
    await create(group._client, "late", 1)
    consumer.assign([late])
    assert await consumer.position(late) == 0
    await consumer.close()


async def test_a_missing_broker_is_reported_and_found_later(cluster: Cluster) -> None:
    consumer = consumer_on(cluster, "reader", auto_offset_reset="earliest")
    consumer.assign([ZERO])
    with pytest.raises(NoBroker, match="no broker answers at m1:9092"):
        await consumer.poll(60)
    await cluster.started()
    group = Group(cluster, 1)
    await group.begin()
    await group.produce(1)
    found: list[Any] = []
    while not found:
        try:
            found = await consumer.poll(5)
        except NoBroker:
            continue  # from before it was up
    await consumer.close()


async def test_a_wakeup_ends_one_poll(cluster: Cluster, group: Group, /) -> None:
    consumer = consumer_on(cluster, "reader")
    consumer.assign([ZERO])
    cluster.loop.call_later(3, consumer.wakeup)
    with pytest.raises(WakenUp):
        await consumer.poll()
    assert await consumer.poll(0.1) == []
    await consumer.close()


async def test_contradictory_calls_are_refused_in_a_sentence(
    cluster: Cluster, group: Group, /
) -> None:
    consumer = consumer_on(cluster, "reader")
    with pytest.raises(UserError, match="subscribing needs a group_id"):
        consumer.subscribe([TOPIC])
    with pytest.raises(UserError, match="committed offsets belong to a group"):
        await consumer.commit()
    with pytest.raises(UserError, match="clicks-0 is not assigned to this consumer"):
        consumer.seek(ZERO, 0)
    with pytest.raises(UserError, match=r"topic 'a b' has a character"):
        consumer.assign([TopicPartition("a b", 0)])
    consumer.assign([ZERO])
    with pytest.raises(UserError, match="9223372036854775808 is not an offset"):
        consumer.seek(TopicPartition(TOPIC, 0), 1 << 63)
    with pytest.raises(UserError, match="-1 is not an offset"):
        consumer.seek(ZERO, -1)
    await consumer.close()


async def check_committed(consumer: Consumer, offset: int) -> None:
    committed = (await consumer.committed([ZERO]))[ZERO]
    assert committed is not None
    assert (committed.offset, committed.leader_epoch) == (offset, 0)


async def between(consumer: Consumer, found: list[int]) -> None:
    """What an application may do between two records."""
    offset = found[-1]
    match offset % 50:
        case 3 | 8:
            await consumer.commit()
            await check_committed(consumer, offset + 1)
        case 5:
            consumer.commit_async()
        case 6:
            assert await consumer.position(ZERO) == offset + 1
        case 7 | 47:
            consumer.pause(ZERO)
            assert await consumer.poll(0.1) == []
            await consumer.commit()
            await check_committed(consumer, offset + 1)
            consumer.resume(ZERO)
        case 9:
            consumer.assign([ZERO])
        case 10:
            (batch,) = await consumer.poll_batches(1, 1)
            found += batch.offsets()


@pytest.mark.parametrize("batch_size", [1, 40])
def test_what_iteration_has_taken_is_not_fetched_again(
    batch_size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`pause` dropped the records taken and all that was fetched ahead, and the leader epoch."""
    fetched: list[int] = []
    complete = Fetcher._complete

    def note(fetcher: Fetcher, partition: Any, result: FetchPartitionResult) -> None:
        fetched.append(partition.fetch_position)
        complete(fetcher, partition, result)

    async def scenario(cluster: Cluster, group: Group) -> None:
        for _ in range(400 // batch_size):
            await produce(group._client, TOPIC, *[b"x"] * batch_size)
        consumer = consumer_on(
            cluster, "reader", group_id="g", auto_offset_reset="earliest", enable_auto_commit=False
        )
        consumer.assign([ZERO])
        found: list[int] = []
        async for record in consumer:
            found.append(record.offset)
            await between(consumer, found)
            if found[-1] == 399:
                break
        assert found == list(range(400))
        assert fetched == [0]
        await consumer.close()

    monkeypatch.setattr(Fetcher, "_complete", note)
    with_topic(scenario)


@pytest.mark.played(by=with_topic, partitions=2)
async def test_pausing_another_partition_does_not_disturb_the_iteration(
    cluster: Cluster, group: Group, /
) -> None:
    await group.produce(100)
    one = TopicPartition(TOPIC, 1)
    consumer = consumer_on(cluster, "reader", auto_offset_reset="earliest")
    consumer.assign([ZERO, one])
    consumer.seek_to_beginning()
    await consumer.position(one)
    consumer.pause(one)
    found = []
    async for record in consumer:
        found.append((record.partition, record.offset))
        consumer.pause(one)
        if record.offset == 49:
            break
    assert found == [(0, number) for number in range(50)]
    await consumer.close()


def test_a_partition_without_a_leader_is_looked_up_at_growing_intervals() -> None:
    """It was looked up five times a second, and a stale leader asked ten times, for ever."""

    async def scenario(cluster: Cluster, group: Group) -> None:
        consumer = consumer_on(cluster, "reader", auto_offset_reset="earliest")
        consumer.assign([ZERO, TopicPartition(TOPIC, 7)])
        consumer.seek(TopicPartition(TOPIC, 7), 5)
        looked = 0
        look_up = consumer._core.context.cluster.metadata

        async def count(*given: Any) -> Any:
            nonlocal looked
            looked += 1
            return await look_up(*given)

        consumer._core.context.cluster.metadata = count  # type: ignore[method-assign]
        await consumer.poll(100)
        assert looked <= 110
        await consumer.close()

    with_topic(scenario)
