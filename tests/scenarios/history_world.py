"""Shared by the random histories: brokers that die and return, links that are cut, a producer."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import TypeVar

from kdist.client.consumer.batch import ConsumedRecord
from kdist.client.producer.asynchronous import AsyncProducer
from kdist.client.producer.core import ProducerContext
from kdist.client.producer.results import Sent
from kdist.model import TopicPartition
from kdist.network.network import CLIENT_PATIENCE, Patience
from kdist.network.tls import ClientTls
from kdist.testing.simulated_network import SimulatedHost
from tests.simulator.cluster import PORT, Cluster
from tests.unit.client.client_group_world import consumer_on

P = TypeVar("P", bound=asyncio.BaseProtocol)


class Brokers:
    """The brokers of a cluster. With `is_power_lost` most deaths lose what was not synced."""

    def __init__(
        self, cluster: Cluster, ids: Collection[int] = (1, 2, 3), *, is_power_lost: bool
    ) -> None:
        self.cluster = cluster
        self.ids = tuple(ids)
        self.hosts = [f"m{each}" for each in ids]
        self.addresses = ",".join(f"{each}:{PORT}" for each in self.hosts)
        self._is_power_lost = is_power_lost
        self._back_at: dict[int, int] = {}  # dead brokers, each with the step in which it returns

    async def start(self) -> None:
        for each in self.ids:
            await self.cluster.started(each)

    @property
    def topic_settings(self) -> dict[str, str]:
        """Topic settings with which no acknowledged record is lost."""
        return {"flush_before_expose": "true" if self._is_power_lost else "false"}

    @property
    def are_all_up(self) -> bool:
        return not self._back_at

    def kill_one(self, step: int) -> None:
        """Kill one broker for a few steps."""
        rng = self.cluster.rng
        broker, back_at = rng.choice(self.ids), step + rng.randrange(1, 4)
        is_power_lost = self._is_power_lost and rng.random() < 0.7
        self.cluster.kill(self.cluster.brokers[broker], is_power_lost=is_power_lost)
        self._back_at[broker] = back_at

    async def bring_back(self, step: float = float("inf")) -> None:
        """Restart the brokers that are due."""
        for broker, back_at in list(self._back_at.items()):
            if back_at <= step:
                del self._back_at[broker]
                await self.cluster.started(broker)


async def cut_off(
    cluster: Cluster, hosts: Collection[str], some: Collection[str] = (), *, s_max: float = 4
) -> None:
    """Keep some of the hosts, or else one or two, from all others for a while."""
    some = some or cluster.rng.sample(list(hosts), cluster.rng.randrange(1, 3))
    cluster.network.partition(some, [each for each in hosts if each not in some])
    await asyncio.sleep(cluster.rng.uniform(0, s_max))
    cluster.network.heal()


class Sending:
    """A producer that sends numbers all the time, and the outcome of each."""

    host = "producer"

    def __init__(self, brokers: Brokers, partitions: Sequence[TopicPartition]) -> None:
        """More partitions may come."""
        self._partitions = partitions
        self._cluster = cluster = brokers.cluster
        self._sent: dict[bytes, Sent] = {}
        self._is_sending = True
        rng = random.Random(cluster.rng.random())
        self._producer = AsyncProducer(
            context=ProducerContext(cluster.network.host(self.host), cluster.clock, rng),
            bootstrap_servers=brokers.addresses,
            linger_ms=cluster.rng.choice([0, 5, 50]),
            request_timeout_ms=1_500,  # less than hosts are cut off for: it sends again
        )
        self._task = cluster.loop.create_task(self._work())

    async def _work(self) -> None:
        rng = self._cluster.rng
        async with self._producer as producer:
            while self._is_sending:
                value = b"%d" % len(self._sent)
                topic, partition = rng.choice(self._partitions)
                self._sent[value] = await producer.send(topic, value, partition=partition)
                await asyncio.sleep(rng.uniform(0, 0.2))
            await producer.flush()

    async def end(self) -> set[bytes]:
        """Stop sending; returns the acknowledged records."""
        self._is_sending = False
        await self._task
        outcomes = await asyncio.gather(*self._sent.values(), return_exceptions=True)
        return {
            value
            for value, outcome in zip(self._sent, outcomes, strict=True)
            if not isinstance(outcome, BaseException)
        }


Stored = dict[TopicPartition, list[ConsumedRecord]]


async def read_all(cluster: Cluster, partitions: Iterable[TopicPartition]) -> Stored:
    """The records in each partition's log."""
    consumer = consumer_on(cluster, "judge")
    stored: Stored = {each: [] for each in partitions}
    consumer.assign(stored)
    consumer.seek_to_beginning()
    while found := await consumer.poll(5):
        for record in found:
            stored[TopicPartition(record.topic, record.partition)].append(record)
    await consumer.close()
    return stored


def check_stored(stored: Stored, acknowledged: set[bytes]) -> None:
    """Each acknowledged record is there, none twice, each partition as it was sent."""
    values = [record.value for records in stored.values() for record in records]
    assert len(set(values)) == len(values), "a record was written twice"
    assert acknowledged <= set(values), "an acknowledged record is lost"
    for partition, records in stored.items():
        numbers = [int(each.value) for each in records]
        assert numbers == sorted(numbers), f"{partition} has another order than was sent"


class MortalHost(SimulatedHost):
    """One process's network. Once it is dead nothing that is left of it reaches anyone."""

    is_dead = False

    def die(self) -> None:
        self.is_dead = True
        self._network.crash(self.name)

    async def connect(
        self,
        make: Callable[[], P],
        host: str,
        port: int,
        patience: Patience = CLIENT_PATIENCE,
        tls: ClientTls | None = None,
    ) -> P:
        protocol = await super().connect(make, host, port, patience, tls)
        if self.is_dead:
            self._network.crash(self.name)
        return protocol
