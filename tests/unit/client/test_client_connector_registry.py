"""What a connector keeps in ZooKeeper, and how it reacts when others write there."""

from __future__ import annotations

import asyncio
import json

import pytest

from kdist.client.classic.connector.ownership import Ownership
from kdist.client.classic.connector.registry import Lost, Registry
from kdist.client.classic.connector.subscription import Topics
from kdist.model import TopicPartition
from kdist.zk.cluster_values import ConsumerRegistration
from kdist.zk.errors import ConnectionLoss, SessionExpired
from kdist.zk.memory import MemoryZooKeeper
from tests.simulator.cluster import Cluster
from tests.unit.client.connector_world import (
    GROUP,
    TOPIC,
    Connectors,
    offset_path,
    owner_path,
)


def test_the_registry_has_the_znodes_that_old_tools_read() -> None:
    cluster = Cluster()

    async def scenario() -> None:
        await cluster.started()
        group = Connectors(cluster, 2)
        await group.begin()
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

    cluster.run(scenario())


def test_a_group_resumes_where_it_was() -> None:
    cluster = Cluster()

    async def scenario() -> None:
        await cluster.started()
        group = Connectors(cluster, 3)
        await group.begin()
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

    cluster.run(scenario())


def test_largest_begins_at_the_end_and_loses_no_message_before_the_first_commit() -> None:
    cluster = Cluster()

    async def scenario() -> None:
        await cluster.started()
        group = Connectors(cluster, 1)
        await group.begin()
        await group.produce(5)
        first = await group.join(auto_offset_reset="largest", auto_commit_enable=False)
        await cluster.until(lambda: cluster.ensemble.tree.exists(offset_path(0)))
        await first.die()
        await group.produce(5)
        second = await group.join(auto_offset_reset="largest")
        await cluster.until(lambda: len(second.messages) == 5)
        assert [message.offset for message in second.messages] == [5, 6, 7, 8, 9]
        await second.leave()

    cluster.run(scenario())


def test_without_auto_commit_only_explicit_commits_count() -> None:
    cluster = Cluster()

    async def scenario() -> None:
        await cluster.started()
        group = Connectors(cluster, 1)
        await group.begin()
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

    cluster.run(scenario())


@pytest.mark.parametrize("mark", [{}, {"kdist_by_broker": 1}])
def test_partitions_of_a_broker_stay_together_unless_an_old_member_is_there(
    mark: dict[str, int],
) -> None:
    cluster = Cluster()

    async def scenario() -> None:
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

    cluster.run(scenario())


def test_an_offset_that_an_operator_sets_is_sought() -> None:
    cluster = Cluster()

    async def scenario() -> None:
        await cluster.started()
        group = Connectors(cluster, 1)
        await group.begin()
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

    cluster.run(scenario())


def test_a_deleted_owner_znode_is_claimed_again() -> None:
    cluster = Cluster()

    async def scenario() -> None:
        await cluster.started()
        group = Connectors(cluster, 1)
        await group.begin()
        await group.join()
        await cluster.until(lambda: group.shares == [1])
        other = cluster.ensemble.client()
        await other.connect()
        await other.delete(owner_path(0))
        await group.produce(5)
        await cluster.until(lambda: cluster.ensemble.tree.exists(owner_path(0)))
        await cluster.until(lambda: group.is_all_found)

    cluster.run(scenario())


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


def test_a_member_that_lost_its_session_commits_nothing_even_unknowingly() -> None:
    cluster = Cluster()

    async def scenario() -> None:
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

    cluster.run(scenario())


def test_of_two_claims_one_holds_until_it_is_released() -> None:
    cluster = Cluster()

    async def scenario() -> None:
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

    cluster.run(scenario())


@pytest.mark.parametrize("is_carried_out", [True, False])
def test_a_commit_whose_answer_is_lost_is_harmless(is_carried_out: bool) -> None:
    cluster = Cluster()

    async def scenario() -> None:
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

    cluster.run(scenario())


def test_a_claim_whose_answer_is_lost_is_ours_or_is_given_up() -> None:
    cluster = Cluster()

    async def scenario() -> None:
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

    cluster.run(scenario())
