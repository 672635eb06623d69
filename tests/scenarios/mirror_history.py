"""Random histories of a mirror between two clusters: everything that can die or be cut off does.

A seed determines a `MirrorHistory`. A producer sends to topics of the source; partitions and topics
are added meanwhile. Up to three mirrors share one flow; they join, leave, are killed, and are cut
off from one cluster for longer than their sessions, so that two believe that they own a partition.
In the end each target partition must hold exactly the source's records, in the same order. It is
beside `tests/simulator` because that has one cluster, and here two are compared.
"""

from __future__ import annotations

import asyncio
import json

from history_world import Brokers, MortalHost, Sending, Stored, check_stored, cut_off, read_all

from kdist.client.admin.topics import create_partitions, create_topic
from kdist.client.cluster import Cluster as Client
from kdist.client.cluster import NoBroker, parse_addresses
from kdist.config.mirror import load_mirror
from kdist.errors import ApiError
from kdist.mirror.copying import count_partitions
from kdist.mirror.flow import MirrorContext
from kdist.mirror.mirror import Mirror
from kdist.mirror.origins import TOPIC as ORIGINS
from kdist.model import TopicPartition
from kdist.network.client import ClientSettings
from tests.simulator.cluster import Cluster

STEPS = 40
MIRRORS_MAX = 3
PARTITIONS_MAX = 12
SESSION_MS = 6_000
MIRROR_S_MAX = 120  # for everything to be mirrored, once all faults are over


