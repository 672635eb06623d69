"""Applies the answers to produce requests: settles their batches, or queues them to be retried.

A batch is settled, delivered or failed, once: its memory is given back and its callbacks are
called. Until then each `Verdict` may put it back into its queue, within the limits of `retries` and
the delivery timeout.
"""

from __future__ import annotations

import asyncio
import enum
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

from kdist.client.backoff import backoff_s
from kdist.client.cluster import api_error
from kdist.client.producer.accumulator import Accumulator
from kdist.client.producer.batch import ProducerBatch
from kdist.client.producer.encoding import cut_in_two
from kdist.client.producer.faults import DeliveryTimedOut
from kdist.client.producer.meter import ProducerMeter
from kdist.client.producer.settings import ProducerSettings
from kdist.errors import ApiError, Error
from kdist.model import NO_OFFSET, NO_SEQUENCE, NO_TIMESTAMP
from kdist.runtime.tick_loop import ending_ticks


class Verdict(enum.Enum):
    """What to do with a batch that a broker refused or did not answer.

    DONE      nothing: it is already in the log, only the answer to an earlier attempt was lost
    RETRY     send it again after a pause, with fresh metadata
    FOLLOW    send it again once the batch before it is acknowledged
    RENUMBER  it was not written: send it under a new epoch, with sequence numbers from 0
    CUT       send it again as two halves
    FAIL      give it up

    Source: KIP-98, KIP-360, and Java's `Sender` and `TransactionManager`.
    """

    DONE = enum.auto()
    RETRY = enum.auto()
    FOLLOW = enum.auto()
    RENUMBER = enum.auto()
    CUT = enum.auto()
    FAIL = enum.auto()


_TOO_LARGE = (Error.MESSAGE_TOO_LARGE, Error.RECORD_LIST_TOO_LARGE)
_LOST_TRACK = (
    Error.UNKNOWN_PRODUCER_ID,
    Error.INVALID_PRODUCER_EPOCH,
    Error.PRODUCER_FENCED,
    Error.OUT_OF_ORDER_SEQUENCE_NUMBER,
)


def judge(error: Error, count: int, *, is_first: bool, is_idempotent: bool) -> Verdict:
    """The verdict on a batch of `count` records (pure); `is_first`: all before it are done."""
    if error is Error.DUPLICATE_SEQUENCE_NUMBER:
        return Verdict.DONE
    if error in _TOO_LARGE:
        return Verdict.CUT if count > 1 else Verdict.FAIL
    if is_idempotent and error in _LOST_TRACK:
        # While an earlier batch is missing, this sequence cannot be next: its turn will come.
        is_behind = error is Error.OUT_OF_ORDER_SEQUENCE_NUMBER and not is_first
        return Verdict.FOLLOW if is_behind else Verdict.RENUMBER
    return Verdict.RETRY if error.retriable else Verdict.FAIL


