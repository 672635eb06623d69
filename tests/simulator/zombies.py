"""In some seeds: a producer whose earlier lives go on, with old epochs and wrong sequences.

It sends raw requests, and says of each what must become of it (S10): the next sequence is taken, a
retry is answered with the offset that it has, an epoch that was replaced and a gap are refused and
leave nothing behind. What it draws is a stream of its own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

from kdist.client.admin.clients import AsyncAdmin
from kdist.errors import ApiError, Error, KdistError
from kdist.model import TopicPartition
from kdist.protocol.produce import ProducePartition, ProduceRequest, ProduceTopic
from kdist.records.build import build_batch
from kdist.storage.producers import BATCHES_KEPT
from tests.simulator.cluster import PORT
from tests.simulator.record import require

if TYPE_CHECKING:
    from tests.simulator.history import History

HOST = "zombie"
_SHARE = 0.4  # of seeds
_EARLY_SHARE = 0.4  # of retries
_PRODUCER_ID = 1 << 40  # nobody is given that
_FENCED = (Error.INVALID_PRODUCER_EPOCH, Error.OUT_OF_ORDER_SEQUENCE_NUMBER)
_NEVER_WRITTEN = (*_FENCED, Error.NOT_ENOUGH_REPLICAS, Error.UNKNOWN_TOPIC_OR_PARTITION)


class Sent(NamedTuple):
    """A batch of one record."""

    epoch: int
    sequence: int
    value: bytes
    offset: int = -1  # if it was acknowledged
    sent_s: float = 0.0


class Sequence:
    """What was sent to one partition."""

    def __init__(self) -> None:
        self.epoch = 0
        self.next = 0
        self.doubtful: Sent | None = None  # the last, if nobody answered
        self.last: Sent | None = None  # that was acknowledged
        self.acked: list[Sent] = []
        self.refused: list[Sent] = []


class Zombies:
    """Owner: the history."""

    def __init__(self, history: History) -> None:
        self._history = history
        self._trace = history.trace
        self._rng = history.cluster.stream(HOST)
        self._past_rng = history.cluster.stream(f"{HOST}'s past")
        self._is_over = False
        self._number = 0
        self._sequences: dict[TopicPartition, Sequence] = {}
        self._task: asyncio.Task[None] | None = None
        if self._rng.random() < _SHARE:
            self._pause_s = self._rng.choice((0.3, 1))
            self._admin = AsyncAdmin(
                [f"m{each}:{PORT}" for each in history.shape.broker_ids],
                request_timeout_ms=3_000,
                default_api_timeout_ms=2_000,
                network=history.cluster.network.host(HOST),
            )
            process = history.cluster.process(HOST)
            self._task = history.cluster.loop.create_task(process.run(self._work()))

    async def end(self) -> None:
        """Send no more."""
        self._is_over = True
        if self._task is not None:
            await self._task

    async def _work(self) -> None:
        rng = self._rng
        async with self._admin:
            while not self._is_over:
                await asyncio.sleep(rng.uniform(0, 2 * self._pause_s))
                key = rng.choice(self._history.stable_partitions())
                if HOST in self._history.script.idle:
                    continue
                try:
                    await self._do_something(key, self._sequences.setdefault(key, Sequence()))
                except KdistError as error:
                    self._trace.note(f"{HOST}: {error}")

    async def _do_something(self, key: TopicPartition, sequence: Sequence) -> None:
        last, epoch = sequence.last, sequence.epoch
        what = self._rng.randrange(10)
        if sequence.doubtful is not None and what < 7:
            await self._go_on(key, sequence, sequence.doubtful)
        elif what in (6, 7) or (sequence.doubtful is not None):
            sequence.epoch, sequence.next, sequence.doubtful = epoch + 1, 0, None
            self._trace.count("producer epoch raised")
        elif last is None or last.epoch != epoch or what < 4:
            await self._go_on(key, sequence, self._new(epoch, sequence.next))
        elif what == 4:
            await self._repeat(key, last)
        elif what == 5 and epoch:
            wrong = self._new(epoch - 1, self._rng.choice((0, last.sequence + 1)))
            await self._be_refused(key, sequence, wrong, "zombie fenced")
        else:
            gap = self._rng.choice((2, 3, 100))
            wrong = self._new(*self._rng.choice(((epoch, last.sequence + gap), (epoch + 1, gap))))
            await self._be_refused(key, sequence, wrong, "wrong sequence refused")

    def _new(self, epoch: int, number: int) -> Sent:
        self._number += 1
        return Sent(epoch, number, b"z:%d:" % self._number, sent_s=self._trace.now_s)

    async def _go_on(self, key: TopicPartition, sequence: Sequence, sent: Sent) -> None:
        """Send what follows, perhaps again."""
        sequence.doubtful, before = sent, sequence.last
        error, offset = await self._send(key, sent)
        if error is Error.NONE:
            sequence.last = sent._replace(offset=offset)
            sequence.acked.append(sequence.last)
            sequence.next, sequence.doubtful = sent.sequence + 1, None
        elif error in _FENCED:
            sentence = f"S10: {sent} of {key} follows {before}, and is refused: {error.name}"
            is_replaced = self._admin.cluster.leaders.get(key) != self._leader(key)
            require(is_replaced or self._is_forgotten(key, before), sentence, key)
            sequence.epoch, sequence.next, sequence.doubtful = sent.epoch + 1, 0, None

    async def _repeat(self, key: TopicPartition, last: Sent) -> None:
        earlier = self._sequences[key].acked[: -BATCHES_KEPT - 1]
        if earlier and earlier[-1].epoch == last.epoch and self._past_rng.random() < _EARLY_SHARE:
            last = earlier[-1]  # from before those that a broker remembers
        error, offset = await self._send(key, last)
        if error is Error.NONE and offset != last.offset:
            sentence = f"S10: {last} of {key} is written again, at {offset}"
            require(self._is_forgotten(key, last), sentence, key)

    async def _be_refused(
        self, key: TopicPartition, sequence: Sequence, wrong: Sent, state: str
    ) -> None:
        last = sequence.last
        error, offset = await self._send(key, wrong)
        if error is Error.NONE:
            sentence = f"S10: {wrong} of {key} is taken at {offset} after {last}"
            require(self._is_forgotten(key, last), sentence, key)
            sequence.epoch, sequence.next = max(wrong.epoch, sequence.epoch) + 1, 0
        elif error in _NEVER_WRITTEN:
            sequence.refused.append(wrong)
            self._trace.count(state, error in _FENCED)
        else:  # it may be written by a broker that knew no better, and was replaced
            sequence.epoch, sequence.next = max(wrong.epoch, sequence.epoch) + 1, 0

    def _leader(self, key: TopicPartition) -> int:
        """Who leads; who was replaced may know less than what was acknowledged since."""
        state = self._history.known.states.get(key)
        return state.leader if state is not None else -1

    def _is_forgotten(self, key: TopicPartition, last: Sent | None) -> bool:
        """Whether a broker may not know of the last batch any more."""
        if last is None:
            return False
        is_deleted = last.offset < self._history.copies.last_start(key)
        return is_deleted or self._history.may_be_lost(key, last.sent_s, last.offset)

    async def _send(self, key: TopicPartition, sent: Sent) -> tuple[Error, int]:
        """The answer; of whom nobody answers it is REQUEST_TIMED_OUT."""
        cluster = self._admin.cluster
        await cluster.metadata([key.topic])
        records = build_batch(
            [sent.value],
            timestamp_ms=self._history.cluster.clock.now_ms(),
            producer_id=_PRODUCER_ID,
            producer_epoch=sent.epoch,
            base_sequence=sent.sequence,
        )
        part = ProducePartition(index=key.partition, records=bytes(records))
        topic = ProduceTopic(name=key.topic, partition_data=[part])
        request = ProduceRequest(acks=-1, timeout_ms=2_000, topic_data=[topic])
        try:
            answer = await cluster.ask(request, cluster.leaders.get(key, -1))
        except ApiError:
            return Error.REQUEST_TIMED_OUT, -1
        ((found,),) = (each.partition_responses for each in answer.responses)
        self._trace.add(HOST, key, sent, found.error_code, found.base_offset)
        return Error.of(found.error_code), found.base_offset

    def check(self, key: TopicPartition, stored: Mapping[int, bytes], start_offset: int) -> None:
        """What was refused is nowhere, and what was acknowledged is where it was said to be."""
        sequence = self._sequences.get(key, Sequence())
        values = {*stored.values()}
        for each in sequence.refused:
            require(each.value not in values, f"S9: {each} of {key} was refused, and is there", key)
        for each in sequence.acked:
            is_there = each.offset < start_offset or stored.get(each.offset) == each.value
            may_be_lost = self._history.may_be_lost(key, each.sent_s, each.offset)
            require(is_there or may_be_lost, f"S1: {each} of {key} was acknowledged, is lost", key)