class MirrorHistory:
    """Owner: the loop. With `is_power_lost` brokers lose what was not synced, most of the time."""

    def __init__(self, seed: int, *, is_power_lost: bool) -> None:
        self.cluster = Cluster(seed)
        self.rng = self.cluster.rng
        self.source = Brokers(self.cluster, is_power_lost=is_power_lost)
        beside = Cluster(beside=self.cluster)
        self.target = Brokers(beside, (4, 5, 6), is_power_lost=is_power_lost)
        self._partitions: list[TopicPartition] = []  # of the source
        self._mirrors: dict[str, MirrorProcess] = {}
        self._number = 0

    def play(self) -> None:
        """Run the history, then check the outcome."""
        self.cluster.run(self._play())

    async def _play(self) -> None:
        await self.source.start()
        await self.target.start()
        self._source, self._target = self._client(self.source), self._client(self.target)
        await self._create("t0", 4)
        sending = Sending(self.source, self._partitions)
        for step in range(STEPS):
            await asyncio.sleep(self.rng.uniform(0, 3))
            await self._happen(step)
            await self.source.bring_back(step)
            await self.target.bring_back(step)
        await self.source.bring_back()
        await self.target.bring_back()
        await self._judge(await sending.end())

    def _client(self, brokers: Brokers) -> Client:
        settings = ClientSettings("operator", request_timeout_ms=2_000, connect_timeout_ms=2_000)
        network = self.cluster.network.host("operator")
        return Client(network, parse_addresses(brokers.addresses), settings)

    # What happens

    async def _happen(self, step: int) -> None:
        mirrors = list(self._mirrors.values())
        match self.rng.randrange(9):
            case 0 if len(mirrors) < MIRRORS_MAX:
                self._join()
            case 1 if mirrors:
                await self._leave(self.rng.choice(mirrors))
            case 2 if mirrors:
                self._kill(self.rng.choice(mirrors))
            case 3 if self.source.are_all_up:
                self.source.kill_one(step)
            case 4 if self.target.are_all_up:
                self.target.kill_one(step)
            case 5:
                await self._cut_off_mirrors()
            case 6:
                await self._cut_off()
            case 7 if len(self._partitions) < PARTITIONS_MAX:
                await self._grow(step)
            case _ if not mirrors:
                self._join()

    def _join(self) -> None:
        self._number += 1
        name = f"mirror{self._number}"
        self._mirrors[name] = MirrorProcess(self, name)

    async def _leave(self, process: MirrorProcess) -> None:
        del self._mirrors[process.name]
        process.stop.set()
        await process.task

    def _kill(self, process: MirrorProcess) -> None:
        del self._mirrors[process.name]
        process.host.die()
        assert process.task.cancel(), "it had ended before"

    async def _cut_off(self) -> None:
        await cut_off(self.cluster, self._hosts)

    async def _cut_off_mirrors(self) -> None:
        """Cut mirrors off from one cluster or both, long enough to lose their partitions."""
        some = [each for each in self._mirrors if self.rng.random() < 0.5]
        some += self.rng.choice([[], self.source.hosts, self.target.hosts])
        await cut_off(self.cluster, self._hosts, some, s_max=2 * SESSION_MS / 1000)

    @property
    def _hosts(self) -> list[str]:
        return [*self.source.hosts, *self.target.hosts, Sending.host, "operator", *self._mirrors]

    async def _grow(self, step: int) -> None:
        """Add a topic or partitions, unless the source cannot do so now."""
        try:
            if self.rng.random() < 0.5:
                await self._create(f"t{step}", self.rng.randrange(1, 4))
            else:
                topic = self.rng.choice(self._partitions).topic
                count = (await count_partitions(self._source))[topic] + 1
                await create_partitions(self._source, {topic: count})
                self._partitions.append(TopicPartition(topic, count - 1))
        except (ApiError, NoBroker):
            pass

    async def _create(self, topic: str, count: int) -> None:
        settings = {k.replace("_", "."): v for k, v in self.source.topic_settings.items()}
        await create_topic(self._source, topic, count, settings=settings)
        self._partitions += [TopicPartition(topic, number) for number in range(count)]

    # What must hold

    async def _judge(self, acknowledged: set[bytes]) -> None:
        counts = await count_partitions(self._source)
        partitions = [TopicPartition(each, n) for each in counts for n in range(counts[each])]
        stored = await read_all(self.cluster, partitions)
        check_stored(stored, acknowledged)
        for _ in range(2):  # another mirror finds nothing to do
            if not self._mirrors:
                self._join()
            end_s = self.cluster.loop.time() + MIRROR_S_MAX
            while (fault := await self._fault(counts, stored)) is not None:
                assert self.cluster.loop.time() < end_s, f"{fault}; {self._health()}"
                await asyncio.sleep(0.5)
            for each in list(self._mirrors.values()):
                await self._leave(each)
        assert await self._fault(counts, stored) is None

    async def _fault(self, counts: dict[str, int], stored: Stored) -> str | None:
        """How the target differs from the source."""
        there = await count_partitions(self._target)
        there.pop(ORIGINS, None)
        if there != counts:
            return f"the source has {counts}, the target {there}"
        copies = await read_all(self.target.cluster, stored)
        for partition, records in stored.items():
            wanted = [each.value for each in records]
            found = [each.value for each in copies[partition]]
            assert wanted[: len(found)] == found, f"{partition}: {found} is no part of {wanted}"
            if wanted != found:
                return f"{partition} of the target lacks {len(wanted) - len(found)} records"
        return None

    def _health(self) -> dict[str, object]:
        pages = {name: each.mirror._health_page() for name, each in self._mirrors.items()}
        return {name: json.loads(page.body) for name, page in pages.items()}


class MirrorProcess:
    """One of the mirrors that share the flow."""

    def __init__(self, history: MirrorHistory, name: str) -> None:
        self.name = name
        self.host = MortalHost(history.cluster.network, name)
        self.stop = asyncio.Event()
        settings = {
            "flow.f.source": history.source.addresses,
            "flow.f.target": history.target.addresses,
            "mirror.refresh.interval.ms": "1000",
            "mirror.commit.interval.ms": str(history.rng.choice([100, 1_000, 10_000])),
            "mirror.session.timeout.ms": str(SESSION_MS),
        }
        text = "".join(f"{key}={value}\n" for key, value in settings.items())
        world = MirrorContext(self.host, history.cluster.clock, history.rng)
        self.mirror = Mirror(load_mirror(text, "file"), world)
        run = self.mirror.run(self.stop, lambda: None)
        self.task = history.cluster.loop.create_task(run)
