"""Random histories of a cluster: brokers and readers die and come back, hosts are cut off.

A seed determines a `History`. Three brokers lead a topic's partitions, one replica each. A producer
sends all the time, and a group reads. In the end every acknowledged record must be in the log once,
in the order in which it was sent, and have been read by the group at least once.
"""

from __future__ import annotations

import asyncio
from collections import Counter

from history_world import Brokers, Sending, check_stored, cut_off, read_all

from kdist.client.cluster import NoBroker
from kdist.errors import ApiError, KdistError
from kdist.model import TopicPartition
from tests.simulator.cluster import Cluster, create
from tests.unit.client.client_group_world import HASTY, TOPIC, consumer_on

PARTITIONS = [TopicPartition(TOPIC, number) for number in range(6)]
STEPS = 40
READERS_MAX = 6
READ_S_MAX = 90  # for the group to read everything, once all faults are over


class History:
    """Owner: the loop. With `is_power_lost` brokers lose what was not synced, most of the time."""

    def __init__(self, seed: int, strategy: str, *, is_power_lost: bool) -> None:
        self.cluster = Cluster(seed)
        self.rng = self.cluster.rng
        self.found: Counter[bytes] = Counter()
        self._brokers = Brokers(self.cluster, is_power_lost=is_power_lost)
        self._strategy = strategy
        self._readers: dict[str, Reader] = {}
        self._number = 0

    def play(self) -> None:
        """Run the history, then check the outcome."""
        self.cluster.run(self._play())

    async def _play(self) -> None:
        await self._brokers.start()
        client = await self.cluster.client()
        await client.negotiate()
        await create(client, TOPIC, len(PARTITIONS), **self._brokers.topic_settings)
        sending = Sending(self._brokers, PARTITIONS)
        for step in range(STEPS):
            await asyncio.sleep(self.rng.uniform(0, 3))
            await self._happen(step)
            await self._brokers.bring_back(step)
        await self._brokers.bring_back()
        await self._judge(await sending.end())
        for reader in list(self._readers.values()):
            await self._leave(reader)

    # What goes wrong

    async def _happen(self, step: int) -> None:
        readers = list(self._readers.values())
        match self.rng.randrange(6):
            case 0 if len(readers) < READERS_MAX:
                self._join()
            case 1 if len(readers) > 1:
                await self._leave(self.rng.choice(readers))
            case 2 if len(readers) > 1:
                await self._die(self.rng.choice(readers))
            case 3 if self._brokers.are_all_up:
                self._brokers.kill_one(step)
            case 4:
                hosts = [*self._brokers.hosts, Sending.host, *self._readers]
                await cut_off(self.cluster, hosts)
            case _ if not readers:
                self._join()

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

    async def _judge(self, acknowledged: set[bytes]) -> None:
        end_s = self.cluster.loop.time() + READ_S_MAX
        while not acknowledged <= self.found.keys():
            assert self.cluster.loop.time() < end_s, "the group was not given all in time"
            await asyncio.sleep(0.1)
        check_stored(await read_all(self.cluster, PARTITIONS), acknowledged)


class Reader:
    """A member of the group, which polls at random."""

    def __init__(self, history: History, name: str, strategy: str) -> None:
        self.name = name
        self.is_polling = True
        settings = HASTY | {"partition_assignment_strategy": strategy}
        self.consumer = consumer_on(history.cluster, name, **settings)
        self.consumer.subscribe([TOPIC])
        self.task = history.cluster.loop.create_task(self._work(history))

    async def _work(self, history: History) -> None:
        rng, found = history.rng, history.found
        while self.is_polling:
            try:
                match rng.randrange(5):
                    case 0:
                        batches_max = rng.choice([1, 2, 200])
                        wait_s = rng.uniform(0, 0.5)
                        for batch in await self.consumer.poll_batches(wait_s, batches_max):
                            found.update(record.value for record in batch)
                    case 1:
                        await asyncio.sleep(rng.uniform(0, 1))
                    case _:
                        records = await self.consumer.poll(rng.uniform(0, 0.5))
                        found.update(record.value for record in records)
            except (NoBroker, ApiError):
                continue  # its broker is down for now
