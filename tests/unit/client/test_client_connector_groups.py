"""Groups of connectors in virtual time: every message is returned, by one member at a time."""

from __future__ import annotations

import asyncio
import json

import pytest

from kdist.client.classic.connector.rebalancing import ConsumerRebalanceListener
from kdist.client.classic.connector.subscription import Blacklist, Filtered, Topics, Whitelist
from kdist.errors import UserError
from kdist.protocol.create_partitions import CreatePartitionsRequest, GrownTopic
from tests.examples import first_of
from tests.simulator.cluster import Cluster, create
from tests.unit.client.connector_world import (
    SESSION_MS,
    TOPIC,
    Connectors,
    owner_path,
)


@pytest.mark.parametrize("strategy", ["range", "roundrobin"])
def test_members_share_the_partitions_and_take_over_a_dead_members(strategy: str) -> None:
    cluster = Cluster()

    async def scenario() -> None:
        await cluster.started()
        group = Connectors(cluster, 6)
        await group.begin()
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

    cluster.run(scenario())


@pytest.mark.parametrize("seed", first_of(range(4)))
def test_every_message_is_returned_whoever_joins_leaves_or_is_cut_off(seed: int) -> None:
    cluster = Cluster(seed)

    async def scenario() -> None:
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

    cluster.run(scenario())


def test_new_partitions_and_topics_are_read_too() -> None:
    cluster = Cluster()

    async def scenario() -> None:
        await cluster.started()
        group = Connectors(cluster, 2)
        await group.begin()
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

    cluster.run(scenario())


def test_a_partition_that_another_member_owns_is_waited_for() -> None:
    cluster = Cluster()

    async def scenario() -> None:
        await cluster.started()
        group = Connectors(cluster, 2)
        await group.begin()
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

    cluster.run(scenario())


def test_a_member_without_zookeeper_returns_messages_for_a_while_and_then_stops() -> None:
    cluster = Cluster()

    async def scenario() -> None:
        await cluster.started()
        group = Connectors(cluster, 2)
        await group.begin()
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

    cluster.run(scenario())


def test_a_member_without_zookeeper_stops_before_its_granted_session_ends() -> None:
    cluster = Cluster()

    async def scenario() -> None:
        await cluster.started()
        group = Connectors(cluster, 2)
        await group.begin()
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

    cluster.run(scenario())


def test_after_an_expired_session_uncommitted_messages_are_returned_again() -> None:
    cluster = Cluster()

    async def scenario() -> None:
        await cluster.started()
        group = Connectors(cluster, 1)
        await group.begin()
        member = await group.join(auto_commit_interval_ms=3_600_000)
        await group.produce(5)
        await cluster.until(lambda: group.is_all_found)
        member.lose_session()
        await cluster.until(lambda: len(member.messages) == 10)
        assert set(group.found.values()) == {2}
        assert group.shares == [1]

    cluster.run(scenario())


def test_a_listener_is_called_before_the_change() -> None:
    cluster = Cluster()
    events: list[tuple[str, object]] = []

    class Listener(ConsumerRebalanceListener):
        def before_releasing_partitions(self, partitions: object) -> None:
            events.append(("releasing", partitions))

        def before_starting_fetchers(self, consumer_id: str, partitions: object) -> None:
            events.append((consumer_id, partitions))

    async def scenario() -> None:
        await cluster.started()
        group = Connectors(cluster, 2)
        await group.begin()
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

    cluster.run(scenario())


def test_an_exception_of_a_listener_is_raised_to_the_streams_reader() -> None:
    cluster = Cluster()

    class Listener(ConsumerRebalanceListener):
        def before_starting_fetchers(self, consumer_id: str, partitions: object) -> None:
            raise RuntimeError(f"{consumer_id} does not want {partitions}")

    async def scenario() -> None:
        await cluster.started()
        group = Connectors(cluster, 2)
        await group.begin()
        member = await group.join(listener=Listener())
        await cluster.until(member.task.done)
        with pytest.raises(RuntimeError, match="does not want"):
            member.task.result()
        assert group.shares == [0]

    cluster.run(scenario())


def test_a_group_that_cannot_be_assigned_is_an_error() -> None:
    cluster = Cluster()

    async def scenario() -> None:
        await cluster.started()
        group = Connectors(cluster, 2)
        await group.begin()
        turns = {"partition_assignment_strategy": "roundrobin"}
        one = await group.join(Topics({TOPIC: 1}), **turns)
        await create(group.client, "views", 2)
        two = await group.join(Topics({TOPIC: 1, "views": 1}), **turns)
        await cluster.until(lambda: one.task.done() and two.task.done())
        with pytest.raises(UserError, match="roundrobin needs consumers that all have the same"):
            one.task.result()

    cluster.run(scenario())


def test_reading_resumes_when_a_broker_comes_back() -> None:
    cluster = Cluster()

    async def scenario() -> None:
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

    cluster.run(scenario())
