"""In some seeds: a compacted topic, who counts with few keys in it, and who reads it.

Its brokers clean often, and commits, too, where their segments are small. All draws are of streams
of their own, so that nothing of the other seeds is shifted. `compacted.py` has what must hold.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING

from kdist.client.consumer.batch import ConsumedRecord
from kdist.client.producer.asynchronous import AsyncProducer
from kdist.client.producer.core import ProducerContext
from kdist.client.producer.results import Sent
from kdist.errors import KdistError
from kdist.model import OFFSETS_TOPIC, TopicPartition
from kdist.replication.partition import Partition
from kdist.storage.log import Log
from tests.simulator.cluster import PORT
from tests.simulator.compacted import Pair, Table
from tests.simulator.faults import EMPTY_DISK
from tests.simulator.reading import BUFFERED_S, Reading
from tests.simulator.record import Violation, require
from tests.simulator.shape import TALLIES, Shape, draw_topic

if TYPE_CHECKING:
    from tests.simulator.history import History

_SHARE = 0.3  # of seeds with such a topic
_TOMBSTONE_SHARE = 0.25
_LEFT_BEHIND_SHARE = 0.4  # of these seeds, in which a follower stays away too long
READER = "tally reader"
_COMPACTED = {"cleanup.policy": "compact"}


def draw_compaction(rng: random.Random, shape: Shape) -> Shape:
    """The shape with a compacted topic in it, or as it was."""
    if rng.random() >= _SHARE:
        return shape
    delete_retention_ms = rng.choice((1_500, 5_000, 20_000, 86_400_000))
    settings = {
        "log.cleaner.backoff.ms": str(rng.choice((200, 1_000))),
        "log.cleaner.min.cleanable.ratio": rng.choice(("0.0", "0.3", "0.5")),
        "log.cleaner.delete.retention.ms": str(delete_retention_ms),
        "log.cleaner.dedupe.buffer.size": "1048576",
    }
    own = _COMPACTED | {"segment.bytes": str(rng.choice((400, 600, 1_500)))}
    if rng.random() < 0.3:
        own["cleanup.policy"] = "compact,delete"
        own["retention.ms"] = str(rng.choice((8_000, 25_000)))
    if rng.random() < 0.2:
        own["min.compaction.lag.ms"] = "2000"
    least = 2 if EMPTY_DISK in shape.kinds else 1
    topic = draw_topic(rng, len({*shape.hosts.values()}), least)
    topics = shape.topics | {TALLIES: topic._replace(own=own)}
    if rng.random() < 0.5:
        settings["offsets.topic.segment.bytes"] = "8000"
        topics[OFFSETS_TOPIC] = topics[OFFSETS_TOPIC]._replace(own=_COMPACTED)
    leaves_behind = rng.random() < _LEFT_BEHIND_SHARE
    if leaves_behind:
        delete_retention_ms = 1_500
        settings |= {
            "log.cleaner.backoff.ms": "200",
            "log.cleaner.min.cleanable.ratio": "0.0",
            "log.cleaner.delete.retention.ms": str(delete_retention_ms),
        }
        factor = min(3, len({*shape.hosts.values()}))
        topic = topics[TALLIES]._replace(replication_factor=factor, min_insync=least)
        topics[TALLIES] = topic._replace(own=_COMPACTED | {"segment.bytes": "400"})
    # A clock that goes wrong by two minutes ends the time for which tombstones stay.
    retention_s = 0.0 if "wrong clock" in shape.kinds else delete_retention_ms / 1000
    return shape._replace(
        topics={
            name: each._replace(delete_retention_s=retention_s) for name, each in topics.items()
        },
        settings=shape.settings | settings,
        tallies=rng.randint(1, 2),
        leaves_behind=leaves_behind,
    )


class Told:
    """One record that was sent. `offset` is where it was said to be, -1 if nobody said."""

    def __init__(self, key: TopicPartition, pair: Pair, sent_s: float) -> None:
        self.key = key
        self.pair = pair
        self.sent_s = sent_s
        self.offset = -1


class Tallying:
    """A producer that sends in bursts: meanwhile others overwrite all that it has sent."""

    def __init__(self, history: History, number: int, rng: random.Random) -> None:
        self.name = f"t{number}"
        self.is_idempotent = rng.random() < 0.8
        self.told: list[Told] = []
        self._history = history
        self._rng = rng
        self._keys = rng.choice((2, 5, 12))
        self._padding = rng.choice((0, 0, 100))
        self._is_sending = self.name not in history.script.idle
        self._producer = AsyncProducer(
            context=ProducerContext(
                history.cluster.network.host(self.name), history.cluster.clock, rng
            ),
            bootstrap_servers=",".join(f"m{each}:{PORT}" for each in history.shape.broker_ids),
            linger_ms=rng.choice((0, 50)),
            acks="all",
            enable_idempotence=self.is_idempotent,
            compression_type=rng.choice(("none", "none", "lz4")),
            max_block_ms=3_000,
            request_timeout_ms=rng.choice((1_500, 6_000)),
            delivery_timeout_ms=25_000,
        )
        process = history.cluster.process(self.name)
        self._task = history.cluster.loop.create_task(process.run(self._work()))

    async def _work(self) -> None:
        rng = self._rng
        async with self._producer as producer:
            while self._is_sending:
                for _ in range(rng.randint(1, 10)):
                    await self._send(producer)
                    await asyncio.sleep(rng.uniform(0, 0.2))
                await asyncio.sleep(rng.choice((0.3, 1, 6)))
            await producer.flush()

    async def _send(self, producer: AsyncProducer) -> None:
        rng, trace = self._rng, self._history.trace
        key = b"%d" % rng.randrange(self._keys)
        value = b"%s:%d:" % (self.name.encode(), len(self.told)) + b"." * self._padding
        pair = key, None if rng.random() < _TOMBSTONE_SHARE else value
        place = TopicPartition(TALLIES, rng.randrange(self._history.shape.tallies))
        told = Told(place, pair, trace.now_s)
        self.told.append(told)
        try:
            sent = await producer.send(TALLIES, pair[1], key=key, partition=place.partition)
        except KdistError as error:
            trace.note(f"{self.name} cannot send to {place}: {error}")
        else:
            sent.add_done_callback(partial(self._done, told))

    def _done(self, told: Told, sent: Sent) -> None:
        trace, error = self._history.trace, sent.exception()
        if error is None:
            told.offset = sent.result().offset
            trace.add(self.name, told.key, told.offset, trace.now_s)
        else:
            trace.note(f"{self.name} does not know of {told.pair}: {str(error)[:80]}")

    async def end(self) -> None:
        """Send no more, and wait until all that was sent is acknowledged or has failed."""
        self._is_sending = False
        await self._task

    def check(self, tables: dict[TopicPartition, Table]) -> None:
        """S1 and S10: what was acknowledged is where it was said to be, once and in order."""
        for told in self.told:
            may_be_lost = self._history.may_be_lost(told.key, told.sent_s, told.offset)
            if told.key in tables and told.offset >= 0 and not may_be_lost:
                found = tables[told.key].pairs.get(told.offset)
                sentence = f"S1: {told.pair} of {told.key} was acknowledged at {told.offset}, where"
                require(found == told.pair, f"{sentence} {found} is", told.key)
        numbers = {each.pair[1]: i for i, each in enumerate(self.told)}
        for key, table in tables.items() if self.is_idempotent else ():
            mine = [
                numbers[value]
                for _, value in table.pairs.values()
                if value is not None and value in numbers
            ]
            is_in_order = all(a < b for a, b in pairwise(mine))
            require(is_in_order, f"S10: {self.name} has {mine} in {key}", key)


class TallyReader(Reading):
    """Reads the topic from its beginning: what it is given are records of the table, in order."""

    def __init__(self, history: History, tallies: Tallies) -> None:
        self._tallies = tallies
        self.newest: dict[tuple[TopicPartition, bytes | None], int] = {}
        super().__init__(history, READER, None)

    def _wanted(self) -> list[TopicPartition]:
        return self._tallies.keys

    def _take(self, key: TopicPartition, record: ConsumedRecord) -> None:
        history, offset, end = self._history, record.offset, self.ends.get(key, 0)
        history.trace.add(self.name, key, offset, record.value)
        self.ends[key] = offset + 1
        table = self._tallies.tables().get(key)
        self.newest[key, record.key] = offset
        if table is None:
            return
        pair = record.key, record.value
        wanted = table.pairs.get(offset)
        if offset < end or pair != wanted:
            given = f"{self.name} is given {pair} at {offset} of {key} after {end}"
            history.cluster.loop.end_run(Violation(f"S24: {given}, committed is {wanted}", key))


class Tallies:
    """Who uses the compacted topic. Owner: the history."""

    def __init__(self, history: History) -> None:
        self._history = history
        rng = history.cluster.stream("tallies")
        self.keys = [TopicPartition(TALLIES, each) for each in range(history.shape.tallies)]
        self._producers: list[Tallying] = []
        self._reader: TallyReader | None = None
        if self.keys:
            history.client_hosts += ["t0", "t1", READER]
            self._producers = [Tallying(history, each, _own(rng)) for each in range(2)]
            self._reader = TallyReader(history, self)

    def tables(self) -> dict[TopicPartition, Table]:
        """What is committed, of the partitions that have lost nothing for a while."""
        found = {key: self._history.copies.of(key) for key in self.keys}
        since_s = self._history.trace.now_s - BUFFERED_S
        return {
            key: each.table for key, each in found.items() if each.table and each.is_sure(since_s)
        }

    async def end_producers(self) -> None:
        for each in self._producers:
            await each.end()
            each.check(self.tables())

    async def end_reader(self) -> None:
        if self._reader is not None:
            await self._reader.end()

    def is_all_read(self, leader_of: Callable[[TopicPartition], Partition | None]) -> str:
        """Whether the reader knows the last record of each key that is there and not deleted."""
        if self._reader is None:
            return ""
        for key, table in self.tables().items():
            if self._history.may_be_lost(key, 0.0):
                continue  # it may have been beyond what is there now
            partition = leader_of(key)
            if partition is None:
                return f": {key} has no leader"
            for name, row in table.last.items():
                is_there = row.value is not None and row.offset >= partition.log.start_offset
                found = self._reader.newest.get((key, name))
                if is_there and found != row.offset:
                    return f": {self._reader.name} has {name!r} at {found} of {key}, not {row}"
        return ""


def _own(rng: random.Random) -> random.Random:
    return random.Random(rng.random())


def check_limit(partition: Partition, log: Log, mapped_end: int) -> None:
    """S25: what a record is removed for is committed, and on this disk."""
    limit = min(partition.high_watermark, log.recovery_point)
    sentence = f"S25: {partition.key} is cleaned to {mapped_end}, committed and flushed is {limit}"
    require(mapped_end <= limit, sentence, partition.key)
