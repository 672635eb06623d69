"""A group in virtual time: every record is read, and no partition by two members at once."""

from __future__ import annotations

import asyncio

import pytest

from kdist.client.consumer.aio import Consumer
from kdist.client.consumer.commits import CommitFailed
from kdist.client.consumer.core import ConsumerClosed
from kdist.client.consumer.rebalancing import Partitions, RebalanceListener
from kdist.errors import ApiError, Error
from kdist.model import TopicPartition
from tests.examples import first_of
from tests.simulator.cluster import Cluster
from tests.unit.client.client_group_world import (
    HASTY,
    TOPIC,
    Group,
    Member,
    consumer_on,
    with_topic,
)

STRATEGIES = ["range", "roundrobin", "sticky", "cooperative-sticky"]


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_members_share_the_partitions_and_take_over_a_dead_members(strategy: str) -> None:
    cluster = Cluster()

    async def scenario() -> None:
        await cluster.started()
        group = Group(cluster, 6)
        await group.begin()
        members = [group.join(partition_assignment_strategy=strategy) for _ in range(3)]
        await cluster.until(lambda: group.shares == [2, 2, 2])
        await group.produce(60)
        await cluster.until(lambda: group.is_all_found)
        await members[0].die()
        await group.produce(60)
        await cluster.until(lambda: group.shares == [3, 3] and group.is_all_found)
        await members[1].leave()
        await group.produce(60)
        await cluster.until(lambda: group.shares == [6] and group.is_all_found)
        await members[2].leave()

    cluster.run(scenario())


@pytest.mark.parametrize("seed", first_of(range(4)))
def test_every_record_is_read_whoever_joins_or_leaves(seed: int) -> None:
    cluster = Cluster(seed)
    strategy = STRATEGIES[seed]

    async def scenario() -> None:
        await cluster.started()
        group = Group(cluster, 5)
        await group.begin()
        for _ in range(25):
            await group.produce(10)
            await asyncio.sleep(cluster.rng.uniform(0, 4))
            members = list(group.members.values())
            if len(members) < 2 or (len(members) < 6 and cluster.rng.random() < 0.5):
                group.join(partition_assignment_strategy=strategy)
            elif cluster.rng.random() < 0.5:
                await cluster.rng.choice(members).die()
            else:
                await cluster.rng.choice(members).leave()
        await cluster.until(lambda: group.is_all_found)
        for member in list(group.members.values()):
            await member.leave()

    cluster.run(scenario())


def test_members_waiting_for_a_rebalance_notice_that_their_coordinator_lost_power() -> None:
    """They send nothing that would fail, and would wait for the whole rebalance timeout."""

    async def scenario(cluster: Cluster, group: Group) -> None:
        silent, _ = group.join(), group.join()
        await cluster.until(lambda: group.shares == [2, 2])
        silent.is_polling = False
        await silent.task
        group.join()
        await asyncio.sleep(2)
        # Else the group waits for it, if the disk still knows that it is a member.
        await silent.die()
        cluster.kill(cluster.brokers[1], is_power_lost=True)
        await cluster.started()
        await group.begin_again()
        await group.produce(8)
        await cluster.until(lambda: group.is_all_found)

    with_topic(scenario, 4)


def test_members_rejoin_a_broker_that_comes_back() -> None:
    cluster = Cluster()

    async def scenario() -> None:
        broker = await cluster.started()
        group = Group(cluster, 4)
        await group.begin()
        group.join()
        group.join()
        await cluster.until(lambda: group.shares == [2, 2])
        await group.produce(8)
        await cluster.until(lambda: group.is_all_found)
        cluster.kill(broker)
        await asyncio.sleep(10)
        await cluster.started()
        await group.begin_again()
        await group.produce(8)
        await cluster.until(lambda: group.is_all_found and group.shares == [2, 2])

    cluster.run(scenario())


def test_a_member_cut_off_for_long_loses_its_partitions() -> None:
    cluster = Cluster()

    async def scenario() -> None:
        await cluster.started()
        group = Group(cluster, 4)
        await group.begin()
        cut, other = group.join(), group.join()
        await cluster.until(lambda: group.shares == [2, 2])
        cluster.network.partition({"m1", other.name, "client"}, {cut.name})
        cut.forget()  # its session times out, and it alone does not know
        await cluster.until(lambda: len(other.consumer.assignment()) == 4)
        cluster.network.heal()
        await cluster.until(lambda: cut.lost)
        await cluster.until(lambda: group.shares == [2, 2])
        await group.produce(20)
        await cluster.until(lambda: group.is_all_found)

    cluster.run(scenario())


