"""A group in virtual time: every record is read, and no partition by two members at once."""

from __future__ import annotations

import asyncio
import contextlib
import re

import pytest

from kdist.client.consumer.aio import Consumer
from kdist.client.consumer.batch import ConsumedRecord
from kdist.client.consumer.commits import CommitFailed
from kdist.client.consumer.context import ConsumerClosed
from kdist.client.consumer.rebalancing import Partitions, RebalanceListener
from kdist.client.offsets import OffsetAndMetadata
from kdist.errors import ApiError, Error
from kdist.model import TopicPartition
from kdist.protocol.delete_topics import DeleteTopicsRequest, TopicToDelete
from tests.examples import first_of
from tests.refusals import refused
from tests.simulator.cluster import Cluster, create
from tests.unit.client.client_group_world import (
    HASTY,
    TOPIC,
    Group,
    Member,
    consumer_on,
    with_topic,
)

pytestmark = pytest.mark.played(by=with_topic, partitions=2)

STRATEGIES = ["range", "roundrobin", "sticky", "cooperative-sticky"]

COOPERATIVE = HASTY | {"partition_assignment_strategy": "cooperative-sticky"}


class Moody(Member):
    """A member that polls in every way, pauses, commits, and sometimes does nothing."""

    async def _work(self) -> None:
        rng, consumer = self.group.cluster.rng, self.consumer
        while self.is_polling:
            assigned = sorted(consumer.assignment())
            match rng.randrange(6):
                case 0:
                    batches_max = rng.choice([1, 2, 200])
                    for batch in await consumer.poll_batches(rng.uniform(0, 0.5), batches_max):
                        self._note(list(batch))
                case 1:
                    self._note(await consumer.poll(rng.uniform(0, 0.5), rng.choice([1, 500])))
                case 2 if assigned:
                    consumer.pause(rng.choice(assigned))
                case 3 if assigned:
                    consumer.resume(*assigned)
                case 4:
                    with contextlib.suppress(ApiError):  # no commit is accepted during a rebalance
                        await consumer.commit()
                case _:
                    await asyncio.sleep(rng.uniform(0, 2))

    def _note(self, records: list[ConsumedRecord]) -> None:
        for record in records:
            before = self.group.last.get(record.partition, -1)
            assert record.offset == before + 1, f"{self.name} was given {record} behind {before}"
            self.group.last[record.partition] = record.offset
            self.group.found[record.value] += 1


@pytest.mark.played(by=with_topic, partitions=6)
@pytest.mark.parametrize("strategy", STRATEGIES)
async def test_members_share_the_partitions_and_take_over_a_dead_members(
    cluster: Cluster, group: Group, /, strategy: str
) -> None:
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


@pytest.mark.parametrize("seed", first_of(range(4)))
async def test_every_record_is_read_whoever_joins_or_leaves(cluster: Cluster, seed: int) -> None:
    strategy = STRATEGIES[seed]
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


@pytest.mark.played(by=with_topic, partitions=4)
async def test_members_waiting_for_a_rebalance_notice_that_their_coordinator_lost_power(
    cluster: Cluster, group: Group, /
) -> None:
    """They send nothing that would fail, and would wait for the whole rebalance timeout."""
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


async def test_members_rejoin_a_broker_that_comes_back(cluster: Cluster) -> None:
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


@pytest.mark.played(by=with_topic, partitions=4)
async def test_a_member_cut_off_for_long_loses_its_partitions(
    cluster: Cluster, group: Group, /
) -> None:
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


async def test_a_member_that_was_removed_cannot_commit(cluster: Cluster, group: Group, /) -> None:
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


async def test_a_long_poll_counts_as_progress_and_commits(
    cluster: Cluster, group: Group, /
) -> None:
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


async def test_a_failing_listeners_error_is_raised_and_the_group_continues(
    cluster: Cluster, group: Group, /
) -> None:
    class Fails(RebalanceListener):
        def on_assigned(self, partitions: Partitions) -> None:
            if not failed:
                failed.append(len(partitions))
                raise ValueError("at first")

        def on_revoked(self, partitions: Partitions) -> None:
            if len(failed) > 1:
                raise ValueError("in the end")

    failed: list[int] = []
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


async def test_two_consumers_of_one_instance_id_are_not_both_members(
    cluster: Cluster, group: Group, /
) -> None:
    settings = HASTY | {"group_instance_id": "one"}
    first = consumer_on(cluster, "h1", **settings)
    second = consumer_on(cluster, "h2", **settings)
    first.subscribe([TOPIC])
    await first.poll(2)
    assert len(first.assignment()) == 2
    second.subscribe([TOPIC])
    await second.poll(2)
    assert len(second.assignment()) == 2
    with refused(Error.FENCED_INSTANCE_ID):
        await first.poll(20)
    await second.close()
    await first.close()


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


