"""Random histories of a cluster: users who retry, and a monkey that breaks things meanwhile.

Each user owns one topic, which it creates, grows and deletes, again and again, asking whoever is
controller until it has an answer. In the end all brokers are up again, and the topics have to be
those that the users were promised. It is beside `tests/simulator` because its brokers are stand-ins
without logs: so it plays many more changes and deaths of controllers in the same time.
"""

from __future__ import annotations

import asyncio
import random

from controller_world import Cluster, Node

from kdist.zk.client import SessionState

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
