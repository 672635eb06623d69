"""A faulty or paused partition does not hold up the others."""

from __future__ import annotations

import asyncio

import pytest

from kdist.client.admin.topics import NewTopic, create_topics
from kdist.client.cluster import Address
from kdist.client.cluster import Cluster as Asking
from kdist.client.consumer.batch import CorruptFetch
from kdist.client.consumer.fetch_session import FetchSession
from kdist.client.consumer.fetcher import Fetcher, OffsetOutOfRange
from kdist.client.consumer.metadata import Leader
from kdist.client.produce_once import produce as produce_to
from kdist.errors import Error
from kdist.model import TopicPartition
from kdist.network.client import ClientSettings
from kdist.protocol.delete_topics import DeleteTopicsRequest, TopicToDelete
from kdist.protocol.fetch import FetchPartition, FetchPartitionResult
from kdist.records.build import build_batch
from tests.refusals import refused
from tests.simulator.cluster import PORT, Cluster, create, produce
from tests.unit.broker.broker_quotas import FETCH, change, set_
from tests.unit.client.client_group_world import TOPIC, Group, consumer_on, with_topic
from tests.unit.client.test_client_consumer_reading import ZERO, offsets, truncated

pytestmark = pytest.mark.played(by=with_topic)

ONE = TopicPartition(TOPIC, 1)


@pytest.mark.played(by=with_topic, partitions=2)
async def test_a_partition_without_a_leader_does_not_delay_the_others(
    cluster: Cluster, group: Group, /
) -> None:
    await group.produce(4)
    consumer = consumer_on(cluster, "reader", auto_offset_reset="earliest")
    nowhere = TopicPartition(TOPIC, 7)
    consumer.assign([ZERO, nowhere])
    begun_s = cluster.loop.time()
    assert await offsets(consumer, 2) == [0, 1]
    assert cluster.loop.time() - begun_s < 2
    consumer.assign([ZERO, ONE, nowhere])
    assert await offsets(consumer, 2) == [0, 1]
    assert cluster.loop.time() - begun_s < 4
    with refused(Error.UNKNOWN_TOPIC_OR_PARTITION, "clicks-7"):
        await consumer.poll(200)
    await consumer.close()


async def test_a_partition_that_is_not_there_is_told_with_those_that_are(
    cluster: Cluster, group: Group, /, caplog: pytest.LogCaptureFixture
) -> None:
    consumer = consumer_on(cluster, "reader", auto_offset_reset="earliest")
    consumer.assign([TopicPartition(TOPIC, 7)])
    assert await consumer.poll(2) == []
    assert [each.message for each in caplog.records if "clicks-7" in each.message] == [
        "clicks-7 does not exist: waiting for it (topic clicks has partitions 0 to 0)"
    ]
    with refused(Error.UNKNOWN_TOPIC_OR_PARTITION, "clicks-7: topic clicks has partitions 0 to 0"):
        await consumer.poll(200)
    await consumer.close()


async def test_a_partition_without_a_leader_is_waited_for_while_others_are_read(
    cluster: Cluster,
) -> None:
    """It used to be raised every `default_api_timeout_ms`, though the others were read."""
    for broker in (1, 2):
        await cluster.started(broker)
    network = cluster.network.host("admin")
    asking = Asking(network, [Address("m1", PORT)], ClientSettings("admin"))
    await create_topics(asking, [NewTopic(TOPIC, replicas=[[1], [2]])])
    cluster.kill(cluster.brokers[2])
    client = await cluster.client()
    await client.negotiate()
    consumer = consumer_on(
        cluster, "reader", auto_offset_reset="earliest", default_api_timeout_ms=5_000
    )
    consumer.assign([ZERO, ONE])
    for offset in range(20):
        await produce(client, TOPIC, b"")
        assert await offsets(consumer, 1) == [offset]
        await asyncio.sleep(2)
    consumer.assign([ONE])
    with refused(Error.LEADER_NOT_AVAILABLE, "clicks-1"):  # nothing else is read
        await consumer.poll(10)
    await cluster.started(2)
    await asking.led([ONE])
    await produce_to(asking, {ONE: build_batch([b""], timestamp_ms=1)})
    assert await offsets(consumer, 1) == [0]
    asking.close()
    await consumer.close()


@pytest.mark.played(by=with_topic, partitions=2)
async def test_records_ready_in_paused_partitions_do_not_starve_the_others(
    cluster: Cluster, group: Group, /
) -> None:
    await group.produce(200)
    consumer = consumer_on(cluster, "reader", max_partition_fetch_bytes=700, fetch_max_bytes=1_000)
    consumer.assign([ONE])
    consumer.seek_to_beginning()
    await cluster.until(lambda: consumer._core.partitions[ONE].ready_bytes >= 1_000)
    consumer.pause(ONE)
    consumer.assign([ZERO, ONE])
    consumer.seek_to_beginning(ZERO)
    assert await offsets(consumer, 100) == list(range(100))
    consumer.resume(ONE)
    assert await offsets(consumer, 100) == list(range(100))
    await consumer.close()


