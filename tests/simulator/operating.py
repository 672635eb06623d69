"""An operator: topics are created, grown, deleted, created again; settings change, records go.

What an operation promised is compared with ZooKeeper as soon as it has returned, unless somebody
else has had the topic deleted meanwhile: its answer may be late by many seconds.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from kdist.client.admin.clients import AsyncAdmin
from kdist.client.admin.records import HIGH_WATERMARK
from kdist.errors import KdistError
from kdist.model import TopicPartition
from kdist.zk import znodes
from tests.simulator.cluster import PORT
from tests.simulator.record import require
from tests.simulator.shape import MORTAL, TALLIES, TOPIC

if TYPE_CHECKING:
    from tests.simulator.history import History

HOST = "operator"
_PARTITIONS_MAX = 5
_MOMENT_S = 0.02  # in which another controller may be elected
_CHANGES = {
    "compression.type": ("producer", "lz4", "gzip"),
    "message.timestamp.type": ("CreateTime", "LogAppendTime"),
    "segment.bytes": ("10000", "100000"),
    "retention.ms": ("3600000", "7200000"),
    "retention.bytes": ("-1", "1000", "20000"),
    "min.insync.replicas": ("1", "2"),
}


class Operating:
    """Owner: the history."""

    def __init__(self, history: History) -> None:
        self._history = history
        self._trace = history.trace
        self._known = history.known
        self._rng = history.cluster.stream(HOST)
        self._pause_s = self._rng.choice((0.5, 2, 5))
        self._is_over = False
        brokers = [f"m{each}:{PORT}" for each in history.shape.broker_ids]
        self.admin = AsyncAdmin(
            brokers,
            request_timeout_ms=8_000,
            default_api_timeout_ms=15_000,
            network=history.cluster.network.host(HOST),
        )
        self.process = history.cluster.process(HOST)
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Create the first topics."""
        await self.process.run(self._start())

    async def _start(self) -> None:
        await self.admin.start()
        for topic, count in self._history.shape.partitions.items():
            await self._create(topic, count)
        if count := self._history.shape.tallies:
            tallies = self._history.shape.topics[TALLIES]
            factor = tallies.replication_factor
            await self.admin.create_topic(TALLIES, count, factor, tallies.settings)

    def begin(self) -> None:
        """Do something now and then, until `end`."""
        self._task = self._history.cluster.loop.create_task(self.process.run(self._work()))

    async def end(self) -> None:
        """Finish what is under way, and open connections that no fault is on any more."""
        self._is_over = True
        assert self._task is not None
        await self._task
        await self.admin.close()
        await self.process.run(self._open())

    async def _open(self) -> None:
        await self.admin.start()

    async def _work(self) -> None:
        while not self._is_over:
            await asyncio.sleep(self._rng.uniform(0, 2 * self._pause_s))
            self._history.faults.maybe_depose()
            await asyncio.sleep(self._rng.uniform(0, _MOMENT_S))
            if HOST in self._history.script.idle:
                continue
            try:
                await self._do_something()
            except KdistError as error:
                self._trace.note(f"operator: {error}")

    async def _do_something(self) -> None:
        rng, counts = self._rng, self._known.counts()
        topic = rng.choice((TOPIC, *MORTAL))
        count = counts.get(topic)
        match rng.randrange(6):
            case 0 | 1 | 2 if count is None:
                await self._create(topic, rng.randint(1, 3))
            case 0 | 1 if topic in MORTAL and count is not None:
                await self._delete(topic)
            case 2 | 3 if count is not None and count < _PARTITIONS_MAX:
                await self._grow(topic, count + 1)
            case 4 if count is not None:
                await self._change(topic)
            case 5 if count is not None:
                await self._delete_records(TopicPartition(topic, rng.randrange(count)))

    async def _create(self, topic: str, count: int) -> None:
        self._trace.note(f"operator creates {topic} of {count}")
        shape = self._history.shape.topics[topic]
        before = self._known.deletions[topic]
        await self.admin.create_topic(topic, count, shape.replication_factor, shape.settings)
        self._require_count(topic, count, before)

    def _require_count(self, topic: str, count: int, deletions: int) -> None:
        """It has so many partitions, if no more deletions of it were asked for."""
        found = self._known.counts().get(topic)
        is_kept = self._known.deletions[topic] == deletions
        require(found == count or not is_kept, f"S9: {topic} is to have {count}, and has {found}")

    async def _delete(self, topic: str) -> None:
        self._trace.note(f"operator deletes {topic}")
        await self.admin.delete_topics([topic])
        require(topic not in self._known.counts(), f"S9: {topic} was deleted, and is there")

    async def _grow(self, topic: str, count: int) -> None:
        self._trace.note(f"operator grows {topic} to {count}")
        before = self._known.deletions[topic]
        await self.admin.create_partitions({topic: count})
        self._require_count(topic, count, before)
        self._trace.count("topic grown")

    async def _change(self, topic: str) -> None:
        name = self._rng.choice(sorted(_CHANGES))
        value = self._rng.choice(_CHANGES[name])
        self._trace.note(f"operator sets {name}={value} of {topic}")
        before = self._known.deletions[topic]
        await self.admin.incremental_alter_topic_configs(topic, {name: value})
        if self._known.deletions[topic] == before:
            self.require_setting(topic, name, value)
        self._trace.count("settings changed")

    def require_setting(self, topic: str, name: str, value: str) -> None:
        """ZooKeeper has it."""
        path, tree = znodes.TOPIC_SETTINGS.path(topic), self._history.cluster.ensemble.tree
        found = znodes.TOPIC_SETTINGS.decode(path, tree.get(path).data).settings.get(name)
        require(found == value, f"S9: {name} of {topic} was set to {value}, and is {found}")

    async def _delete_records(self, key: TopicPartition) -> None:
        before = HIGH_WATERMARK
        if self._rng.random() < 0.7:
            ends = await self.admin.list_offsets([key])
            before = self._rng.randint(0, max(0, ends[key]))
        self._trace.note(f"operator deletes {key} before {before}")
        starts = await self.admin.delete_records({key: before})
        require(starts[key] >= before, f"S6: {key} was deleted before {before}: {starts}", key)
        self._history.trimmed(key, starts[key])
        self._trace.count("records deleted")
