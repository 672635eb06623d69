"""Connectors' groups: what ZooKeeper has; each message is returned, by one member at a time."""

from __future__ import annotations

import asyncio
import json

import pytest

from kdist.classic.connector.ownership import Ownership
from kdist.classic.connector.rebalancing import ConsumerRebalanceListener
from kdist.classic.connector.registry import Lost, Registry
from kdist.classic.connector.subscription import Blacklist, Filtered, Topics, Whitelist
from kdist.errors import UserError
from kdist.model import TopicPartition
from kdist.protocol.create_partitions import CreatePartitionsRequest, GrownTopic
from kdist.testing.memory_zookeeper import MemoryZooKeeper
from kdist.zk.errors import ConnectionLoss, SessionExpired
from kdist.zk.values import ConsumerRegistration
from tests.examples import first_of
from tests.simulator.cluster import Cluster, create
from tests.unit.client.connector_world import (
    GROUP,
    SESSION_MS,
    TOPIC,
    Connectors,
    offset_path,
    owner_path,
    with_connectors,
)

pytestmark = pytest.mark.played(by=with_connectors)


@pytest.mark.played(by=with_connectors, partitions=6)
@pytest.mark.parametrize("strategy", ["range", "roundrobin"])
async def test_members_share_the_partitions_and_take_over_a_dead_members(
    cluster: Cluster, group: Connectors, /, strategy: str
) -> None:
    settings = {"partition_assignment_strategy": strategy}
    members = [await group.join(**settings) for _ in range(3)]
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
async def test_every_message_is_returned_whoever_joins_leaves_or_is_cut_off(
    cluster: Cluster, seed: int
) -> None:
    await cluster.started()
    group = Connectors(cluster, 5)
    await group.begin()
    for _ in range(30):
        await group.produce(10)
        await asyncio.sleep(cluster.rng.uniform(0, 3))
        members = list(group.members.values())
        what = cluster.rng.random()
        if len(members) < 2 or (len(members) < 6 and what < 0.4):
            await group.join(Topics({TOPIC: cluster.rng.randint(1, 2)}))
            continue
        one = cluster.rng.choice(members)
        if what < 0.6:
            await one.die()
        elif what < 0.75:
            await one.leave()
        elif what < 0.85:
            one.lose_session()
        else:
            one.be_cut_off(cluster.rng.uniform(0, SESSION_MS * 2 / 3))
            delay_s = cluster.rng.uniform(0, 2 * SESSION_MS / 1000)
            cluster.loop.call_later(delay_s, one.maybe_be_heard_again)
    await cluster.until(lambda: group.is_all_found and sum(group.shares) == 5)
    for member in list(group.members.values()):
        await member.leave()


async def test_new_partitions_and_topics_are_read_too(
    cluster: Cluster, group: Connectors, /
) -> None:
    white = await group.join(Filtered(Whitelist("clicks,views.*"), 2))
    await cluster.until(lambda: group.shares == [2])
    more = GrownTopic(name=TOPIC, count=4, assignments=None)
    await group.client.send(
        CreatePartitionsRequest(topics=[more], timeout_ms=5_000, validate_only=False)
    )
    await create(group.client, "views-later", 2)
    await create(group.client, "other", 2)
    await cluster.until(lambda: group.shares == [6])
    await group.produce(10)
    await group.produce(10, "views-later")
    await cluster.until(lambda: group.is_all_found)
    await white.leave()
    black = await group.join(Filtered(Blacklist("clicks|views.*"), 1))
    await cluster.until(lambda: group.shares == [2])
    assert {each.topic for each in black.giving} == {"other"}
    assert json.loads((await group.tree())[f"ids/{black.joined.id}"])["pattern"] == "black_list"


async def test_a_partition_that_another_member_owns_is_waited_for(
    cluster: Cluster, group: Connectors, /
) -> None:
    other = cluster.ensemble.client()
    await other.connect()
    await other.create(owner_path(1), b"other-0", ephemeral=True, make_parents=True)
    await group.join()
    await asyncio.sleep(20)
    assert group.shares == [1]
    await other.delete(owner_path(1))
    began_s = cluster.loop.time()
    await cluster.until(lambda: group.shares == [2])
    assert cluster.loop.time() - began_s < 0.1, "a release is noticed at once"


