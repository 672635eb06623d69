"""A commit or an interrupted poll costs a member no partition, and it misses no topic."""

from __future__ import annotations

import asyncio
import re

import pytest

from kdist.client.consumer.aio import Consumer
from kdist.client.offsets import OffsetAndMetadata
from kdist.errors import ApiError, Error
from kdist.model import TopicPartition
from kdist.protocol.delete_topics import DeleteTopicsRequest, TopicToDelete
from tests.simulator.cluster import Cluster, create
from tests.unit.client.client_group_world import HASTY, TOPIC, Group, consumer_on

COOPERATIVE = HASTY | {"partition_assignment_strategy": "cooperative-sticky"}


def test_a_commit_while_the_group_rebalances_does_not_cost_a_member_its_partitions() -> None:
    cluster = Cluster()

    async def scenario() -> None:
        await cluster.started()
        group = Group(cluster, 4)
        await group.begin()
        first = group.join(**COOPERATIVE, enable_auto_commit=False)
        await cluster.until(lambda: group.shares == [4])
        is_done, refusals = False, set[Error]()

        async def commit() -> None:
            while not is_done:
                mine = dict.fromkeys(first.consumer.assignment(), 0)
                try:
                    await first.consumer.commit(mine)
                except ApiError as error:
                    refusals.add(error.error)
                await asyncio.sleep(0.0005)

        committing = asyncio.ensure_future(commit())
        second = group.join(**COOPERATIVE)
        await cluster.until(lambda: group.shares == [2, 2])
        is_done = True
        await committing
        assert (first.lost, refusals) == ([], {Error.REBALANCE_IN_PROGRESS})
        await second.leave()
        await first.leave()

    cluster.run(scenario())


def test_partitions_being_revoked_when_a_poll_was_interrupted_are_read_again() -> None:
    cluster = Cluster()

    async def scenario() -> None:
        await cluster.started()
        group = Group(cluster, 4)
        await group.begin()
        first = consumer_on(cluster, "first", **COOPERATIVE)
        first.subscribe([TOPIC])
        while len(first.assignment()) < 4:
            await first.poll(0.2)
        second = group.join(**COOPERATIVE)
        rebalancing = first._core.rebalancing
        assert rebalancing is not None
        commit_for, is_slow = rebalancing._commit_for, asyncio.Event()

        async def slow(partitions: object) -> None:
            if len(partitions) < 4:  # type: ignore[arg-type]  # those that are given back
                is_slow.set()
                await asyncio.sleep(5)

        rebalancing._commit_for = slow
        polling = asyncio.ensure_future(first.poll(20))
        await is_slow.wait()
        await asyncio.sleep(0.1)
        polling.cancel()
        await asyncio.wait([polling])
        rebalancing._commit_for = commit_for
        await second.die()
        end_s = cluster.loop.time() + 20
        while cluster.loop.time() < end_s:
            await first.poll(0.2)
        await group.produce(8)
        found: set[bytes] = set()
        while len(found) < 8:
            records = await first.poll(10)
            assert records, found
            found |= {record.value for record in records}
        await first.close()

    cluster.run(scenario())


def test_a_leader_watches_topics_that_only_others_subscribe_to() -> None:
    cluster = Cluster()

    async def scenario() -> None:
        await cluster.started()
        group = Group(cluster, 1)
        await group.begin()
        leader = consumer_on(cluster, "leader", **HASTY, metadata_max_age_ms=2_000)
        leader.subscribe([TOPIC])
        while not leader.assignment():
            await leader.poll(0.2)
        other = consumer_on(cluster, "other", **HASTY, metadata_max_age_ms=2_000)
        other.subscribe(["views"])
        polling = [asyncio.ensure_future(poll_on(each)) for each in (leader, other)]
        await asyncio.sleep(10)
        await create(group._client, "views", 1)
        await cluster.until(lambda: other.assignment() == {TopicPartition("views", 0)})
        for each in polling:
            each.cancel()
        await asyncio.wait(polling)

    cluster.run(scenario())


def test_a_leader_with_a_pattern_keeps_the_topics_it_matched() -> None:
    """Also while it looks up the other members' topics."""
    cluster = Cluster()

    async def scenario() -> None:
        await cluster.started()
        group = Group(cluster, 1)
        await group.begin()
        consumer = consumer_on(cluster, "leader", **HASTY)
        consumer.subscribe(re.compile("c.*"))
        while not consumer.assignment():
            await consumer.poll(0.2)
        await create(group._client, "cuts", 1)
        metadata = consumer._core.metadata
        metadata.refresh()
        await cluster.until(lambda: "cuts" in metadata.matched)
        await metadata.count([TOPIC])
        assert metadata.matched == {TOPIC, "cuts"}
        await consumer.close()

    cluster.run(scenario())


def test_a_deleted_topic_holds_up_no_rebalance_and_no_commit_of_other_topics() -> None:
    """The commit before a rebalance was tried again for five seconds, any other for a minute."""
    cluster = Cluster()

    async def scenario() -> None:
        await cluster.started()
        group = Group(cluster, 1)
        await group.begin()
        await create(group._client, "cuts", 1)
        clicks, cuts = TopicPartition(TOPIC, 0), TopicPartition("cuts", 0)
        consumer = consumer_on(
            cluster,
            "reader",
            **HASTY | {"auto_commit_interval_ms": 60_000},
            metadata_max_age_ms=9_000,
        )
        consumer.subscribe(re.compile("clicks|cuts"))
        while consumer.assignment() != {clicks, cuts}:
            await consumer.poll(0.2)
        await group.produce(3)
        while await consumer.position(clicks) < 3 or await consumer.position(cuts) < 0:
            await consumer.poll(0.2)
        deleted = DeleteTopicsRequest(topics=[TopicToDelete(name="cuts")], timeout_ms=10_000)
        await group._client.send(deleted, 6)
        await asyncio.sleep(0.5)
        begun_s = cluster.loop.time()
        with pytest.raises(ApiError, match="group readers: there is no cuts-0 any more"):
            await consumer.commit()
        assert cluster.loop.time() - begun_s < 1
        assert (await consumer.committed([clicks]))[clicks] == OffsetAndMetadata(3, "", 0)
        slowest_s = 0.0
        while consumer.assignment() != {clicks}:
            begun_s = cluster.loop.time()
            await consumer.poll(0.2)
            slowest_s = max(slowest_s, cluster.loop.time() - begun_s)
        assert slowest_s < 1
        begun_s = cluster.loop.time()
        await consumer.close()
        assert cluster.loop.time() - begun_s < 1

    cluster.run(scenario())


def test_a_pattern_matches_whole_names() -> None:
    cluster = Cluster()

    async def scenario() -> None:
        await cluster.started()
        group = Group(cluster, 1)
        await group.begin()
        await create(group._client, "clicks-dlq", 1)
        consumer = consumer_on(cluster, "reader", **HASTY)
        consumer.subscribe(re.compile("clicks"))
        while not consumer.assignment():
            await consumer.poll(0.2)
        assert consumer.subscription() == {TOPIC}
        await consumer.close()

    cluster.run(scenario())


async def poll_on(consumer: Consumer) -> None:
    while True:
        await consumer.poll(0.2)