def test_a_member_that_was_removed_cannot_commit() -> None:
    cluster = Cluster()

    async def scenario() -> None:
        await cluster.started()
        group = Group(cluster, 2)
        await group.begin()
        await group.produce(4)
        slow = consumer_on(cluster, "slow", **HASTY, max_poll_interval_ms=2_000)
        slow.subscribe([TOPIC])
        assert await slow.poll(20)
        other = group.join()
        await cluster.until(lambda: group.shares == [2])
        with pytest.raises(CommitFailed):
            await slow.commit()
        await other.leave()
        await slow.close()

    cluster.run(scenario())


def test_a_long_poll_counts_as_progress_and_commits() -> None:
    cluster = Cluster()

    async def scenario() -> None:
        await cluster.started()
        group = Group(cluster, 2)
        await group.begin()
        await group.produce(4)
        consumer = consumer_on(cluster, "idle", **HASTY, max_poll_interval_ms=6_000)
        consumer.subscribe([TOPIC])
        found = 0
        while found < 4:
            found += len(await consumer.poll(20))
        generation = consumer._core.membership.generation  # type: ignore[union-attr]
        assert await consumer.poll(60) == []
        assert consumer._core.membership.generation == generation  # type: ignore[union-attr]
        committed = await consumer.committed(consumer.assignment())
        assert [each.offset for each in committed.values() if each] == [2, 2]
        await consumer.close()

    cluster.run(scenario())


def test_a_poll_may_be_cancelled_at_any_time() -> None:
    cluster = Cluster(3)

    async def scenario() -> None:
        await cluster.started()
        group = Group(cluster, 4)
        await group.begin()
        await group.produce(20)
        other = group.join()
        consumer = consumer_on(cluster, "cut", **HASTY)
        consumer.subscribe([TOPIC])
        found: set[bytes] = set()
        for _ in range(300):
            try:
                polling = consumer.poll(1)
                timeout_s = cluster.rng.uniform(0, 0.1)
                found |= {record.value for record in await asyncio.wait_for(polling, timeout_s)}
            except TimeoutError:
                continue  # as was wanted
        end_s = cluster.loop.time() + 30
        while len(consumer.assignment()) != 2 and cluster.loop.time() < end_s:
            await consumer.poll(0.2)
        assert len(consumer.assignment()) == 2 == len(other.consumer.assignment())
        await consumer.close()
        await other.leave()

    cluster.run(scenario())


def test_a_failing_listeners_error_is_raised_and_the_group_continues() -> None:
    cluster = Cluster()

    class Fails(RebalanceListener):
        def on_assigned(self, partitions: Partitions) -> None:
            if not failed:
                failed.append(len(partitions))
                raise ValueError("at first")

        def on_revoked(self, partitions: Partitions) -> None:
            if len(failed) > 1:
                raise ValueError("in the end")

    failed: list[int] = []

    async def scenario() -> None:
        await cluster.started()
        group = Group(cluster, 2)
        await group.begin()
        await group.produce(2)
        consumer = consumer_on(cluster, "fails", **HASTY)
        consumer.subscribe([TOPIC], Fails())
        with pytest.raises(ValueError, match="at first"):
            await consumer.poll(20)
        assert await consumer.poll(20)
        failed.append(0)
        with pytest.raises(ValueError, match="in the end"):
            await consumer.close()
        start_s = cluster.loop.time()
        other = group.join()  # gets all at once, since the other has left all the same
        await cluster.until(lambda: group.shares == [2])
        assert cluster.loop.time() - start_s < 3
        await other.leave()

    cluster.run(scenario())


def test_two_consumers_of_one_instance_id_are_not_both_members() -> None:
    cluster = Cluster()

    async def scenario() -> None:
        await cluster.started()
        group = Group(cluster, 2)
        await group.begin()
        settings = HASTY | {"group_instance_id": "one"}
        first = consumer_on(cluster, "h1", **settings)
        second = consumer_on(cluster, "h2", **settings)
        first.subscribe([TOPIC])
        await first.poll(2)
        assert len(first.assignment()) == 2
        second.subscribe([TOPIC])
        await second.poll(2)
        assert len(second.assignment()) == 2
        with pytest.raises(ApiError) as caught:
            await first.poll(20)
        assert caught.value.error is Error.FENCED_INSTANCE_ID
        await second.close()
        await first.close()

    cluster.run(scenario())