async def test_a_member_without_zookeeper_returns_messages_for_a_while_and_then_stops(
    cluster: Cluster, group: Connectors, /
) -> None:
    member = await group.join()
    await group.produce(2)
    await cluster.until(lambda: group.is_all_found)
    cluster.ensemble.stop()
    await asyncio.sleep(SESSION_MS / 1000 / 4)
    await group.produce(4)
    await asyncio.sleep(0.3)
    assert group.is_all_found
    await asyncio.sleep(SESSION_MS / 1000)
    await group.produce(4)
    await asyncio.sleep(60)
    assert not group.is_all_found
    assert group.shares == [0]
    cluster.ensemble.start()
    await cluster.until(lambda: group.is_all_found)
    assert max(group.found.values()) == 1
    await member.leave()


async def test_a_member_without_zookeeper_stops_before_its_granted_session_ends(
    cluster: Cluster, group: Connectors, /
) -> None:
    patient = {"zookeeper_session_timeout_ms": 10 * SESSION_MS}  # more than the servers grant
    members = [await group.join(**patient), await group.join(**patient)]
    await cluster.until(lambda: group.shares == [1, 1])
    members[0].be_cut_off(SESSION_MS * 2 / 3)
    began_s = cluster.loop.time()
    await cluster.until(lambda: group.shares == [0, 2])
    assert cluster.loop.time() - began_s < 1.5 * SESSION_MS / 1000
    members[0].maybe_be_heard_again()
    await cluster.until(lambda: group.shares == [1, 1])
    for member in members:
        await member.leave()


@pytest.mark.played(by=with_connectors, partitions=1)
async def test_after_an_expired_session_uncommitted_messages_are_returned_again(
    cluster: Cluster, group: Connectors, /
) -> None:
    member = await group.join(auto_commit_interval_ms=3_600_000)
    await group.produce(5)
    await cluster.until(lambda: group.is_all_found)
    member.lose_session()
    await cluster.until(lambda: len(member.messages) == 10)
    assert set(group.found.values()) == {2}
    assert group.shares == [1]


async def test_a_listener_is_called_before_the_change(
    cluster: Cluster, group: Connectors, /
) -> None:
    events: list[tuple[str, object]] = []

    class Listener(ConsumerRebalanceListener):
        def before_releasing_partitions(self, partitions: object) -> None:
            events.append(("releasing", partitions))

        def before_starting_fetchers(self, consumer_id: str, partitions: object) -> None:
            events.append((consumer_id, partitions))

    first = await group.join(listener=Listener())
    await cluster.until(lambda: group.shares == [2])
    await group.join()
    await cluster.until(lambda: group.shares == [1, 1])
    first.lose_session()
    await cluster.until(lambda: len(events) == 4 and group.shares == [1, 1])
    await first.leave()
    name = first.joined.id
    assert events == [
        (name, {TOPIC: {0: f"{name}-0", 1: f"{name}-0"}}),
        ("releasing", {TOPIC: {1}}),
        ("releasing", {TOPIC: {0}}),
        (name, {TOPIC: {0: f"{name}-0"}}),
        ("releasing", {TOPIC: {0}}),
    ]


async def test_an_exception_of_a_listener_is_raised_to_the_streams_reader(
    cluster: Cluster, group: Connectors, /
) -> None:
    class Listener(ConsumerRebalanceListener):
        def before_starting_fetchers(self, consumer_id: str, partitions: object) -> None:
            raise RuntimeError(f"{consumer_id} does not want {partitions}")

    member = await group.join(listener=Listener())
    await cluster.until(member.task.done)
    with pytest.raises(RuntimeError, match="does not want"):
        member.task.result()
    assert group.shares == [0]


async def test_a_group_that_cannot_be_assigned_is_an_error(
    cluster: Cluster, group: Connectors, /
) -> None:
    turns = {"partition_assignment_strategy": "roundrobin"}
    one = await group.join(Topics({TOPIC: 1}), **turns)
    await create(group.client, "views", 2)
    two = await group.join(Topics({TOPIC: 1, "views": 1}), **turns)
    await cluster.until(lambda: one.task.done() and two.task.done())
    with pytest.raises(UserError, match="roundrobin needs consumers that all have the same"):
        one.task.result()


async def test_reading_resumes_when_a_broker_comes_back(cluster: Cluster) -> None:
    broker = await cluster.started()
    group = Connectors(cluster, 2)
    await group.begin()
    await group.join()
    await group.produce(4)
    await cluster.until(lambda: group.is_all_found)
    cluster.kill(broker)
    await asyncio.sleep(10)
    await cluster.started()
    group.client = await cluster.client()
    await group.client.negotiate()
    await asyncio.sleep(5)
    await group.produce(4)
    await cluster.until(lambda: group.is_all_found)


