"""Partitions move to other replicas: by a client's request or an old tool's, whatever happens."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import suppress

import pytest
from controller_states import assign, controller_of, settle, state_of
from controller_world import Cluster, in_cluster

from kdist.controller import writing
from kdist.controller.reassignments import Target
from kdist.errors import ApiError, Error
from kdist.model import TopicPartition
from kdist.protocol.alter_partition import (
    AlteredPartition,
    AlteredTopic,
    AlterPartitionRequest,
    IsrMember,
)
from kdist.zk import znodes
from kdist.zk.values import Reassignment, TopicAssignment

CLICKS = TopicPartition("clicks", 0)
SECOND = TopicPartition("clicks", 1)
HARMS = ("kill", "usurp", "expire")
SYNC_S = 0.05


class Leaders:
    """What the leaders of a topic do: propose each replica that is alive, one at a time."""

    def __init__(self, cluster: Cluster, name: str) -> None:
        self._cluster = cluster
        self._name = name
        self.held_back: set[int] = set()  # replicas that do not get in sync
        self.isrs: list[tuple[int, ...]] = []  # that the topic's first partition has had
        self.task = asyncio.create_task(self._run())

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(SYNC_S)
            if self._name not in self._cluster.topics():
                continue
            topic = self._cluster.topic(self._name)
            for index in topic.partitions:
                with suppress(ApiError):
                    await self._propose(TopicPartition(self._name, index), topic)

    async def _propose(self, partition: TopicPartition, topic: TopicAssignment) -> None:
        cluster = self._cluster
        state, version = state_of(cluster, partition)
        if partition.partition == 0 and (not self.isrs or self.isrs[-1] != state.isr):
            self.isrs.append(state.isr)
        registered = cluster.registered()
        replicas = topic.partitions[partition.partition]
        coming = [
            each
            for each in replicas
            if each not in state.isr and each in registered and each not in self.held_back
        ]
        is_led = state.leader in registered and cluster.nodes[state.leader].is_up
        if not coming or not is_led or cluster.controller is None or topic.topic_id is None:
            return
        members = [*state.isr, coming[0]]
        proposed = AlteredPartition(
            partition_index=partition.partition,
            leader_epoch=state.leader_epoch,
            new_isr_with_epochs=[IsrMember(broker_id=each) for each in members],
            partition_epoch=version,
        )
        answer = await cluster.controller.alter_partition(
            AlterPartitionRequest(
                broker_id=state.leader,
                broker_epoch=registered[state.leader],
                topics=[AlteredTopic(topic_id=topic.topic_id, partitions=[proposed])],
            )
        )
        if answer.topics and not answer.topics[0].partitions[0].error_code:
            self._note(partition, state.leader_epoch, tuple(members))

    def _note(self, partition: TopicPartition, epoch: int, isr: tuple[int, ...]) -> None:
        """Leaders learn of an ISR by the answer, and other replicas need not."""
        for node in self._cluster.nodes.values():
            known = node.peer.led.get(partition)
            if known is not None and known.leader_epoch == epoch:
                node.peer.led[partition] = known._replace(isr=isr)


async def move(cluster: Cluster, targets: Mapping[TopicPartition, Target | None]) -> list[str]:
    """Ask the controller; the names of the errors, in order."""
    outcomes = await controller_of(cluster).alter_reassignments(targets, 20_000)
    return ["NONE" if each is None else each.error.name for each in outcomes.values()]


def is_moving(cluster: Cluster, name: str) -> bool:
    topic = cluster.topic(name)
    return bool(topic.adding or topic.removing)


async def moved(cluster: Cluster, name: str) -> TopicAssignment:
    """Until nothing of the topic moves any more, and nothing is left behind."""
    await cluster.until(lambda: not is_moving(cluster, name))
    await cluster.until(lambda: not cluster.topic(name).removed)
    await cluster.converge()
    return cluster.topic(name)


async def begin(cluster: Cluster, *replicas: tuple[int, ...]) -> Leaders:
    await cluster.start()
    await assign(cluster, "clicks", *replicas)
    await settle(cluster)
    return Leaders(cluster, "clicks")


@pytest.mark.played(by=in_cluster, seed=80, brokers=6)
async def test_a_partition_moves_to_other_brokers_and_the_former_ones_delete_it(
    cluster: Cluster, /
) -> None:
    leaders = await begin(cluster, (1, 2, 3), (2, 3))
    assert await move(cluster, {CLICKS: (4, 5, 6), SECOND: (3, 2)}) == ["NONE", "NONE"]
    topic = cluster.topic("clicks")
    assert topic.partitions[0] == (4, 5, 6, 1, 2, 3)
    assert (topic.adding, topic.removing) == ({0: (4, 5, 6)}, {0: (1, 2, 3)})
    assert topic.before == {0: (1, 2, 3)}
    topic = await moved(cluster, "clicks")
    assert topic.partitions == {0: (4, 5, 6), 1: (3, 2)}
    state, _ = state_of(cluster, CLICKS)
    assert (state.leader, sorted(state.isr)) == (4, [4, 5, 6])
    assert [CLICKS in cluster.nodes[i].peer.logs for i in range(1, 7)] == [False] * 3 + [True] * 3
    assert leaders.isrs[0] == (1, 2, 3)
    assert all({1, 2, 3} <= {*isr} or {4, 5, 6} <= {*isr} for isr in leaders.isrs)
    assert controller_of(cluster)._context.metrics.reassigning_partitions() == 0


@pytest.mark.played(by=in_cluster, seed=81, brokers=4)
async def test_a_leader_that_stays_a_replica_leads_on(cluster: Cluster, /) -> None:
    await begin(cluster, (1, 2))
    await move(cluster, {CLICKS: (4, 3, 1)})
    topic = await moved(cluster, "clicks")
    assert topic.partitions == {0: (4, 3, 1)}
    assert state_of(cluster, CLICKS)[0].leader == 1


@pytest.mark.parametrize(
    ("replicas", "target"), [((1,), (1, 2, 3)), ((1, 2, 3), (2,)), ((1, 2), (2, 1)), ((1,), (2,))]
)
@pytest.mark.played(by=in_cluster, seed=82)
async def test_the_replication_factor_is_raised_and_lowered_and_the_order_changed(
    cluster: Cluster, /, replicas: tuple[int, ...], target: tuple[int, ...]
) -> None:
    await begin(cluster, replicas)
    cluster.configure("clicks", min_insync_replicas="2")
    await move(cluster, {CLICKS: target})
    topic = await moved(cluster, "clicks")
    assert topic.partitions == {0: target}
    state, _ = state_of(cluster, CLICKS)
    assert (sorted(state.isr), state.eligible) == (sorted(target), ())


@pytest.mark.played(by=in_cluster, seed=83, brokers=4)
async def test_a_cancelled_move_gives_back_the_origin_in_its_order(cluster: Cluster, /) -> None:
    leaders = await begin(cluster, (3, 1, 2))
    leaders.held_back = {4}
    await move(cluster, {CLICKS: (1, 4)})
    await asyncio.sleep(1)
    assert cluster.topic("clicks").partitions == {0: (1, 4, 3, 2)}
    assert await move(cluster, {CLICKS: None}) == ["NONE"]
    topic = cluster.topic("clicks")
    assert (topic.partitions, topic.adding, topic.before) == ({0: (3, 1, 2)}, {}, {})
    await moved(cluster, "clicks")
    assert CLICKS not in cluster.nodes[4].peer.logs
    assert await move(cluster, {CLICKS: None}) == ["NO_REASSIGNMENT_IN_PROGRESS"]


@pytest.mark.played(by=in_cluster, seed=84, brokers=5)
async def test_another_target_takes_the_place_of_the_first(cluster: Cluster, /) -> None:
    leaders = await begin(cluster, (1, 2))
    leaders.held_back = {4}
    await move(cluster, {CLICKS: (3, 4)})
    await cluster.until(lambda: 3 in state_of(cluster, CLICKS)[0].isr)
    await move(cluster, {CLICKS: (3, 5)})
    topic = cluster.topic("clicks")
    assert (topic.partitions[0], topic.before[0]) == ((3, 5, 1, 2), (1, 2))
    topic = await moved(cluster, "clicks")
    assert topic.partitions == {0: (3, 5)}
    assert CLICKS not in cluster.nodes[4].peer.logs


@pytest.mark.played(by=in_cluster, seed=85, brokers=5)
async def test_a_move_is_turned_back_where_the_origin_is_not_in_sync_and_completes_when_it_is(
    cluster: Cluster, /
) -> None:
    leaders = await begin(cluster, (2, 3))
    cluster.configure("clicks", min_insync_replicas="2")
    leaders.held_back = {2, 5}
    await move(cluster, {CLICKS: (4, 5)})
    await cluster.until(lambda: 4 in state_of(cluster, CLICKS)[0].isr)
    cluster.nodes[2].kill()
    await cluster.until(lambda: state_of(cluster, CLICKS)[0].isr == (3, 4))
    await move(cluster, {CLICKS: None})
    topic = cluster.topic("clicks")
    assert (topic.partitions[0], topic.removing[0]) == ((2, 3, 4), (4,))
    assert state_of(cluster, CLICKS)[0].isr == (3, 4)
    cluster.nodes[2].start()
    leaders.held_back = {5}
    topic = await moved(cluster, "clicks")
    assert topic.partitions == {0: (2, 3)}


@pytest.mark.played(by=in_cluster, seed=86, brokers=5)
async def test_a_target_that_dies_is_waited_for_and_a_former_replica_that_is_down_is_not(
    cluster: Cluster, /
) -> None:
    leaders = await begin(cluster, (2, 3))
    leaders.held_back = {5}
    cluster.nodes[5].kill()
    await cluster.until(lambda: 5 not in cluster.registered())
    await cluster.converge()
    assert await move(cluster, {CLICKS: (4, 5)}) == ["INVALID_REPLICA_ASSIGNMENT"]
    cluster.nodes[5].start()
    await cluster.until(lambda: 5 in cluster.registered())
    await asyncio.sleep(1)
    cluster.nodes[5].kill()
    await move(cluster, {CLICKS: (4, 5)})
    await asyncio.sleep(10)
    assert is_moving(cluster, "clicks")
    cluster.nodes[2].kill()
    leaders.held_back = set()
    cluster.nodes[5].start()
    await cluster.until(lambda: not is_moving(cluster, "clicks"))
    await cluster.until(lambda: cluster.topic("clicks").removed == {0: (2,)})
    assert CLICKS in cluster.nodes[2].peer.logs
    cluster.nodes[2].start()
    await moved(cluster, "clicks")
    assert CLICKS not in cluster.nodes[2].peer.logs


@pytest.mark.played(by=in_cluster, seed=87, brokers=4)
async def test_a_partition_that_moves_back_to_a_broker_that_is_down_keeps_its_log_there(
    cluster: Cluster, /
) -> None:
    await begin(cluster, (2, 3))
    await move(cluster, {CLICKS: (3, 4)})
    cluster.nodes[2].kill()
    await cluster.until(lambda: not is_moving(cluster, "clicks"))
    cluster.nodes[2].start()
    await cluster.until(lambda: 2 in cluster.registered())
    while await move(cluster, {CLICKS: (2, 3)}) != ["NONE"]:
        await asyncio.sleep(0.001)  # the controller is about to hear of it
    topic = await moved(cluster, "clicks")
    assert topic.partitions == {0: (2, 3)}
    assert CLICKS in cluster.nodes[2].peer.logs


@pytest.mark.played(by=in_cluster, seed=88, brokers=4)
async def test_a_topic_is_deleted_and_grown_during_a_move(cluster: Cluster, /) -> None:
    leaders = await begin(cluster, (1, 2))
    leaders.held_back = {4}
    await move(cluster, {CLICKS: (3, 4)})
    assert await cluster.grow("clicks", 2) == "NONE"
    topic = cluster.topic("clicks")
    assert len(topic.partitions[1]) == 2
    assert (topic.partitions[0], topic.adding) == ((3, 4, 1, 2), {0: (3, 4)})
    assert await cluster.delete("clicks") == "NONE"
    await cluster.converge()
    assert cluster.topics() == []
    assert all(not node.peer.logs for node in cluster.nodes.values())


@pytest.mark.played(by=in_cluster, seed=89, brokers=4)
async def test_an_old_tools_request_is_done_entry_by_entry_and_removed_with_the_last(
    cluster: Cluster, /
) -> None:
    leaders = await begin(cluster, (1, 2), (1, 2))
    leaders.held_back = {4}
    tool, path = cluster.nodes[3].zk, znodes.REASSIGNMENT.path()
    assert tool is not None
    targets = {CLICKS: (2, 3), SECOND: (2, 4), TopicPartition("views", 0): (1,)}
    await tool.create(path, Reassignment(targets).encode(), make_parents=True)

    def left() -> object:
        return znodes.REASSIGNMENT.decode(path, cluster.ensemble.tree.get(path).data).targets

    await cluster.until(lambda: left() == {SECOND: (2, 4)})
    assert cluster.topic("clicks").partitions == {0: (2, 3), 1: (2, 4, 1)}
    cluster.nodes[1].kill()
    await cluster.until(lambda: cluster.controller)
    leaders.held_back = set()
    await cluster.until(lambda: not cluster.exists(path))
    assert cluster.topic("clicks").partitions == {0: (2, 3), 1: (2, 4)}
    await tool.create(path, Reassignment({SECOND: (3, 4)}).encode())
    await cluster.until(lambda: not cluster.exists(path))
    assert cluster.topic("clicks").partitions[1] == (3, 4)


@pytest.mark.parametrize("data", [b"no json", b'{"version":1,"partitions":[{"topic":"clicks"}]}'])
@pytest.mark.played(by=in_cluster, seed=90)
async def test_an_old_tools_corrupt_request_moves_nothing(cluster: Cluster, /, data: bytes) -> None:
    await begin(cluster, (1, 2))
    tool = cluster.nodes[3].zk
    assert tool is not None
    await tool.create(znodes.REASSIGNMENT.path(), data, make_parents=True)
    await asyncio.sleep(1)
    assert cluster.topic("clicks").partitions == {0: (1, 2)}
    assert cluster.controller is not None


async def change(cluster: Cluster, what: str) -> None:
    """Ask until it is answered, whoever the controller is."""
    targets = {
        "move": {CLICKS: (3, 4), SECOND: (4, 1)},
        "cancel": {CLICKS: None, SECOND: None},
        "factor": {CLICKS: (2,), SECOND: (2, 3, 4)},
    }[what]
    while True:
        try:
            if cluster.controller is not None:
                outcomes = await cluster.controller.alter_reassignments(targets, 20_000)
                faults = {each.error for each in outcomes.values() if each is not None}
                if faults <= {Error.NO_REASSIGNMENT_IN_PROGRESS}:  # else a target is down
                    return
        except ApiError:
            pass
        await asyncio.sleep(0.2)


def play(what: str, how: str, turn: int, seed: int) -> int:
    """Harm the controller that many turns into a move, or never; the turns that it took."""
    cluster = Cluster(seed, brokers=4)

    async def scenario() -> int:
        leaders = await begin(cluster, (1, 2), (2, 3))
        if what == "cancel":
            leaders.held_back = {4}
            await change(cluster, "move")
            await cluster.converge()
        before = cluster.loop.turns
        if turn:
            cluster.loop.arm(turn, lambda: harm(cluster, how))
        asking = asyncio.ensure_future(change(cluster, what))
        await asyncio.wait([asking], timeout=30)
        # The other one may move to the broker that is down.
        await cluster.until(lambda: 0 not in {**cluster.topic("clicks").removing})
        turns = cluster.loop.turns - before
        await asyncio.sleep(1)
        for node in cluster.nodes.values():
            if not node.is_up:
                node.start()
        await asyncio.wait_for(asking, 30)
        topic = await moved(cluster, "clicks")
        expected = {
            "move": {0: (3, 4), 1: (4, 1)},
            "cancel": {0: (1, 2), 1: (2, 3)},
            "factor": {0: (2,), 1: (2, 3, 4)},
        }[what]
        assert topic.partitions == expected
        assert (topic.before, topic.removed) == ({}, {})
        return turns

    return int(cluster.run(scenario()))


def harm(cluster: Cluster, how: str) -> None:
    match how:
        case "usurp":
            cluster.nodes[3].usurp()
        case "kill":
            cluster.nodes[1].kill()
        case "expire":
            cluster.nodes[1].expire()


@pytest.mark.parametrize("how", HARMS)
@pytest.mark.parametrize("what", ["move", "cancel", "factor"])
def test_a_controller_that_is_lost_at_any_turn_of_a_move_leaves_it_to_the_next(
    what: str, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writing, "CHUNK", 1)
    turns = play(what, how, 0, seed=91)
    step = max(1, turns // 60)
    for turn in range(1, turns + 5, step):
        play(what, how, turn, seed=91)
