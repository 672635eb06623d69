"""Producers, and what became of each record: acknowledged, refused for good, or in doubt."""

from __future__ import annotations

import asyncio
import random
from functools import partial
from typing import TYPE_CHECKING

from kdist.client.producer.asynchronous import AsyncProducer
from kdist.client.producer.core import ProducerContext
from kdist.client.producer.results import Sent
from kdist.errors import ApiError, Error, KdistError
from kdist.model import TopicPartition
from tests.simulator.cluster import PORT
from tests.simulator.record import NEVER_S
from tests.simulator.shape import MESSAGE_BYTES_MAX, TOPIC

if TYPE_CHECKING:
    from tests.simulator.history import History

_REFUSED_FOR_GOOD = (Error.MESSAGE_TOO_LARGE, Error.RECORD_LIST_TOO_LARGE)
_CODECS = ("none", "none", "none", "gzip", "lz4")
_TOO_LARGE_SHARE = 0.01
_BURSTS_SHARE, _BURST_SHARE, _BURST = 0.25, 0.15, 5  # of producers, of times to send; records
_IDLE_S = 0.2  # until it looks again whether there is a topic


class SentRecord:
    """One record. `offset` is where it was said to be, -1 if nobody said."""

    def __init__(self, value: bytes, key: TopicPartition, number: int, sent_s: float) -> None:
        self.value = value
        self.key = key
        self.number = number
        self.sent_s = sent_s
        self.acked_s = NEVER_S
        self.offset = -1
        self.is_refused = False  # never written, that is sure


class Producing:
    """A producer that sends all the time. `acks=0` promises nothing."""

    def __init__(self, history: History, number: int, rng: random.Random) -> None:
        self.name = f"p{number}"
        self.records: list[SentRecord] = []
        self.is_idempotent = rng.random() < 0.6
        self.acks = "all" if self.is_idempotent else rng.choice(("all", "1", "0"))
        self.may_repeat = not self.is_idempotent and rng.random() < 0.6
        self._history = history
        self._rng = history.cluster.stream(self.name)
        self._pause_s = rng.choice((0.15, 0.3, 0.8))
        settings: dict[str, object] = {} if self.is_idempotent else {"enable_idempotence": False}
        self._bursts_rng = history.cluster.stream(f"{self.name}'s bursts")
        self._has_bursts = self._bursts_rng.random() < _BURSTS_SHARE
        if self._has_bursts:
            settings["batch_size"] = 1  # so that several batches are in flight
        self._padding = rng.choice((0, 0, 200, 3_000))
        self._is_sending = self.name not in history.script.idle
        if not (self.is_idempotent or self.may_repeat):
            settings["retries"] = 0
        network = history.cluster.network.host(self.name)
        self._producer = AsyncProducer(
            context=ProducerContext(network, history.cluster.clock, self._rng),
            bootstrap_servers=",".join(f"m{each}:{PORT}" for each in history.shape.broker_ids),
            linger_ms=rng.choice((0, 5, 50)),
            acks=self.acks,
            compression_type=rng.choice(_CODECS),
            max_request_size=4 * MESSAGE_BYTES_MAX,
            max_block_ms=3_000,
            request_timeout_ms=rng.choice((1_500, 6_000)),  # an election, waited for or not
            delivery_timeout_ms=rng.choice((9_000, 25_000)),  # a broker's death, outlived or not
            **settings,
        )
        process = history.cluster.process(self.name)
        self._task = history.cluster.loop.create_task(process.run(self._work()))

    async def _work(self) -> None:
        async with self._producer as producer:
            while self._is_sending:
                counts = self._history.known.counts()
                if not counts:
                    await asyncio.sleep(_IDLE_S)
                    continue
                topic = TOPIC if self._rng.random() < 0.6 else self._rng.choice(sorted(counts))
                partition = self._rng.randrange(counts.get(topic, 1))
                is_burst = self._has_bursts and self._bursts_rng.random() < _BURST_SHARE
                for _ in range(_BURST if is_burst else 1):
                    await self._send(producer, topic, partition)
                await asyncio.sleep(self._rng.uniform(0, 2 * self._pause_s))
            await producer.flush()

    async def _send(self, producer: AsyncProducer, topic: str, partition: int) -> None:
        number = len(self.records)
        value = b"%s:%d:" % (self.name.encode(), number) + b"." * self._padding
        if self._rng.random() < _TOO_LARGE_SHARE:
            value = value.ljust(MESSAGE_BYTES_MAX + 100, b"%d" % self._rng.randrange(10))
            value += self._rng.randbytes(MESSAGE_BYTES_MAX)  # so that no codec makes it small
        key = TopicPartition(topic, partition)
        record = SentRecord(value, key, number, self._history.trace.now_s)
        self.records.append(record)
        try:
            sent = await producer.send(topic, value, partition=partition)
        except KdistError as error:
            record.is_refused = True
            self._history.trace.note(f"{self.name} cannot send {number} to {key}: {error}")
        else:
            sent.add_done_callback(partial(self._done, record))

    def _done(self, record: SentRecord, sent: Sent) -> None:
        trace, error = self._history.trace, sent.exception()
        if error is None:
            record.acked_s, record.offset = trace.now_s, sent.result().offset
            trace.add(self.name, record.number, record.offset, trace.now_s)
            trace.count("acknowledged")
            return
        if isinstance(error, ApiError) and error.error in _REFUSED_FOR_GOOD:
            record.is_refused = True
            trace.add(self.name, record.number)
            trace.count("refused for good")
            return
        what = f"{self.name} does not know of {record.number} in {record.key}"
        trace.note(f"{what}: {str(error)[:80]}")
        trace.count("not acknowledged")

    async def end(self) -> None:
        """Send no more, and wait until all that was sent is acknowledged or has failed."""
        self._is_sending = False
        await self._task