async def test_the_registry_has_the_znodes_that_old_tools_read(
    cluster: Cluster, group: Connectors, /
) -> None:
    member = await group.join(Topics({TOPIC: 2}))
    await group.produce(10)
    await cluster.until(lambda: group.is_all_found)
    await asyncio.sleep(1.2)
    tree = await group.tree()
    name = member.joined.id
    assert name.startswith(f"{GROUP}_c1-17000000")
    assert json.loads(tree[f"ids/{name}"]) == {
        "version": 1,
        "subscription": {TOPIC: 2},
        "pattern": "static",
        "timestamp": name.split("-")[1],
        "kdist_by_broker": 1,
    }
    assert tree[f"owners/{TOPIC}/0"] == f"{name}-0"
    assert tree[f"owners/{TOPIC}/1"] == f"{name}-1"
    # A stream that waits has asked for the next: all that it was given is done with.
    assert (tree[f"offsets/{TOPIC}/0"], tree[f"offsets/{TOPIC}/1"]) == ("5", "5")
    await member.leave()
    left = await group.tree()
    assert not any(path.startswith(("ids/", f"owners/{TOPIC}/")) for path in left)
    assert left[f"offsets/{TOPIC}/0"] == "5"


@pytest.mark.played(by=with_connectors, partitions=3)
async def test_a_group_resumes_where_it_was(cluster: Cluster, group: Connectors, /) -> None:
    first = await group.join()
    await group.produce(30)
    await cluster.until(lambda: group.is_all_found)
    await first.leave()
    await group.produce(30)
    second = await group.join()
    await cluster.until(lambda: group.is_all_found)
    assert max(group.found.values()) == 1
    assert len(second.messages) == 30
    await second.leave()


@pytest.mark.played(by=with_connectors, partitions=1)
async def test_largest_begins_at_the_end_and_loses_no_message_before_the_first_commit(
    cluster: Cluster, group: Connectors, /
) -> None:
    await group.produce(5)
    first = await group.join(auto_offset_reset="largest", auto_commit_enable=False)
    await cluster.until(lambda: cluster.ensemble.tree.exists(offset_path(0)))
    await first.die()
    await group.produce(5)
    second = await group.join(auto_offset_reset="largest")
    await cluster.until(lambda: len(second.messages) == 5)
    assert [message.offset for message in second.messages] == [5, 6, 7, 8, 9]
    await second.leave()


@pytest.mark.played(by=with_connectors, partitions=1)
async def test_without_auto_commit_only_explicit_commits_count(
    cluster: Cluster, group: Connectors, /
) -> None:
    first = await group.join(auto_commit_enable=False)
    await group.produce(4)
    await cluster.until(lambda: group.is_all_found)
    await first.joined.rebalancer.commit()
    await group.produce(4)
    await cluster.until(lambda: group.is_all_found)
    await first.leave()
    second = await group.join(auto_commit_enable=False)
    await cluster.until(lambda: len(second.messages) == 4)
    assert second.messages[0].offset == 4


@pytest.mark.parametrize("mark", [{}, {"kdist_by_broker": 1}])
async def test_partitions_of_a_broker_stay_together_unless_an_old_member_is_there(
    cluster: Cluster, mark: dict[str, int]
) -> None:
    await cluster.started(1)
    await cluster.started(2)
    group = Connectors(cluster, 4)
    await group.begin()
    other = cluster.ensemble.client()
    await other.connect()
    registration = {
        "version": 1,
        "subscription": {TOPIC: 1},
        "pattern": "static",
        "timestamp": "1",
    }
    await other.create(
        f"/consumers/{GROUP}/ids/{GROUP}_z",  # sorts behind ours
        json.dumps(registration | mark).encode(),
        ephemeral=True,
        make_parents=True,
    )
    member = await group.join()
    await cluster.until(lambda: group.shares == [2])
    topic = json.loads((await other.get(f"/brokers/topics/{TOPIC}")).data)["partitions"]
    brokers = {topic[str(each.partition)][0] for each in member.giving}
    if mark:
        assert len(brokers) == 1
    else:
        assert [each.partition for each in member.giving] == [0, 1]


@pytest.mark.played(by=with_connectors, partitions=1)
async def test_an_offset_that_an_operator_sets_is_sought(
    cluster: Cluster, group: Connectors, /
) -> None:
    member = await group.join()
    await group.produce(5)
    await cluster.until(lambda: group.is_all_found)
    await asyncio.sleep(1.5)
    other = cluster.ensemble.client()
    await other.connect()
    await other.set(offset_path(0), b"2")
    await group.produce(1)
    await cluster.until(lambda: len(member.messages) == 6 + 4)
    assert [message.offset for message in member.messages[6:]] == [2, 3, 4, 5]


