"""Controllers that die, and random histories: nothing is left half done, lost or left behind.

The matrix kills, pauses, expires or replaces the controller at every turn of the event loop between
the request for a change and its answer, so at every point where it waits. Whoever comes next has to
finish the job, and two at once must not both act.
"""

from __future__ import annotations

import asyncio

import pytest
from controller_history import live_through
from controller_world import Cluster

from kdist.controller import writing

OPERATIONS = ("create", "grow", "delete")
RARER_HARMS = ("pause", "blink", "expire")  # what they find, killing or replacing mostly finds too


async def carry_out(cluster: Cluster, operation: str) -> str:
    match operation:
        case "create":
            return await cluster.create("views", 4, retention_ms="5000")
        case "grow":
            return await cluster.grow("clicks", 6)
    return await cluster.delete("clicks")


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
        await cluster.start()
        await cluster.create("clicks", 3)
        before = cluster.loop.turns
        assert await carry_out(cluster, operation) == "NONE"
        return cluster.loop.turns - before

    turns: int = cluster.run(scenario())
    return turns


def die_at(turn: int, operation: str, how: str, seed: int) -> None:
    """Harm the controller that many turns into the operation; the cluster has to converge."""
    cluster = Cluster(seed)

    async def scenario() -> None:
        await cluster.start()
        await cluster.create("clicks", 3)
        node = cluster.nodes[1]
        cluster.loop.arm(turn, lambda: harm(cluster, how))
        asking = asyncio.ensure_future(carry_out(cluster, operation))
        await asyncio.sleep(30)
        if not node.is_up:
            await cluster.converge()  # without it, as far as that is possible
            node.start()
        await cluster.converge()
        check_end(cluster, operation)
        asking.cancel()

    cluster.run(scenario())


def check_end(cluster: Cluster, operation: str) -> None:
    """The change was made whole, or not at all."""
    topics = set(cluster.topics())
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
    assert turns > 30
    for turn in range(1, turns + 5):
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
