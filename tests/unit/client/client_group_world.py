"""A broker and a group's members in virtual time: they join, leave, die and are cut off."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Coroutine
from typing import Any

from kdist.client.cluster import Address, NoBroker
from kdist.client.consumer.aio import Consumer, call_back
from kdist.client.consumer.core import Core
from kdist.client.consumer.rebalancing import Partitions, RebalanceListener
from kdist.client.consumer.settings import read_config
from kdist.errors import KdistError
from kdist.model import TopicPartition
from kdist.protocol.produce import ProducePartition, ProduceRequest, ProduceTopic
from kdist.records.build import build_batch
from tests.simulator.cluster import PORT, Cluster, create

Scenario = Callable[[Cluster, "Group"], Coroutine[Any, Any, None]]
TOPIC = "clicks"
HASTY = {
    "group_id": "readers",
    "session_timeout_ms": 6_000,
    "heartbeat_interval_ms": 500,
    "auto_offset_reset": "earliest",
    "auto_commit_interval_ms": 1_000,
}


def consumer_on(cluster: Cluster, host: str, **settings: Any) -> Consumer:
    """A consumer on a host of its own."""
    network = cluster.network.host(host)
    found, decoders, hooks = read_config(settings)
    rng = random.Random(cluster.rng.random())
    brokers = [Address(f"m{each}", PORT) for each in cluster.brokers or (1,)]
    return Consumer.over(Core(network, brokers, found, rng, decoders, call_back, hooks))


def with_topic(scenario: Scenario, partitions: int = 1) -> None:
    """Run a scenario against one broker that has the topic."""
    cluster = Cluster()

    async def around() -> None:
        await cluster.started()
        group = Group(cluster, partitions)
        await group.begin()
        await scenario(cluster, group)

    cluster.run(around())


class Group:
    """A group: its members, and all that they have seen. Owner: the loop."""

    def __init__(self, cluster: Cluster, partitions: int) -> None:
        self.cluster = cluster
        self.partitions = partitions
        self.found: Counter[bytes] = Counter()
        self.last: dict[int, int] = {}  # the last offset returned, by partition
        self.owners: dict[TopicPartition, str] = {}
        self.members: dict[str, Member] = {}
        self.produced = 0
        self._number = 0

    async def begin(self) -> None:
        """Create the topic."""
        await self.begin_again()
        await create(self._client, TOPIC, self.partitions)

    async def begin_again(self) -> None:
        """Connect again after a restart of the broker."""
        self._client = await self.cluster.client()
        await self._client.negotiate()

    async def produce(self, count: int) -> None:
        """Produce this many records, spread over all partitions."""
        for _ in range(count):
            number, self.produced = self.produced, self.produced + 1
            batch = build_batch([b"%d" % number], timestamp_ms=0)
            partition = ProducePartition(index=number % self.partitions, records=batch)
            topics = [ProduceTopic(name=TOPIC, partition_data=[partition])]
            request = ProduceRequest(acks=-1, timeout_ms=10_000, topic_data=topics)
            answer = await self._client.send(request)
            assert answer.responses[0].partition_responses[0].error_code == 0

    def join(self, kind: type[Member] | None = None, /, **settings: Any) -> Member:
        """Start another member, on a host of its own."""
        self._number += 1
        name = f"c{self._number}"
        self.members[name] = member = (kind or Member)(self, name, HASTY | settings)
        return member

    @property
    def shares(self) -> list[int]:
        """How many partitions each living member reads, sorted."""
        return sorted(len(member.consumer.assignment()) for member in self.members.values())

    @property
    def is_all_found(self) -> bool:
        return len(self.found) == self.produced


class Member(RebalanceListener):
    """A consumer that polls, and notes who owns each partition."""

    def __init__(self, group: Group, name: str, settings: dict[str, Any]) -> None:
        self.group = group
        self.name = name
        self.is_polling = True
        self.lost: list[TopicPartition] = []
        self.consumer = consumer_on(group.cluster, name, **settings)
        self.consumer.subscribe([TOPIC], self)
        self.task = group.cluster.loop.create_task(self._work())

    async def _work(self) -> None:
        while self.is_polling:
            try:
                records = await self.consumer.poll(0.2)
            except NoBroker:
                continue  # it came while the broker was down
            for record in records:
                self.group.found[record.value] += 1

    def on_assigned(self, partitions: Partitions) -> None:
        for each in partitions:
            assert each not in self.group.owners, f"{each} is {self.group.owners[each]}'s"
            self.group.owners[each] = self.name

    def on_revoked(self, partitions: Partitions) -> None:
        for each in partitions:
            assert self.group.owners.pop(each) == self.name

    def on_lost(self, partitions: Partitions) -> None:
        self.lost += partitions
        self.forget()

    def forget(self) -> None:
        """This member owns nothing any more: others may take its partitions."""
        for each, owner in list(self.group.owners.items()):
            if owner == self.name:
                del self.group.owners[each]

    async def leave(self) -> None:
        """Close the consumer, as an application does."""
        self.is_polling = False
        await self.task
        await self.consumer.close()
        del self.group.members[self.name]

    async def die(self) -> None:
        """End as if by kill -9."""
        if self.task.done():
            self.task.result()  # it was dead before, of a fault
        self.task.cancel()
        self.forget()
        self.group.cluster.network.crash(self.name)
        del self.group.members[self.name]
        try:
            await self.consumer.close(timeout_s=0.01)
        except KdistError:
            pass  # nobody is there to hear it
        await asyncio.wait([self.task])
