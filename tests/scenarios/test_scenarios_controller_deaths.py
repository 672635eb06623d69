"""Controllers that die, and random histories: nothing is left half done, lost or left behind.

The matrix kills, pauses, expires or replaces the controller at every turn of the event loop between
the request for a change and its answer, so at every point where it waits. Whoever comes next has to
finish the job, and two at once must not both act.

In a history each user owns one topic, which it creates, grows and deletes, again and again, asking
whoever is controller until it has an answer, while a monkey breaks things. It is beside
`tests/simulator` because its brokers are stand-ins without logs: so it plays many more changes and
deaths of controllers in the same time.
"""

from __future__ import annotations

import asyncio
import random
from contextlib import suppress

import pytest
from controller_states import assign
from controller_world import Cluster, Node

from kdist.controller import writing
from kdist.errors import ApiError, Error
from kdist.protocol.controlled_shutdown import ControlledShutdownRequest
from kdist.protocol.elect_leaders import PREFERRED
from kdist.zk import znodes
from kdist.zk.client import SessionState, Set
from kdist.zk.values import PartitionState

REQUESTS_SENT_TURNS = 40  # after a write, by which whoever asked for it may be answered
OPERATIONS = ("create", "grow", "delete", "fail", "stop", "balance")
REPLICAS = (3, 2, 1)  # of a partition that is on all brokers; its preferred leader is not harmed
RARER_HARMS = ("pause", "blink", "expire")  # what they find, killing or replacing mostly finds too

HISTORY_S_MAX = 600  # of virtual time: whoever still waits then waits for ever
RETRIED = {"NOT_CONTROLLER", "REQUEST_TIMED_OUT"}


class User:
    """The owner of one topic; `partitions` is how many it has to have in the end."""

    def __init__(self, cluster: Cluster, name: str, rng: random.Random) -> None:
        self.name = name
        self.partitions = 0
        self.answers: list[str] = []
        self._cluster = cluster
        self._rng = rng

    async def work(self, rounds: int) -> None:
        """Create and delete the topic some times; the last one may stay."""
        for _ in range(rounds):
            await self._create(self._rng.randint(1, 4))
            await self._pause()
            if self._rng.random() < 0.6:
                await self._grow(self.partitions + self._rng.randint(1, 3))
                await self._pause()
            if self._rng.random() < 0.7:
                await self._delete()
                await self._pause()
            else:
                return

    async def _create(self, partitions: int) -> None:
        while True:
            answer = await self._insist(lambda: self._cluster.create(self.name, partitions))
            if answer == "NONE":
                break
            assert answer == "TOPIC_ALREADY_EXISTS", answer
            # One that does not know yet that it was replaced may speak of a topic that is gone.
            exists = self.name in self._cluster.topics()
            if (
                exists and self.name not in self._cluster.queued_for_deletion()
            ):  # an earlier try succeeded
                break
            await asyncio.sleep(0.5)
        self.partitions = partitions

    async def _grow(self, count: int) -> None:
        answer = await self._insist(lambda: self._cluster.grow(self.name, count))
        assert answer in ("NONE", "INVALID_PARTITIONS"), answer  # an earlier try succeeded
        self.partitions = count

    async def _delete(self) -> None:
        answer = await self._insist(lambda: self._cluster.delete(self.name))
        assert answer in ("NONE", "UNKNOWN_TOPIC_OR_PARTITION"), answer
        self.partitions = 0

    async def _insist(self, ask) -> str:
        while True:
            if self._cluster.controller is not None:
                answer = await ask_or_lose(ask())
                self.answers.append(answer)
                if answer not in RETRIED:
                    return answer
            await asyncio.sleep(0.2)

    async def _pause(self) -> None:
        await asyncio.sleep(self._rng.expovariate(1.0))


class Monkey:
    """Breaks one thing after another."""

    def __init__(self, cluster: Cluster, rng: random.Random) -> None:
        self._cluster = cluster
        self._rng = rng
        self.deeds: list[str] = []

    async def rage(self, deeds: int) -> None:
        """Break this many things, some seconds apart."""
        for _ in range(deeds):
            await asyncio.sleep(self._rng.expovariate(0.5))
            node = self._rng.choice(list(self._cluster.nodes.values()))
            deed = self._rng.choice((self._kill_or_start, self._expire, self._pause, self._cut))
            deed(node)
            self.deeds.append(f"{deed.__name__} {node.id}")

    def _kill_or_start(self, node: Node) -> None:
        if node.is_up:
            node.kill()
        else:
            node.start()

    def _expire(self, node: Node) -> None:
        if node.is_up:
            node.expire()

    def _pause(self, node: Node) -> None:
        if node.is_up and node.zk and node.zk.state is SessionState.CONNECTED:
            node.pause(self._rng.choice((50, 2_000, 5_900, 6_100, 15_000)))

    def _cut(self, node: Node) -> None:
        """Lose the answer or the request in flight."""
        for peer in node.peer.connections:
            peer.close()


async def ask_or_lose(asking) -> str:
    """The answer, or NOT_CONTROLLER if the broker that was asked dies with the question."""
    task = asyncio.ensure_future(asking)
    done, _ = await asyncio.wait([task], timeout=60)
    assert done, "a question without an answer"
    return task.result()


def live_through(seed: int, users: int = 4, deeds: int = 25) -> None:
    """Run the history of a seed; raises if the cluster does not end as it must."""
    cluster = Cluster(seed, brokers=4)
    rng = random.Random(seed)

    async def scenario() -> None:
        await cluster.start()
        monkey = Monkey(cluster, rng)
        owners = [User(cluster, f"topic-{i}", rng) for i in range(users)]
        raging = asyncio.ensure_future(monkey.rage(deeds))
        working = [asyncio.ensure_future(owner.work(6)) for owner in owners]
        await raging
        await asyncio.sleep(20)  # pauses end
        for node in cluster.nodes.values():
            if not node.is_up:
                node.start()
        await asyncio.wait_for(asyncio.gather(*working), HISTORY_S_MAX)
        await cluster.until(lambda: not cluster.queued_for_deletion())
        await cluster.converge()
        found = dict.fromkeys(cluster.topics(), 0)
        for partition in cluster.states():
            found[partition.topic] += 1
        assert found == {owner.name: owner.partitions for owner in owners if owner.partitions}

    cluster.run(scenario())


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
