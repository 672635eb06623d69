"""Controllers that die, and random histories: nothing is left half done, lost or left behind.

The matrix kills, pauses, expires or replaces the controller at every turn of the event loop between
the request for a change and its answer, so at every point where it waits. Whoever comes next has to
finish the job, and two at once must not both act.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress

import pytest
from controller_history import live_through
from controller_states import assign
from controller_world import Cluster

from kdist.controller import writing
from kdist.errors import ApiError, Error
from kdist.protocol.controlled_shutdown import ControlledShutdownRequest
from kdist.protocol.elect_leaders import PREFERRED
from kdist.zk import znodes
from kdist.zk.client import Set
from kdist.zk.topic_values import PartitionState

REQUESTS_SENT_TURNS = 40  # after a write, by which whoever asked for it may be answered
OPERATIONS = ("create", "grow", "delete", "fail", "stop", "balance")
REPLICAS = (3, 2, 1)  # of a partition that is on all brokers; its preferred leader is not harmed
RARER_HARMS = ("pause", "blink", "expire")  # what they find, killing or replacing mostly finds too


async def carry_out(cluster: Cluster, operation: str) -> str:
    match operation:
        case "create":
            return await cluster.create("views", 4, retention_ms="5000")
        case "grow":
            return await cluster.grow("clicks", 6)
        case "fail":
            await cluster.until(lambda: 2 not in shared_state(cluster).isr)
            return "NONE"
        case "stop":
            return await stop_broker(cluster, 2)
        case "balance":
            return await balance(cluster)
    return await cluster.delete("clicks")


def shared_state(cluster: Cluster) -> PartitionState:
    path = znodes.PARTITION_STATE.path("shared", 0)
    return znodes.PARTITION_STATE.decode(path, cluster.ensemble.tree.get(path).data)


async def stop_broker(cluster: Cluster, broker_id: int) -> str:
    """Ask as a broker does that is about to stop, until it is answered."""
    while True:
        if cluster.controller is not None and broker_id in cluster.registered():
            epoch = cluster.registered()[broker_id]
            request = ControlledShutdownRequest(broker_id=broker_id, broker_epoch=epoch)
            answer = await cluster.controller.controlled_shutdown(request)
            if answer.error_code == Error.NONE:
                return "NONE"
        await asyncio.sleep(0.2)


async def balance(cluster: Cluster) -> str:
    """Ask for preferred leaders, until that is answered."""
    while True:
        with suppress(ApiError):
            if cluster.controller is not None:
                await cluster.controller.elect_leaders(None, PREFERRED, 20_000)
                return "NONE"
        await asyncio.sleep(0.2)


async def begin(cluster: Cluster, operation: str) -> None:
    """The cluster before the operation."""
    await cluster.start()
    await cluster.create("clicks", 3)
    await assign(cluster, "shared", REPLICAS)
    if operation == "fail":
        cluster.nodes[2].kill()
        await cluster.until(lambda: 2 not in cluster.registered())
    if operation == "balance":
        path = znodes.PARTITION_STATE.path("shared", 0)
        state = shared_state(cluster)._replace(leader=2, leader_epoch=7, isr=(1, 2, 3))
        cluster.ensemble.tree.write((Set(path, state.encode()),), 0, 0)
        cluster.nodes[1].expire()  # the next term finds it
        await asyncio.sleep(1)
        await cluster.converge()


def harm(cluster: Cluster, how: str) -> None:
    node = cluster.nodes[1]
    match how:
        case "usurp":
            cluster.nodes[3].usurp()
        case "kill":
            node.kill()
        case "pause":
            node.pause(20_000)  # over the session timeout
        case "blink":
            node.pause(1_000)  # within it
        case "expire":
            node.expire()


def turns_of(operation: str, seed: int) -> int:
    """How many turns of the loop an operation takes without harm."""
    cluster = Cluster(seed)

    async def scenario() -> int:
        await begin(cluster, operation)
        before = cluster.loop.turns
        assert await carry_out(cluster, operation) == "NONE"
        return cluster.loop.turns - before

    turns: int = cluster.run(scenario())
    return turns


def die_at(turn: int, operation: str, how: str, seed: int) -> None:
    """Harm the controller that many turns into the operation; the cluster has to converge."""
    cluster = Cluster(seed)

    async def scenario() -> None:
        await begin(cluster, operation)
        cluster.loop.arm(turn, lambda: harm(cluster, how))
        asking = asyncio.ensure_future(carry_out(cluster, operation))
        await asyncio.sleep(30)
        await cluster.converge()  # without those that are down, as far as that is possible
        check_isr(cluster, operation)
        for each in cluster.nodes.values():
            if not each.is_up:
                each.start()
        await cluster.converge()
        check_end(cluster, operation)
        asking.cancel()

    cluster.run(scenario())


def check_isr(cluster: Cluster, operation: str) -> None:
    """The partition that is on all brokers is led by one that is alive and has all."""
    state, up = shared_state(cluster), {node.id for node in cluster.alive}
    assert state.leader in up & set(state.isr)
    assert set(state.isr) <= up
    assert not state.is_recovering
    match operation:
        case "stop":
            assert 2 not in state.isr
        case "balance":
            assert state.leader == REPLICAS[0]


def check_end(cluster: Cluster, operation: str) -> None:
    """The change was made whole, or not at all."""
    topics = set(cluster.topics()) - {"shared"}
    partitions = [each for each in cluster.states() if each.topic == "clicks"]
    assert topics <= {"clicks", "views"}
    match operation:
        case "create":
            assert "clicks" in topics
            assert cluster.exists("/config/topics/views") == ("views" in topics)
        case "grow":
            assert len(partitions) in (3, 6)
        case "delete":
            assert len(partitions) in (0, 3)
            assert cluster.exists("/config/topics/clicks") == ("clicks" in topics)


@pytest.mark.parametrize(
    "how",
    ["kill", "usurp", *(pytest.param(how, marks=pytest.mark.slow) for how in RARER_HARMS)],
)
@pytest.mark.parametrize("operation", OPERATIONS)
def test_a_controller_that_is_lost_at_any_turn_leaves_nothing_half_done(
    operation: str, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writing, "CHUNK", 1)  # each partition is a write that can be the last
    turns = turns_of(operation, seed=14)
    assert turns > 10
    for turn in range(1, max(turns, REQUESTS_SENT_TURNS) + 5):
        die_at(turn, operation, how, seed=14)


@pytest.mark.parametrize("seed", range(30))
def test_after_any_history_brokers_know_what_zookeeper_has_and_users_what_they_were_promised(
    seed: int,
) -> None:
    live_through(seed)


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_after_hundreds_of_histories_nothing_is_lost_or_left_behind() -> None:
    for seed in range(1000, 1300):
        live_through(seed)