def test_a_corrupt_batch_is_fetched_once(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(cluster: Cluster, group: Group) -> None:
        await group.produce(3)
        consumer = consumer_on(cluster, "reader")
        fetched = 0
        complete = Fetcher._complete

        def damaged(fetcher: Fetcher, partition: object, result: FetchPartitionResult) -> None:
            nonlocal fetched
            fetched += 1
            records = bytearray(result.records or b"")
            records[-1] ^= 1
            result.records = bytes(records)
            complete(fetcher, partition, result)  # type: ignore[arg-type]

        consumer.assign([ZERO])
        consumer.seek(ZERO, 2)
        monkeypatch.setattr(Fetcher, "_complete", damaged)
        for _ in range(3):
            await asyncio.sleep(5)
            with pytest.raises(CorruptFetch, match="clicks-0, at offset 2"):
                await consumer.poll(10)
        assert fetched == 1
        monkeypatch.setattr(Fetcher, "_complete", complete)
        consumer.seek(ZERO, 2)
        assert await offsets(consumer, 1) == [2]
        await consumer.close()

    with_topic(scenario)


async def test_a_brokers_corrupt_message_error_is_raised(cluster: Cluster, group: Group, /) -> None:
    await group.produce(1)
    consumer = consumer_on(cluster, "reader", auto_offset_reset="earliest")
    consumer.assign([ZERO])
    assert await offsets(consumer, 1) == [0]
    asked = FetchPartition(partition=0, fetch_offset=1, partition_max_bytes=1)
    code = Error.CORRUPT_MESSAGE.code
    result = FetchPartitionResult(partition_index=0, error_code=code, high_watermark=-1)
    consumer._core._fetcher._note_one(1, ZERO, asked, result)
    with refused(Error.CORRUPT_MESSAGE, "clicks-0"):
        await consumer.poll(1)
    await consumer.close()


async def test_records_ready_before_a_truncation_point_are_returned(
    cluster: Cluster, group: Group, /
) -> None:
    await group.produce(6)
    consumer = consumer_on(cluster, "reader", auto_offset_reset="earliest")
    consumer.assign([ZERO])
    found = [record.offset for record in await consumer.poll(10, 1)]
    await cluster.until(lambda: consumer._core.partitions[ZERO].fetch_position == 6)
    truncated(consumer, 4)
    found += await offsets(consumer, 5)
    assert found == [0, 1, 2, 3, 4, 5]
    await consumer.close()


@pytest.mark.parametrize("kept", [30, 62])
def test_a_fetch_without_a_whole_batch_is_raised_and_retried_at_a_pace(
    monkeypatch: pytest.MonkeyPatch, kept: int
) -> None:
    """It used to be fetched again as fast as answers came, without an error in any poll."""

    async def scenario(cluster: Cluster, group: Group) -> None:
        await group.produce(3)
        consumer = consumer_on(cluster, "reader", auto_offset_reset="earliest")
        fetched = 0
        complete = Fetcher._complete

        def cut(fetcher: Fetcher, partition: object, result: FetchPartitionResult) -> None:
            nonlocal fetched
            fetched += 1
            result.records = bytes(result.records or b"")[:kept]  # type: ignore[arg-type]
            complete(fetcher, partition, result)  # type: ignore[arg-type]

        monkeypatch.setattr(Fetcher, "_complete", cut)
        consumer.assign([ZERO])
        for _ in range(3):
            with pytest.raises(CorruptFetch, match="no complete batch"):
                await consumer.poll(10)
        assert fetched <= 4
        monkeypatch.setattr(Fetcher, "_complete", complete)
        assert await offsets(consumer, 3) == [0, 1, 2]
        await consumer.close()

    with_topic(scenario)


@pytest.mark.parametrize(
    "error", [Error.OFFSET_OUT_OF_RANGE, Error.OFFSET_NOT_AVAILABLE, Error.NOT_LEADER_OR_FOLLOWER]
)
@pytest.mark.parametrize("preferred", [7, None])
async def test_what_a_follower_refuses_is_asked_of_the_leader(
    cluster: Cluster, group: Group, /, error: Error, preferred: int | None
) -> None:
    """Also if the leader has not named it, or does not any more."""
    await group.produce(2)
    consumer = consumer_on(cluster, "reader", auto_offset_reset="earliest")
    consumer.assign([ZERO])
    assert await offsets(consumer, 2) == [0, 1]
    place = consumer._core.partitions[ZERO]
    place.preferred_replica, place.preferred_until_s = preferred, float("inf")
    asked = FetchPartition(partition=0, fetch_offset=2, partition_max_bytes=1)
    result = FetchPartitionResult(partition_index=0, error_code=error, high_watermark=-1)
    consumer._core._fetcher._note_one(7, ZERO, asked, result)
    assert place.preferred_replica is None
    await group.produce(1)
    assert await offsets(consumer, 1) == [2]
    await consumer.close()


async def test_a_leader_that_was_replaced_during_the_connect_is_not_asked_in_the_new_epoch(
    cluster: Cluster, group: Group, /, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would answer as a follower, which may have nothing of what was read."""
    await group.produce(2)
    consumer = consumer_on(cluster, "reader", auto_offset_reset="earliest")
    consumer.assign([ZERO])
    assert await offsets(consumer, 2) == [0, 1]
    fetcher, place = consumer._core._fetcher, consumer._core.partitions[ZERO]
    with monkeypatch.context() as patched:
        patched.setattr(fetcher._metadata, "leader", lambda _: Leader(7, 1))
        patched.setattr(fetcher, "_request", lambda _: pytest.fail("it is asked"))
        await fetcher._fetch(1, FetchSession(), [place])
    await group.produce(1)
    assert await offsets(consumer, 1) == [2]
    await consumer.close()


@pytest.mark.parametrize("assigned", [[ZERO], [ZERO, ONE]])
@pytest.mark.played(by=with_topic, partitions=2)
async def test_a_held_consumer_goes_on_at_once_when_its_quota_is_taken_away(
    cluster: Cluster, group: Group, /, assigned: list[TopicPartition]
) -> None:
    await set_(group._client, "held", consumer_byte_rate=1_000)
    await produce(group._client, TOPIC, b"x" * 40_000)
    consumer = consumer_on(cluster, "c", client_id="held", auto_offset_reset="earliest")
    consumer.assign(assigned)
    assert await offsets(consumer, 1) == [0]
    await produce(group._client, TOPIC, b"x")
    assert await consumer.poll(10) == []
    await change(group._client, "held", unset=(FETCH,))
    assert [record.offset for record in await consumer.poll(0.1)] == [1]
    await consumer.close()


async def recreated(group: Group, count: int) -> None:
    """Its topic is deleted, and another one of the name has this many records."""
    deleted = DeleteTopicsRequest(topics=[TopicToDelete(name=TOPIC)], timeout_ms=10_000)
    await group._client.send(deleted, 6)
    while (await create(group._client, TOPIC, group.partitions)).error_code:
        await asyncio.sleep(0.1)
    await produce(group._client, TOPIC, *[b"new"] * count)


@pytest.mark.parametrize("given", [1, 3])
async def test_a_recreated_topic_with_a_longer_log_is_read_from_where_offsets_are_reset_to(
    cluster: Cluster, group: Group, /, given: int
) -> None:
    """It went on in the new log at the offset of the old one, as the leader epoch was the same."""
    await group.produce(3)
    consumer = consumer_on(cluster, "reader", auto_offset_reset="earliest")
    consumer.assign([ZERO])
    found = [record.offset for record in await consumer.poll(10, given)]
    await recreated(group, 10)
    found += await offsets(consumer, 3 - given + 10)
    assert found == [0, 1, 2, *range(10)]
    await consumer.close()


async def test_a_recreated_topic_is_an_error_where_offsets_are_not_reset(
    cluster: Cluster, group: Group, /
) -> None:
    await group.produce(3)
    consumer = consumer_on(cluster, "reader", auto_offset_reset="none")
    consumer.assign([ZERO])
    consumer.seek_to_beginning()
    assert await offsets(consumer, 3) == [0, 1, 2]
    await recreated(group, 10)
    for _ in range(2):
        with pytest.raises(OffsetOutOfRange):
            await consumer.poll(20)
    consumer.seek(ZERO, 4)
    assert await offsets(consumer, 6) == list(range(4, 10))
    await consumer.close()


async def test_a_broker_that_has_not_heard_of_a_recreation_changes_nothing(
    cluster: Cluster, group: Group, /
) -> None:
    """Else the position would be reset by each answer of another broker."""
    await group.produce(3)
    consumer = consumer_on(cluster, "reader", auto_offset_reset="earliest")
    consumer.assign([ZERO])
    assert await offsets(consumer, 3) == [0, 1, 2]
    metadata = consumer._core.metadata
    stale = await consumer._core.context.cluster.metadata([TOPIC])
    await recreated(group, 10)
    assert await offsets(consumer, 10) == list(range(10))
    metadata._note(stale)
    metadata.refresh()
    assert await consumer.poll(10) == []
    assert metadata.leader(ZERO).id == 1
    await consumer.close()
