"""Consumers: one that was given a topic's partitions, and a group whose members come and go."""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING, Any

from kdist.client.cluster import Address
from kdist.client.consumer.aio import Consumer, call_back
from kdist.client.consumer.batch import ConsumedRecord
from kdist.client.consumer.core import Core
from kdist.client.consumer.settings import read_settings
from kdist.errors import KdistError
from kdist.model import TopicPartition
from tests.simulator.assignments import GROUP, Places
from tests.simulator.cluster import PORT
from tests.simulator.record import Violation
from tests.simulator.shape import MORTAL, TOPIC

if TYPE_CHECKING:
    from tests.simulator.history import History

CHANGES = "group"  # who comes and who goes, by the name of its randomness
_POLL_S = 0.5
_MEMBERS_MAX = 5
_AFTER_ERROR_S = 0.1
_COMMIT_SHARE = 0.3  # of polls, by members that do it themselves
BUFFERED_S = 30.0  # for so long a consumer may have what it has fetched, and give it out
_HASTY: dict[str, Any] = {
    "session_timeout_ms": 6_000,
    "heartbeat_interval_ms": 1_000,
    "auto_offset_reset": "earliest",
    "auto_commit_interval_ms": 1_000,
    "metadata_max_age_ms": 3_000,
    "request_timeout_ms": 5_000,
}


class Readings:
    """All that consumers were given. Owner: the history."""

    def __init__(self, history: History) -> None:
        self._history = history
        self.seen: dict[tuple[TopicPartition, int], tuple[bytes, float]] = {}  # with the time

    def note(self, reader: str, key: TopicPartition, offset: int, value: bytes) -> None:
        """S16 and S17: what was read at an offset is committed, and stays there."""
        history = self._history
        history.trace.add(reader, key, offset, value)
        if key.topic != TOPIC:
            return  # it may be another topic of the name meanwhile
        committed = history.copies.of(key)
        is_sure = committed.is_sure(history.trace.now_s - BUFFERED_S)
        if offset >= committed.end and is_sure:
            sentence = f"S16: {reader} is given {offset} of {key}, committed is {committed.end}"
            history.cluster.loop.end_run(Violation(sentence, key))
        before, since_s = self.seen.setdefault((key, offset), (value, history.trace.now_s))
        if before == value:
            return
        if not self.may_change(key, offset, since_s):
            given = f"{reader} is given {value[:20]!r} at {offset} of {key}"
            sentence = f"S17: {given}, and {before[:20]!r} was there"
            history.cluster.loop.end_run(Violation(sentence, key))
        self.seen[key, offset] = value, history.trace.now_s

    def may_change(self, key: TopicPartition, offset: int, since_s: float) -> bool:
        """Whether what was read then, after a fetch at some time before, may be gone."""
        return self._history.may_be_lost(key, since_s - BUFFERED_S, offset)