class Settling:
    """Owner: the loop. `look_up` requests fresh metadata for topics."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        settings: ProducerSettings,
        accumulator: Accumulator,
        look_up: Callable[[Iterable[str]], None],
        meter: ProducerMeter,
        *,
        is_idempotent: bool,
    ) -> None:
        self._loop = loop
        self._settings = settings
        self._accumulator = accumulator
        self._look_up = look_up
        self._meter = meter
        self._is_idempotent = is_idempotent
        self._finished: deque[ProducerBatch] = deque()  # their callbacks are yet to be called
        self._want_calls = ending_ticks(loop, self._call_back)

    # Answers

    def answer(self, batches: Iterable[ProducerBatch], response: Any) -> None:
        """Apply the broker's answer to a request with these batches; it is None with acks=0."""
        results = {}
        if response is not None:
            results = {
                (topic.name, each.index): each
                for topic in response.responses
                for each in topic.partition_responses
            }
        for batch in batches:
            queue = batch.queue
            queue.mark_answered(batch)
            result = results.get((queue.topic, queue.partition))
            if batch.is_done:  # it expired in flight
                if result is None or result.error_code:
                    self._note_gap(batch)
            elif response is None:
                self.deliver(batch, NO_OFFSET, NO_TIMESTAMP)
            elif result is None:
                missing = "the broker's answer does not mention the partition"
                self._refuse(batch, Error.UNKNOWN_SERVER_ERROR, missing)
            elif result.error_code:
                self._refuse(batch, Error.of(result.error_code), result.error_message)
            else:
                self.deliver(batch, result.base_offset, result.log_append_time_ms)

    def lose(self, batches: Iterable[ProducerBatch], error: ApiError) -> None:
        """No answer will come to a request with these batches: it timed out, or was cut off."""
        for batch in batches:
            batch.queue.mark_answered(batch)
            if batch.is_done:
                self._note_gap(batch)
            else:
                self._refuse(batch, error.error, str(error))

    def _refuse(self, batch: ProducerBatch, error: Error, message: str | None) -> None:
        queue = batch.queue
        verdict = judge(
            error,
            batch.count,
            is_first=queue.is_first(batch),
            is_idempotent=self._is_idempotent,
        )
        if verdict is Verdict.DONE:
            self.deliver(batch, NO_OFFSET, NO_TIMESTAMP)
        elif verdict is Verdict.FOLLOW:
            queue.put_back(batch)
        elif verdict is Verdict.CUT:
            queue.put_back_parts(cut_in_two(batch))
        elif verdict is Verdict.FAIL or batch.attempts > self._settings.retries:
            self.fail(batch, api_error(error, str(queue), message))
        else:
            if verdict is Verdict.RENUMBER:
                queue.is_stale = True
            else:
                self._look_up((queue.topic,))
            batch.error = api_error(error, str(queue), message)  # the cause, if it expires
            queue.put_back(batch)
            self._meter.retried(batch)
            settings = self._settings
            pause_s = backoff_s(
                batch.attempts - 1, settings.retry_backoff_ms, settings.retry_backoff_max_ms
            )
            queue.retry_at_s = self._loop.time() + pause_s

    # The end of a batch

    def expire(self, batch: ProducerBatch) -> None:
        """Fail a batch that exceeded the delivery timeout: taken from its queue, or in flight.

        One in flight stays there until its request ends, as it may still be written: until then
        nothing is numbered anew.
        """
        last = f": {batch.error}" if batch.error is not None else ""
        limit = f"{self._settings.delivery_timeout_ms} ms"
        sentence = f"{batch.queue} did not acknowledge it within {limit}{last}"
        self.fail(batch, DeliveryTimedOut(sentence))

    def fail(self, batch: ProducerBatch, error: BaseException) -> None:
        """Fail a batch. If it was numbered, there may now be a gap in the sequence.

        Later batches that were sent already may be in the log, and would be written twice if they
        were renumbered. So they keep their numbers, and the broker says whether there is a gap.
        """
        self._note_gap(batch)
        batch.error = error
        self._settle(batch)

    def _note_gap(self, batch: ProducerBatch) -> None:
        queue = batch.queue
        if batch.sequence != NO_SEQUENCE and not queue.has_sent:
            queue.is_stale = True

    def deliver(self, batch: ProducerBatch, base_offset: int, append_time_ms: int) -> None:
        batch.error = None
        batch.base_offset = base_offset
        if append_time_ms != NO_TIMESTAMP:
            batch.timestamp_ms = append_time_ms
            batch.timestamps = None
        self._settle(batch)

    def _settle(self, batch: ProducerBatch) -> None:
        memory = self._accumulator.memory
        self._meter.settled(batch)
        batch.frame = None
        memory.give_back(batch.held_bytes)
        memory.wake()
        self._finish(batch)
        whole = batch.whole
        while whole is not None and all(part.is_done for _, part in whole.parts):
            memory.give_back(whole.held_bytes)
            self._finish(whole)
            whole = whole.whole

    def _finish(self, batch: ProducerBatch) -> None:
        batch.is_done = True
        if batch.callbacks:
            if not self._finished:
                self._want_calls()
            self._finished.append(batch)

    def _call_back(self) -> None:
        """Call the callbacks of finished batches.

        An exception goes to the loop's exception handler; the rest are called in another tick.
        """
        finished = self._finished
        try:
            while finished:
                finished[0].call_back()
                finished.popleft()
        finally:
            if finished:
                self._want_calls()
