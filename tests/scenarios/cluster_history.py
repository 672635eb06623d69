"""Random histories of a cluster: brokers and readers die and come back, hosts are cut off.

A `History` is a seed. Three brokers without a second replica lead a topic's partitions. A producer
sends all the time, and a group reads; in the end every acknowledged record must be in the log once,
in the order in which it was sent, and have been given to the group at least once.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter

from kdist.client.cluster import NoBroker
from kdist.client.consumer.batch import ConsumedRecord
from kdist.client.producer.asynchronous import AsyncProducer
from kdist.client.producer.results import Sent
from kdist.client.producer.world import World
from kdist.errors import ApiError, KdistError
from kdist.model import TopicPartition
from tests.unit.broker.broker_cluster import PORT, Cluster, create
from tests.unit.client.client_group_world import HASTY, TOPIC, consumer_on

BROKERS = (1, 2, 3)
PARTITIONS = [TopicPartition(TOPIC, number) for number in range(6)]
STEPS = 40
READERS_MAX = 6
READ_S_MAX = 90  # until the group has all, once all is well


class History:
    """Owner: the loop. With `is_power_lost` brokers lose what was not synced, most of the time."""

    def __init__(self, seed: int, strategy: str, *, is_power_lost: bool) -> None:
        self.cluster = Cluster(seed)
        self.chance = self.cluster.chance
        self.found: Counter[bytes] = Counter()
        self._strategy = strategy
        self._is_power_lost = is_power_lost
        self._readers: dict[str, Reader] = {}
        self._number = 0
        self._is_sending = True
        self._sent: dict[bytes, Sent] = {}
        self._back_at: dict[int, int] = {}  # brokers that are dead, and in which step they return

    def play(self) -> None:
        """Carry it out, and judge."""
        self.cluster.run(self._play())

    async def _play(self) -> None:
        for each in BROKERS:
            await self.cluster.started(each)
        client = await self.cluster.client()
        await client.negotiate()
        is_safe = "true" if self._is_power_lost else "false"
        await create(client, TOPIC, len(PARTITIONS), flush_before_expose=is_safe)
        async with self._producer() as producer:
            sending = self.cluster.loop.create_task(self._send(producer))
            for step in range(STEPS):
                await asyncio.sleep(self.chance.uniform(0, 3))
                await self._happen(step)
                await self._bring_back(step)
            await self._bring_back(2 * STEPS)
            self._is_sending = False
            await sending
            await producer.flush()
        await self._judge(await self._acknowledged())
        for reader in list(self._readers.values()):
            await self._leave(reader)

    def _producer(self) -> AsyncProducer:
        host, chance = self.cluster.network.host("producer"), random.Random(self.chance.random())
        brokers = ",".join(f"m{each}:{PORT}" for each in BROKERS)
        world = World(host, self.cluster.clock, chance)
        return AsyncProducer(
            world=world,
            bootstrap_servers=brokers,
            linger_ms=self.chance.choice([0, 5, 50]),
            request_timeout_ms=1_500,  # less than hosts are cut off for: it sends again
        )

    async def _send(self, producer: AsyncProducer) -> None:
        while self._is_sending:
            value = b"%d" % len(self._sent)
            partition = self.chance.choice(PARTITIONS).partition
            self._sent[value] = await producer.send(TOPIC, value, partition=partition)
            await asyncio.sleep(self.chance.uniform(0, 0.2))

    # What goes wrong

    async def _happen(self, step: int) -> None:
        readers = list(self._readers.values())
        match self.chance.randrange(6):
            case 0 if len(readers) < READERS_MAX:
                self._join()
            case 1 if len(readers) > 1:
                await self._leave(self.chance.choice(readers))
            case 2 if len(readers) > 1:
                await self._die(self.chance.choice(readers))
            case 3 if not self._back_at:
                self._kill(self.chance.choice(BROKERS), step + self.chance.randrange(1, 4))
            case 4:
                await self._cut_off()
            case _ if not readers:
                self._join()

    def _kill(self, broker: int, back_at: int) -> None:
        is_power_lost = self._is_power_lost and self.chance.random() < 0.7
        self.cluster.kill(self.cluster.brokers[broker], is_power_lost=is_power_lost)
        self._back_at[broker] = back_at

    async def _bring_back(self, step: int) -> None:
        for broker, back_at in list(self._back_at.items()):
            if back_at <= step:
                del self._back_at[broker]
                await self.cluster.started(broker)

    async def _cut_off(self) -> None:
        hosts = [*(f"m{each}" for each in BROKERS), "producer", *self._readers]
        some = self.chance.sample(hosts, self.chance.randrange(1, 3))
        self.cluster.network.partition(some, [each for each in hosts if each not in some])
        await asyncio.sleep(self.chance.uniform(0, 4))
        self.cluster.network.heal()

    def _join(self) -> None:
        self._number += 1
        name = f"r{self._number}"
        self._readers[name] = Reader(self, name, self._strategy)

    async def _leave(self, reader: Reader) -> None:
        del self._readers[reader.name]
        reader.is_polling = False
        await reader.task
        await reader.consumer.close()

    async def _die(self, reader: Reader) -> None:
        del self._readers[reader.name]
        reader.task.cancel()
        self.cluster.network.crash(reader.name)
        try:
            await reader.consumer.close(timeout_s=0.01)
        except KdistError:
            pass  # nobody is there to hear it

    # What must hold

    async def _acknowledged(self) -> set[bytes]:
        outcomes = await asyncio.gather(*self._sent.values(), return_exceptions=True)
        return {
            value
            for value, outcome in zip(self._sent, outcomes, strict=True)
            if not isinstance(outcome, BaseException)
        }

    async def _judge(self, acknowledged: set[bytes]) -> None:
        end_s = self.cluster.loop.time() + READ_S_MAX
        while not acknowledged <= self.found.keys():
            assert self.cluster.loop.time() < end_s, "the group was not given all in time"
            await asyncio.sleep(0.1)
        stored = await self._stored()
        values = [record.value for record in stored]
        assert len(set(values)) == len(values), "a record was written twice"
        assert acknowledged <= set(values)
        for partition in PARTITIONS:
            numbers = [int(each.value) for each in stored if each.partition == partition.partition]
            assert numbers == sorted(numbers), f"{partition} has another order than was sent"

    async def _stored(self) -> list[ConsumedRecord]:
        consumer = consumer_on(self.cluster, "judge")
        consumer.assign(PARTITIONS)
        consumer.seek_to_beginning()
        stored: list[ConsumedRecord] = []
        while found := await consumer.poll(5):
            stored += found
        await consumer.close()
        return stored


class Reader:
    """A member of the group, which polls as it likes."""

    def __init__(self, history: History, name: str, strategy: str) -> None:
        self.name = name
        self.is_polling = True
        settings = HASTY | {"partition_assignment_strategy": strategy}
        self.consumer = consumer_on(history.cluster, name, **settings)
        self.consumer.subscribe([TOPIC])
        self.task = history.cluster.loop.create_task(self._work(history))

    async def _work(self, history: History) -> None:
        chance, found = history.chance, history.found
        while self.is_polling:
            try:
                match chance.randrange(5):
                    case 0:
                        batches_max = chance.choice([1, 2, 200])
                        wait_s = chance.uniform(0, 0.5)
                        for batch in await self.consumer.poll_batches(wait_s, batches_max):
                            found.update(record.value for record in batch)
                    case 1:
                        await asyncio.sleep(chance.uniform(0, 1))
                    case _:
                        records = await self.consumer.poll(chance.uniform(0, 0.5))
                        found.update(record.value for record in records)
            except (NoBroker, ApiError):
                continue  # its broker is gone, for now
