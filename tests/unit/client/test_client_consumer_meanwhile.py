"""What happens while a consumer waits: other tasks take records, leave, commit; topics change."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from kdist.client.consumer.aio import Consumer
from kdist.client.consumer.context import ConsumerClosed
from kdist.client.consumer.rebalancing import Partitions, RebalanceListener
from kdist.client.offsets import OffsetAndMetadata
from kdist.model import TopicPartition
from kdist.protocol.create_partitions import CreatePartitionsRequest, GrownTopic
from tests.simulator.cluster import Cluster, produce
from tests.unit.client.client_group_world import HASTY, TOPIC, Group, consumer_on, with_topic

pytestmark = pytest.mark.played(by=with_topic)

ZERO = TopicPartition(TOPIC, 0)


@pytest.mark.parametrize("take", [Consumer.poll, Consumer.poll_batches])
async def test_a_poll_goes_on_with_what_is_held_of_another_tasks_loop(
    cluster: Cluster, group: Group, /, take: Callable[[Consumer], Coroutine[Any, Any, Any]]
) -> None:
    """It looked for records again and again, and time stood still for all other tasks."""
    consumer = consumer_on(cluster, "c", **HASTY)
    consumer.subscribe([TOPIC])
    assert await consumer.poll(3) == []
    found: list[int] = []

    async def iterate() -> None:
        async for record in consumer:
            found.append(record.offset)
            await asyncio.sleep(60)

    iterating = asyncio.ensure_future(iterate())
    await asyncio.sleep(0)
    polling = asyncio.ensure_future(take(consumer))
    await asyncio.sleep(1)
    await produce(group._client, TOPIC, *[b"x"] * 4)
    async with asyncio.timeout(5):
        taken = await polling
    found += [each.offset for each in (taken[0] if take is Consumer.poll_batches else taken)]
    assert found == [0, 1, 2, 3]
    iterating.cancel()
    await consumer.close()


async def test_a_loop_that_waits_at_the_end_begins_anew_in_a_topic_that_was_recreated(
    cluster: Cluster, group: Group, /
) -> None:
    """It waited for ever: the last run, all of which was yielded, counted as not yielded yet."""
    await produce(group._client, TOPIC, *[b"x"] * 3)
    consumer = consumer_on(cluster, "c", **HASTY)
    consumer.subscribe([TOPIC])
    found: list[int] = []

    async def iterate() -> None:
        async for record in consumer:
            found.append(record.offset)
            await asyncio.sleep(0)

    iterating = asyncio.ensure_future(iterate())
    await cluster.until(lambda: found == [0, 1, 2])
    await asyncio.sleep(1)
    consumer._core._recreated(TOPIC)
    await asyncio.sleep(5)
    assert found == [0, 1, 2, 0, 1, 2]
    iterating.cancel()
    await consumer.close()


class Slow(RebalanceListener):
    """Notes what is taken from it, which takes it two seconds."""

    def __init__(self) -> None:
        self.told: list[TopicPartition] = []

    async def on_revoked(self, partitions: Partitions) -> None:
        self.told += partitions
        await asyncio.sleep(2)


@pytest.mark.parametrize("end", ["unsubscribe", "close"])
@pytest.mark.parametrize("strategy", ["range", "cooperative-sticky"])
@pytest.mark.parametrize("left_after_s", [0, 0.001, 1, 1.999, 2, 2.001])
async def test_who_leaves_while_another_task_takes_part_in_a_rebalance_has_left(
    cluster: Cluster,
    group: Group,
    /,
    end: str,
    strategy: str,
    left_after_s: float,
) -> None:
    """The other task told the listener again, and joined: a member without topics, for ever."""
    await group.produce(1)
    consumer = consumer_on(cluster, "c", **HASTY, partition_assignment_strategy=strategy)
    listener = Slow()
    consumer.subscribe([TOPIC], listener)
    assert len(await consumer.poll(10)) == 1
    member = consumer._core.membership
    assert member is not None
    consumer.subscribe(["others"], listener)
    polling = asyncio.ensure_future(consumer.poll(20))
    await asyncio.sleep(left_after_s)
    await getattr(consumer, end)()
    await asyncio.wait([polling], timeout=30)
    assert listener.told == [ZERO]
    assert not member.is_member
    assert not member.must_join
    await consumer.close()
    assert not polling.cancel()
    assert polling.exception() is None or isinstance(polling.exception(), ConsumerClosed)


async def test_partitions_assigned_by_hand_stay_when_a_topic_of_the_group_that_was_left_grows(
    cluster: Cluster, group: Group, /
) -> None:
    """They were revoked, and the group joined without topics: nothing was read any more."""
    consumer = consumer_on(cluster, "c", **HASTY, metadata_max_age_ms=1_000)
    consumer.subscribe([TOPIC])
    assert await consumer.poll(5) == []
    await consumer.unsubscribe()
    consumer.assign([ZERO])
    assert await consumer.poll(5) == []
    more = GrownTopic(name=TOPIC, count=3, assignments=None)
    request = CreatePartitionsRequest(topics=[more], timeout_ms=5_000, validate_only=False)
    assert not (await group._client.send(request)).results[0].error_code
    await group.produce(1)
    assert len(await consumer.poll(5)) == 1
    await consumer.poll(5)
    assert consumer.assignment() == {ZERO}
    await consumer.close()


async def test_a_position_in_a_topic_that_was_recreated_is_not_committed(
    cluster: Cluster, group: Group, /
) -> None:
    """The next who reads would skip the records of the new topic that are before it."""
    await group.produce(5)
    consumer = consumer_on(cluster, "c", **HASTY)
    consumer.subscribe([TOPIC])
    assert len(await consumer.poll(10, 2)) == 2
    consumer.pause(ZERO)
    consumer._core._recreated(TOPIC)
    await consumer.commit()
    await consumer.poll(5)
    assert await consumer.committed([ZERO]) == {ZERO: None}
    await consumer.close()


async def test_what_is_polled_while_a_commit_is_under_way_is_not_done_by_that(
    cluster: Cluster, group: Group, /
) -> None:
    """A close after an error committed it, though the loop had not finished it."""
    await group.produce(6)
    consumer = consumer_on(cluster, "c", **HASTY | {"auto_commit_interval_ms": 60_000})
    consumer.subscribe([TOPIC])
    assert len(await consumer.poll(10, 3)) == 3
    committing = asyncio.ensure_future(consumer.commit())
    await asyncio.sleep(0)
    assert len(await consumer.poll(0, 3)) == 3
    await committing
    with pytest.raises(ValueError, match="in the loop"):
        async with consumer:
            raise ValueError("in the loop")
    async with consumer_on(cluster, "d", **HASTY) as other:
        assert (await other.committed([ZERO]))[ZERO] == OffsetAndMetadata(3)