async def test_a_commit_queued_behind_others_keeps_its_timeout_and_order(cluster: Cluster) -> None:
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
    with refused(Error.REQUEST_TIMED_OUT):
        await consumer.commit({partition: 3}, timeout_s=2)
    assert cluster.loop.time() - begun_s < 3
    consumer.commit_async({partition: 4})
    await cluster.started()
    await consumer.commit({partition: 5})
    (committed,) = (await consumer.committed([partition])).values()
    assert committed is not None
    assert committed.offset == 5
    await consumer.close()


@pytest.mark.played(by=with_topic, partitions=4)
async def test_a_member_that_leaves_while_joining_is_not_waited_for(
    cluster: Cluster, group: Group, /
) -> None:
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


@pytest.mark.played(by=with_topic, partitions=1)
async def test_a_waiting_poll_fails_when_the_consumer_is_closed(
    cluster: Cluster, group: Group, /
) -> None:
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


@pytest.mark.played(by=with_topic, partitions=4)
async def test_a_commit_while_the_group_rebalances_does_not_cost_a_member_its_partitions(
    cluster: Cluster, group: Group, /
) -> None:
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


@pytest.mark.played(by=with_topic, partitions=4)
async def test_partitions_being_revoked_when_a_poll_was_interrupted_are_read_again(
    cluster: Cluster, group: Group, /
) -> None:
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


@pytest.mark.played(by=with_topic, partitions=1)
async def test_a_leader_watches_topics_that_only_others_subscribe_to(
    cluster: Cluster, group: Group, /
) -> None:
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


@pytest.mark.played(by=with_topic, partitions=1)
async def test_a_leader_with_a_pattern_keeps_the_topics_it_matched(
    cluster: Cluster, group: Group, /
) -> None:
    """Also while it looks up the other members' topics."""
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


@pytest.mark.played(by=with_topic, partitions=1)
async def test_a_deleted_topic_holds_up_no_rebalance_and_no_commit_of_other_topics(
    cluster: Cluster, group: Group, /
) -> None:
    """The commit before a rebalance was tried again for five seconds, any other for a minute."""
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
    with refused(Error.UNKNOWN_TOPIC_OR_PARTITION, "cuts-0"):
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


@pytest.mark.played(by=with_topic, partitions=1)
async def test_a_pattern_matches_whole_names(cluster: Cluster, group: Group, /) -> None:
    await create(group._client, "clicks-dlq", 1)
    consumer = consumer_on(cluster, "reader", **HASTY)
    consumer.subscribe(re.compile("clicks"))
    while not consumer.assignment():
        await consumer.poll(0.2)
    assert consumer.subscription() == {TOPIC}
    await consumer.close()


async def poll_on(consumer: Consumer) -> None:
    while True:
        await consumer.poll(0.2)


@pytest.mark.parametrize("strategy", first_of(reversed(STRATEGIES), 2))
@pytest.mark.parametrize("seed", first_of([5, 32]))
async def test_no_record_is_returned_to_two_members(
    cluster: Cluster, strategy: str, seed: int
) -> None:
    await cluster.started()
    group = Group(cluster, 5)
    await group.begin()
    for _ in range(30):
        await group.produce(cluster.rng.randrange(20))
        await asyncio.sleep(cluster.rng.uniform(0, 4))
        members = list(group.members.values())
        if len(members) < 2 or (len(members) < 6 and cluster.rng.random() < 0.5):
            group.join(Moody, partition_assignment_strategy=strategy)
        else:
            await cluster.rng.choice(members).leave()
    await cluster.until(lambda: group.is_all_found)
    for member in list(group.members.values()):
        await member.leave()


@pytest.mark.played(by=with_topic, partitions=4)
async def test_a_close_without_time_for_a_rebalance_leaves_at_once(
    cluster: Cluster, group: Group, /
) -> None:
    leaving, silent = (group.join(partition_assignment_strategy=STRATEGIES[-1:]) for _ in "12")
    await cluster.until(lambda: group.shares == [2, 2])
    silent.is_polling = False
    await silent.task
    group.join(partition_assignment_strategy=STRATEGIES[-1:])  # silent has all wait
    await cluster.until(lambda: not leaving.consumer._core.is_calm)
    leaving.is_polling = False
    await leaving.task
    assert leaving.consumer.assignment()
    before_s = cluster.loop.time()
    await leaving.consumer.close(timeout_s=0.1)
    assert cluster.loop.time() - before_s < 0.2
    await asyncio.sleep(60)  # what it left undone would be told of
