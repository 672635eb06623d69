"""Connectors in virtual time: a broker, a ZooKeeper in memory, members that join and leave.

At every moment it is checked that no two members return messages of one partition. The exception is
a member whose session was ended early, until it learns of that.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from kdist.classic.connector.connector import ConnectorContext, Joined
from kdist.classic.connector.rebalancing import ConsumerRebalanceListener
from kdist.classic.connector.settings import read_settings
from kdist.classic.connector.stream import ConsumerTimeout, Message, Stream
from kdist.classic.connector.subscription import Subscription, Topics
from kdist.model import TopicPartition
from kdist.protocol.produce import ProducePartition, ProduceRequest, ProduceTopic
from kdist.records.build import build_batch
from kdist.testing.memory_zookeeper import MemoryZooKeeper
from kdist.zk import znodes
from tests.simulator.cluster import Cluster, create

GROUP, TOPIC = "readers", "clicks"
SESSION_MS = 6_000
HASTY = {
    "group.id": GROUP,
    "zookeeper.connect": "memory",
    "auto.offset.reset": "smallest",
    "auto.commit.interval.ms": 1_000,
    "consumer.timeout.ms": 0,
    "zookeeper.session.timeout.ms": SESSION_MS,
}


async def call(function: Callable[..., object], *arguments: object) -> None:
    function(*arguments)


def offset_path(partition: int, topic: str = TOPIC) -> str:
    return znodes.CONSUMER_OFFSET.path(GROUP, topic, partition)


def owner_path(partition: int, topic: str = TOPIC) -> str:
    return znodes.CONSUMER_OWNER.path(GROUP, topic, partition)


class Connectors:
    """All members of the group, and the messages that they returned. Owner: the loop."""

    member_kind: type[Member]

    def __init__(self, cluster: Cluster, partitions: int) -> None:
        self.cluster = cluster
        self.partitions = partitions
        self.found: Counter[bytes] = Counter()
        self.members: dict[str, Member] = {}
        self.produced = 0
        self._number = 0

    async def begin(self, **configs: str) -> None:
        """Create the topic, and from now on watch which member returns what."""
        self.client = await self.cluster.client()
        await self.client.negotiate()
        await create(self.client, TOPIC, self.partitions, **configs)
        self.cluster.loop.before_time_moves = self.check

    def check(self) -> None:
        """No two members return messages of one partition."""
        givers: dict[TopicPartition, str] = {}
        for name, member in self.members.items():
            if member.zk.session_id == member.ended_session_id:
                continue
            for each in member.giving:
                assert each not in givers, f"{each} is given by {givers[each]} and {name}"
                givers[each] = name

    async def produce(self, count: int, topic: str = TOPIC) -> None:
        """Produce this many messages, spread over all partitions."""
        for _ in range(count):
            number, self.produced = self.produced, self.produced + 1
            partition = ProducePartition(
                index=number % self.partitions,
                records=build_batch([b"%d" % number], timestamp_ms=0),
            )
            topics = [ProduceTopic(name=topic, partition_data=[partition])]
            request = ProduceRequest(acks=-1, timeout_ms=10_000, topic_data=topics)
            answer = await self.client.send(request)
            assert answer.responses[0].partition_responses[0].error_code == 0

    async def join(
        self,
        subscription: Subscription | None = None,
        listener: ConsumerRebalanceListener | None = None,
        **settings: Any,
    ) -> Member:
        """Start another member, on a host of its own."""
        self._number += 1
        name = f"c{self._number}"
        dotted = {key.replace("_", "."): value for key, value in settings.items()}
        zk = self.cluster.ensemble.client(session_timeout_ms=SESSION_MS)
        await zk.connect()
        world = ConnectorContext(
            network=self.cluster.network.host(name),
            zk=zk,
            rng=self.cluster.rng,
            now_ms=self.cluster.clock.now_ms,
            host=name,
            tell=call,
        )
        joined = Joined(
            world,
            read_settings(HASTY | dotted),
            subscription or Topics({TOPIC: 1}),
            (None, None),
            listener,
        )
        member = self.members[name] = self.member_kind(self, name, zk, joined)
        await joined.start()
        return member

    @property
    def shares(self) -> list[int]:
        """How many partitions each living member reads, sorted."""
        return sorted(len(member.giving) for member in self.members.values())

    @property
    def is_all_found(self) -> bool:
        return len(self.found) == self.produced

    async def tree(self) -> Mapping[str, str]:
        """The group's znodes: their data as text, by path."""
        tree = self.cluster.ensemble.tree
        return {
            path.removeprefix(f"/consumers/{GROUP}/"): node.data.decode()
            for path, node in tree._nodes.items()
            if path.startswith(f"/consumers/{GROUP}/")
        }


class Member:
    """A connector whose streams are read as fast as messages come."""

    def __init__(self, group: Connectors, name: str, zk: MemoryZooKeeper, joined: Joined) -> None:
        self.group = group
        self.name = name
        self.zk = zk
        self.joined = joined
        self.messages: list[Message] = []
        self.is_reading = True
        self.ended_session_id = 0
        self.task = group.cluster.loop.create_task(self._work())

    @property
    def streams(self) -> list[Stream]:
        return list(self.joined.streams._streams.values())

    @property
    def giving(self) -> list[TopicPartition]:
        owned = self.joined.rebalancer.owned
        return sorted(key for key, ownership in owned.items() if ownership.may_give)

    async def _work(self) -> None:
        while self.is_reading:
            for stream in self.streams:
                try:
                    while True:
                        message = next(stream)
                        self.group.found[message.value] += 1
                        self.messages.append(message)
                except ConsumerTimeout:
                    continue  # nothing for now
                except StopIteration:
                    return
            await asyncio.sleep(0.05)

    def be_cut_off(self, noticed_after_ms: float) -> None:
        """Cut the member off from ZooKeeper alone."""
        self.group.cluster.ensemble.suspend(self.zk, noticed_after_ms)

    def lose_session(self) -> None:
        """Expire the session now, which no server does to a client that it hears from."""
        self.ended_session_id = self.zk.session_id
        self.group.cluster.ensemble.expire(self.zk)

    def maybe_be_heard_again(self) -> None:
        """Reconnect the member to ZooKeeper, unless it is gone."""
        if self.name in self.group.members:
            self.group.cluster.ensemble.resume(self.zk)

    async def leave(self) -> None:
        """Shut down, as an application does."""
        await self.joined.close()
        del self.group.members[self.name]
        await self.task

    async def die(self) -> None:
        """End as if by kill -9: nobody is told, and the session times out."""
        if self.task.done():
            self.task.result()  # it was dead before, of a fault
        self.is_reading = False
        del self.group.members[self.name]
        self.group.cluster.ensemble.suspend(self.zk)
        self.group.cluster.network.crash(self.name)
        for task in tuple(self.joined.rebalancer._tasks):
            task.cancel()


Connectors.member_kind = Member


def with_connectors(
    scenario: Callable[[Cluster, Connectors], Awaitable[None]], partitions: int = 2
) -> None:
    """Run a scenario against one broker that has the topic, without members yet."""
    cluster = Cluster()

    async def around() -> None:
        await cluster.started()
        group = Connectors(cluster, partitions)
        await group.begin()
        await scenario(cluster, group)

    cluster.run(around())