@pytest.mark.played(by=with_connectors, partitions=1)
async def test_a_deleted_owner_znode_is_claimed_again(
    cluster: Cluster, group: Connectors, /
) -> None:
    await group.join()
    await cluster.until(lambda: group.shares == [1])
    other = cluster.ensemble.client()
    await other.connect()
    await other.delete(owner_path(0))
    await group.produce(5)
    await cluster.until(lambda: cluster.ensemble.tree.exists(owner_path(0)))
    await cluster.until(lambda: group.is_all_found)


def registry_on(zk: MemoryZooKeeper, consumer: str) -> Registry:
    registration = ConsumerRegistration({TOPIC: 1}, "static", 0)
    return Registry(zk, GROUP, consumer, registration, lambda: None)


async def owned(registry: Registry, at: int) -> Ownership:
    """An ownership of partition 0 whose position is `at`, not committed."""
    ownership = Ownership(TopicPartition(TOPIC, 0), f"{registry.consumer}-0")
    assert await registry.claim(ownership)
    if await registry.load_offset(ownership) is None:
        await registry.begin_at(ownership, 0)
    ownership.finish(at)
    return ownership


async def test_a_member_that_lost_its_session_commits_nothing_even_unknowingly(
    cluster: Cluster,
) -> None:
    zks = [cluster.ensemble.client() for _ in range(2)]
    for zk in zks:
        await zk.connect()
    first, second = (registry_on(zk, name) for zk, name in zip(zks, "ab", strict=True))
    stale = await owned(first, 50)
    cluster.ensemble.expire(zks[0])
    assert await second.claim(Ownership(stale.partition, "b-0"))
    with pytest.raises((ConnectionLoss, SessionExpired)):
        await first.save(stale)
    assert cluster.ensemble.tree.get(offset_path(0)).data == b"0"


async def test_of_two_claims_one_holds_until_it_is_released(cluster: Cluster) -> None:
    zks = [cluster.ensemble.client() for _ in range(2)]
    for zk in zks:
        await zk.connect()
    first, second = (registry_on(zk, name) for zk, name in zip(zks, "ab", strict=True))
    ownership = await owned(first, 7)
    wanted = Ownership(ownership.partition, "b-0")
    assert not await second.claim(wanted)
    assert await second.owner(ownership.partition) == "a-0"
    await first.save(ownership, release=True)
    assert await second.owner(ownership.partition) == "nobody"
    assert await second.claim(wanted)
    assert await second.load_offset(wanted) == 7, "it was committed as it was released"
    with pytest.raises(Lost):
        await first.save(ownership, release=True)  # again, as if no answer had come
    assert await second.owner(ownership.partition) == "b-0"


@pytest.mark.parametrize("is_carried_out", [True, False])
async def test_a_commit_whose_answer_is_lost_is_harmless(
    cluster: Cluster, is_carried_out: bool
) -> None:
    zk = cluster.ensemble.client()
    await zk.connect()
    registry = registry_on(zk, "a")
    ownership = await owned(registry, 5)
    committing = cluster.loop.create_task(registry.save(ownership))
    if is_carried_out:
        while cluster.ensemble.tree.get(offset_path(0)).data != b"5":
            await asyncio.sleep(0.000_01)  # the answer takes longer than that
    else:
        await asyncio.sleep(0)
    cluster.ensemble.suspend(zk)
    with pytest.raises(ConnectionLoss):
        await committing
    cluster.ensemble.resume(zk)
    ownership.finish(6)
    await registry.save(ownership)
    assert cluster.ensemble.tree.get(offset_path(0)).data == b"6"


async def test_a_claim_whose_answer_is_lost_is_ours_or_is_given_up(cluster: Cluster) -> None:
    zk = cluster.ensemble.client()
    await zk.connect()
    registry = registry_on(zk, "a")
    ownership = await owned(registry, 5)
    assert await registry.claim(Ownership(ownership.partition, "a-1")), "our own znode"
    assert cluster.ensemble.tree.get(owner_path(0)).data == b"a-1"
    await registry.disown(ownership.partition)
    assert cluster.ensemble.tree.exists(owner_path(0)) is None
    other = cluster.ensemble.client()
    await other.connect()
    await other.create(owner_path(0), b"b-0", ephemeral=True)
    await registry.disown(ownership.partition)
    assert cluster.ensemble.tree.get(owner_path(0)).data == b"b-0"