def test_two_runs_with_one_seed_are_identical() -> None:
    def run() -> list[tuple[str, int]]:
        cluster = Cluster(7)

        async def scenario() -> list[tuple[str, int]]:
            await cluster.started()
            group = Group(cluster, 3)
            await group.begin()
            members: list[Member] = [group.join(), group.join()]
            await group.produce(30)
            await cluster.until(lambda: group.is_all_found)
            await members[0].leave()
            await cluster.until(lambda: group.shares == [3])
            times = [(name, count) for name, count in sorted(group.owners.items())]
            return [*times, ("ms", cluster.clock.now_ms())]

        found: list[tuple[str, int]] = cluster.run(scenario())
        return found

    assert run() == run()


def test_a_commit_queued_behind_others_keeps_its_timeout_and_order() -> None:
    cluster = Cluster()

    async def scenario() -> None:
        broker = await cluster.started()
        group = Group(cluster, 1)
        await group.begin()
        consumer = consumer_on(cluster, "slow", **HASTY, enable_auto_commit=False)
        partition = TopicPartition(TOPIC, 0)
        consumer.assign([partition])
        await consumer.commit({partition: 1})
        cluster.kill(broker)
        consumer.commit_async({partition: 2})
        begun_s = cluster.loop.time()
        with pytest.raises(ApiError, match="an earlier commit is still under way"):
            await consumer.commit({partition: 3}, timeout_s=2)
        assert cluster.loop.time() - begun_s < 3
        consumer.commit_async({partition: 4})
        await cluster.started()
        await consumer.commit({partition: 5})
        (committed,) = (await consumer.committed([partition])).values()
        assert committed is not None
        assert committed.offset == 5
        await consumer.close()

    cluster.run(scenario())


def test_a_member_that_leaves_while_joining_is_not_waited_for() -> None:
    cluster = Cluster()

    async def scenario() -> None:
        await cluster.started()
        group = Group(cluster, 4)
        await group.begin()
        first = consumer_on(cluster, "first", **HASTY)
        first.subscribe([TOPIC])
        while len(first.assignment()) < 4:
            await first.poll(0.2)
        second = consumer_on(cluster, "second", **HASTY)
        second.subscribe([TOPIC])
        await second.poll(1)  # the group waits for the first, which does not poll
        await second.close()
        end_s = cluster.loop.time() + HASTY["session_timeout_ms"] / 2000
        while cluster.loop.time() < end_s:
            await first.poll(0.2)
        assert len(first.assignment()) == 4
        await first.close()

    cluster.run(scenario())


def test_a_waiting_poll_fails_when_the_consumer_is_closed() -> None:
    cluster = Cluster()

    async def scenario() -> None:
        await cluster.started()
        group = Group(cluster, 1)
        await group.begin()
        for settings in (HASTY, HASTY | {"group_id": None}):
            consumer = consumer_on(cluster, "closed", **settings)
            if settings["group_id"]:
                consumer.subscribe([TOPIC])
            else:
                consumer.assign([TopicPartition(TOPIC, 0)])
            polling = asyncio.ensure_future(consumer.poll())
            await asyncio.sleep(3)
            await consumer.close()
            with pytest.raises(ConsumerClosed):
                await asyncio.wait_for(polling, 1)

    cluster.run(scenario())


def test_a_listener_may_commit_while_its_consumer_is_closed() -> None:
    cluster = Cluster()
    partition = TopicPartition(TOPIC, 0)

    class Commits(RebalanceListener):
        async def on_revoked(self, partitions: Partitions) -> None:
            await consumer.commit(dict.fromkeys(partitions, 3))

    async def scenario() -> None:
        nonlocal consumer
        await cluster.started()
        group = Group(cluster, 1)
        await group.begin()
        consumer = consumer_on(cluster, "first", **HASTY, enable_auto_commit=False)
        consumer.subscribe([TOPIC], Commits())
        while not consumer.assignment():
            await consumer.poll(0.2)
        await consumer.close()
        consumer = consumer_on(cluster, "second", **HASTY)
        (committed,) = (await consumer.committed([partition])).values()
        assert committed is not None
        assert committed.offset == 3
        await consumer.close()

    consumer: Consumer
    cluster.run(scenario())