class Reading:
    """A consumer in a process of its own: a member of the group, or one that reads the topic that
    stays from its beginning."""

    def __init__(self, history: History, name: str, settings: dict[str, Any] | None) -> None:
        """`settings` of a member; None for the other."""
        self.name = name
        self.found: set[bytes] = set()
        self.ends: dict[TopicPartition, int] = {}
        self._history = history
        self._is_member = settings is not None
        self._places = Places(history.assignments, name, is_member=self._is_member)
        self._commits = settings is not None and not settings["enable_auto_commit"]
        self._is_polling = True
        self._rng = history.cluster.stream(name)
        self.process = history.cluster.process(name)
        self._consumer: Consumer = self.process.context.copy().run(self._open, settings)
        self._task = history.cluster.loop.create_task(self.process.run(self._work()))

    def _open(self, settings: dict[str, Any] | None) -> Consumer:
        cluster = self._history.cluster
        brokers = [Address(f"m{each}", PORT) for each in self._history.shape.broker_ids]
        waits = {"fetch_min_bytes": self._rng.choice((1, 500)), "fetch_max_wait_ms": 500}
        where = {"client_rack": self._history.nearest.draw_rack()}
        limits = self._history.limits.draw_of_consumer()
        found = read_settings(_HASTY | waits | where | limits | (settings or {}))
        rng, network = cluster.stream(self.name), cluster.network.host(self.name)
        consumer = Consumer.over(Core(network, brokers, found, rng, (None, None), call_back))
        if self._is_member:
            consumer.subscribe([TOPIC, *MORTAL], self._places)
        else:
            consumer.assign(self._wanted())
            consumer.seek_to_beginning()
        return consumer

    async def _work(self) -> None:
        consumer = self._consumer
        while self._is_polling:
            try:
                if not self._is_member:
                    self._take_new_partitions()
                records = await self._poll()
                for record in records:
                    self._take(TopicPartition(record.topic, record.partition), record)
                if records and self._commits and self._rng.random() < _COMMIT_SHARE:
                    await consumer.commit(timeout_s=5)
            except KdistError as error:
                self._history.trace.note(f"{self.name}: {error}")
                await asyncio.sleep(_AFTER_ERROR_S)

    def _take(self, key: TopicPartition, record: ConsumedRecord) -> None:
        value = record.value or b""
        self.ends[key] = max(self.ends.get(key, 0), record.offset + 1)
        self.found.add(value)
        self._places.take(key, record.offset)
        self._history.readings.note(self.name, key, record.offset, value)

    def _wanted(self) -> list[TopicPartition]:
        """What it reads that is no member."""
        return self._history.stable_partitions()

    async def _poll(self) -> list[ConsumedRecord]:
        """One record at a time, or many, or whole batches; or dawdle."""
        match self._rng.randrange(8):
            case 0:
                await asyncio.sleep(self._rng.uniform(0, 1))
                return []
            case 1 | 2:
                batches = await self._consumer.poll_batches(_POLL_S, self._rng.choice((1, 2, 200)))
                return [record for batch in batches for record in batch]
            case _:
                return await self._consumer.poll(_POLL_S, self._rng.choice((1, 500)))

    def _take_new_partitions(self) -> None:
        """The topic may have grown."""
        wanted = self._wanted()
        new = [each for each in wanted if each not in self._consumer.assignment()]
        if new:
            self._consumer.assign(wanted)
            self._consumer.seek_to_beginning(*new)

    async def end(self) -> None:
        """Commit, leave the group, close."""
        self._is_polling = False
        await self._task
        try:
            await self.process.run(self._consumer.close())
        except KdistError as error:  # its offsets cannot be committed now
            self._history.trace.note(f"{self.name} closes: {error}")

    def die(self) -> None:
        """As by kill -9."""
        self.process.kill()
        self._history.cluster.network.crash(self.name)


class Group:
    """The members, most of the time as many as the shape says. Owner: the history."""

    def __init__(self, history: History) -> None:
        self._history = history
        self._rng: random.Random = history.cluster.stream(CHANGES)
        self.members: list[Reading] = []
        self.dead: list[Reading] = []
        self._number = 0
        self._is_over = False
        self._task = history.cluster.loop.create_task(self._work())

    async def _work(self) -> None:
        rng, shape = self._rng, self._history.shape
        while not self._is_over:
            changes = CHANGES not in self._history.script.idle
            if len(self.members) < shape.members or (changes and rng.random() < 0.2):
                self._join()
            elif changes and rng.random() < 0.3:
                member = self.members.pop(rng.randrange(len(self.members)))
                self.dead.append(member)
                if rng.random() < 0.5:
                    member.die()
                    self._history.trace.note(f"{member.name} dies")
                    self._history.trace.count("member died")
                else:
                    await member.end()
            await asyncio.sleep(rng.uniform(0, 8))

    def join(self) -> None:
        """Another member comes, unless nobody does any more."""
        if not self._is_over and len(self.members) < _MEMBERS_MAX:
            self._join()

    def _join(self) -> None:
        self._number += 1
        settings = {
            "group_id": GROUP,
            "partition_assignment_strategy": self._history.shape.strategy,
            "enable_auto_commit": self._rng.random() < 0.5,
        }
        name = f"r{self._number}"
        self._history.client_hosts.append(name)
        self.members.append(Reading(self._history, name, settings))

    async def settle(self) -> None:
        """Nobody comes or goes any more, and there is one member at least."""
        self._is_over = True
        await self._task
        if not self.members:
            self._join()

    @property
    def found(self) -> set[bytes]:
        """All that any of them has been given."""
        return set().union(*(each.found for each in (*self.members, *self.dead)))

    def ends(self) -> dict[TopicPartition, int]:
        """How far any of them has read."""
        ends: dict[TopicPartition, int] = {}
        for member in (*self.members, *self.dead):
            for key, end in member.ends.items():
                ends[key] = max(end, ends.get(key, 0))
        return ends

    async def end(self) -> None:
        """All leave."""
        for member in self.members:
            await member.end()
