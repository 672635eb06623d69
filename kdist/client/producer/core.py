"""The producer's core, which both fronts, `Producer` and `AsyncProducer`, drive.

`add` and `add_many` return steps: generators that yield each `Need`, continue once it is met, and
return the future. A front waits for a need by running `meet` on the loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import sys
from collections.abc import Generator, Iterable, Sequence
from functools import partial
from os import getpid
from typing import Any, NamedTuple, TypeVar

from kdist.client.background import ENDING, FORKED
from kdist.client.backoff import backoff_s
from kdist.client.cluster import MISSING_S, REFUSALS, Cluster, api_error
from kdist.client.discovery import find_brokers
from kdist.client.producer import at_exit
from kdist.client.producer.accumulator import (
    Accumulator,
    Need,
    NeedRoom,
    NeedTopic,
    NeedTurn,
    Row,
)
from kdist.client.producer.arguments import (
    check_name,
    check_partition,
    checked_headers,
    checked_partition,
    checked_timestamp,
    encoded,
    encoded_column,
    listed,
)
from kdist.client.producer.batch import PartitionQueue, ProducerBatch
from kdist.client.producer.bulk import Bulk, refused
from kdist.client.producer.encoding import VERSION_MIN, ZSTD_VERSION_MIN, RequestEncoder
from kdist.client.producer.faults import BufferFull, ProducerClosed, RecordTooLarge
from kdist.client.producer.identity import NOBODY, Identities
from kdist.client.producer.interceptors import NO_PARTITION, ProducerInterceptors
from kdist.client.producer.interrupting import Interrupting
from kdist.client.producer.link import LinkSettings
from kdist.client.producer.message import Message
from kdist.client.producer.metadata import Metadata
from kdist.client.producer.meter import ProducerMeter
from kdist.client.producer.results import Sent, SentMany, make_known
from kdist.client.producer.sender import Sender
from kdist.client.producer.settings import ProducerConfig
from kdist.client.producer.settling import Settling
from kdist.client.producer.topic import Topic
from kdist.client.security import client_security
from kdist.errors import ApiError, Error, UserError
from kdist.model import NO_LEADER
from kdist.network.client import ClientSettings
from kdist.network.network import AsyncioNetwork, Network
from kdist.records.compression import Codec
from kdist.records.record import Headers
from kdist.runtime.clock import Clock, SystemClock
from kdist.runtime.process import system_rng
from kdist.runtime.unix import keep_freed_blocks

T = TypeVar("T")
Steps = Generator[Need, None, T]

_LOCK_S = 1.0
_METADATA_PAUSE_S = 0.1  # at least, even if batches are to be sent again at once
_ACKS = {"all": -1, "-1": -1, "1": 1, "0": 0}


class ProducerContext(NamedTuple):
    """The outside world of a producer: the real machine's (`of`), or a simulator's."""

    network: Network
    clock: Clock
    rng: random.Random

    @classmethod
    def of(cls, loop: asyncio.AbstractEventLoop) -> ProducerContext:
        """The real machine's, on this event loop."""
        return cls(AsyncioNetwork(loop), SystemClock(), system_rng())


class Core:
    """Created by `open`, on the loop."""

    def __init__(
        self, context: ProducerContext, config: ProducerConfig, addresses: Sequence[Any]
    ) -> None:
        keep_freed_blocks()
        settings, callables, self._key_encoder, self._value_encoder, is_idempotent = config
        loop = context.network.loop
        self.meter = ProducerMeter(settings.client_id, loop.time)
        client = ClientSettings(
            settings.client_id,
            request_timeout_ms=settings.request_timeout_ms,
            metrics=self.meter.connections,
            security=client_security(settings),
        )
        self.loop = loop
        self.name = settings.client_id
        self.process = getpid()
        self._settings = settings
        self._handler = callables.callback_handler
        self._interceptors: ProducerInterceptors | None = None
        if callables.interceptors:
            self._interceptors = ProducerInterceptors(callables.interceptors, loop.time)
        # Whether something of the application's is called for each record.
        self.has_handler = self._handler is not None or self._interceptors is not None
        self._cluster = Cluster(context.network, addresses, client)
        self.accumulator = Accumulator(
            settings, callables.partitioner, loop, context.clock, context.rng, self._kick_by
        )
        self.accumulator.is_watched = self._handler is not None
        memory = self.accumulator.memory
        self.meter.own.buffer_available_bytes = lambda: memory.free
        self.accumulator.has_short_way = (
            not self.has_handler and self._value_encoder is None and self._key_encoder is None
        )
        self._new_queue = partial(
            PartitionQueue, hurry=self._hurry, check_waiter=self._check_waiter
        )
        self._retired = NOBODY  # the identity whose sequence numbers are not all known any more
        self._interrupting = Interrupting(loop, self._add_soon, self._new_queue)
        self._metadata = Metadata(
            self._cluster,
            self.accumulator.topics,
            partial(self._pause_s, context.rng),
            self._make_queue,
            self._shrink,
            self._metadata_changed,
        )
        self._identities = Identities(self._cluster, self._kick) if is_idempotent else None
        self._settling = Settling(
            loop,
            settings,
            self.accumulator,
            self._metadata.want,
            self.meter,
            is_idempotent=is_idempotent,
        )
        codec = Codec[settings.compression_type.upper()]
        self._sender = Sender(
            context.network,
            settings,
            LinkSettings(
                client,
                settings.reconnect_backoff_ms,
                settings.reconnect_backoff_max_ms,
                settings.max_in_flight_requests_per_connection,
                ZSTD_VERSION_MIN if codec is Codec.ZSTD else VERSION_MIN,
                self._cluster.outages,
            ),
            self.accumulator,
            self._metadata,
            RequestEncoder(
                _ACKS[settings.acks], settings.request_timeout_ms, settings.client_id, codec
            ),
            self._identities,
            self._settling,
            self._tell_dequeued if self._handler is not None else None,
        )
        self._refreshing = loop.call_later(settings.metadata_max_age_ms / 1000, self._refresh)
        self._is_closing = False
        self._closed = asyncio.Event()
        every_s = settings.statistics_interval_ms / 1000
        self.meter.start_telling(loop, every_s, callables.on_statistics)
        at_exit.note_open(self)

    def __del__(self) -> None:
        if not self.accumulator.is_closed:  # the event loop ended without `close`
            at_exit.warn_of_loss(self)

    @classmethod
    async def open(cls, context: ProducerContext, config: ProducerConfig) -> Core:
        """A core for these settings. `UserError` if they do not say where the brokers are."""
        plain = config.plain
        servers = (*plain.bootstrap_servers, *plain.broker_list)
        found = await find_brokers(servers, plain.zk_connect, plain.security_protocol)
        return cls(context, config, found)

    def _kick(self) -> None:
        self._sender.kick()

    def _kick_by(self, when_s: float) -> None:
        self._sender.kick_by(when_s)

    def _hurry(self, batch: ProducerBatch) -> None:
        batch.is_hurried = True
        self._kick()

    def _check_waiter(self) -> None:
        """Raise an error if a thread that waits for a result would wait forever."""
        if sys.is_finalizing():
            raise ProducerClosed(ENDING)
        if self.process != getpid():  # its loop is the parent's: nobody here will ever tell
            raise ProducerClosed(FORKED)
        self.accumulator.check_waiter()
        with contextlib.suppress(RuntimeError):
            if asyncio.get_running_loop() is self.loop:
                raise UserError("what runs on the producer's loop cannot wait for it: await it")

    def _pause_s(self, rng: random.Random, failures: int) -> float:
        """How long to wait before asking for metadata again."""
        settings = self._settings
        limits_ms = settings.retry_backoff_ms, settings.retry_backoff_max_ms
        return max(backoff_s(failures, *limits_ms, rng), _METADATA_PAUSE_S)

    def _make_queue(self, topic: str, partition: int, leader: int) -> PartitionQueue:
        queue = self._new_queue(topic, partition, leader)
        queue.identity, queue.is_stale = self._retired, self._retired != NOBODY
        return queue

    def _forget(self, topic: Topic) -> None:
        """Forget an idle topic, and with it the sequence numbers of its partitions.

        Brokers remember them, and would take a batch that begins at 0 again for one they have. So
        queues made from now on begin under an identity newer than any that was used for it.
        """
        if self.accumulator.forget(topic):
            self._metadata.forget(topic.name)
            was_numbered = any(queue.identity != NOBODY for queue in topic.every)
            if was_numbered and self._identities is not None:
                self._retired = self._identities.current

    def _shrink(self, topic: Topic, count: int) -> None:
        """The topic was recreated with fewer partitions: fail what waits for the others."""
        self.accumulator.shrink(topic, count)
        for queue in topic.every[count:]:
            why = f"{queue} is gone: the topic was recreated with {count} partitions"
            self._sender.fail_all(queue, ApiError(Error.UNKNOWN_TOPIC_OR_PARTITION, why))

    def _metadata_changed(self) -> None:
        if self._is_closing:
            self._fail_missing()
        self._kick()

    def _fail_missing(self) -> None:
        """Fail what waits for topics that no longer exist: nobody closes to wait for those.

        A broker that has just started may not have heard of a topic yet, hence the delay.
        """
        missed_s = self.loop.time() - MISSING_S
        for topic in self.accumulator.topics.values():
            since_s = topic.missing_since_s
            if since_s is not None and since_s <= missed_s:
                why = f"topic {topic.name} does not exist any more"
                error = ApiError(Error.UNKNOWN_TOPIC_OR_PARTITION, why)
                for queue in topic.every:
                    self._sender.fail_all(queue, error)

    def _refresh(self) -> None:
        self._metadata.refresh()
        for topic in self._metadata.find_idle(self._settings.metadata_max_idle_ms / 1000):
            self._forget(topic)
        age_s = self._settings.metadata_max_age_ms / 1000
        self._refreshing = self.loop.call_later(age_s, self._refresh)

    # Sending; on any thread

    def add(self, topic: str, message: Message) -> Steps[Sent]:
        """Steps that return one record's future. `WrongType` if it is not made of bytes."""
        if self._interceptors is None:
            return self._add(topic, message)
        return self._interceptors.adding(topic, message, self._add)

    def _add(self, topic: str, message: Message) -> Steps[Sent]:
        handler = self._handler
        if handler is not None:
            message = handler.before_enqueue(topic, message)
        value, key, headers, partition, timestamp = message
        row = self.row(topic, value, key, headers, timestamp)
        partition = checked_partition(partition)
        try:
            sent = yield from self.add_row(topic, row, partition)
        except BaseException:
            if handler is not None:
                handler.after_enqueue(topic, message, was_added=False)
            raise
        if handler is not None:
            handler.after_enqueue(topic, message, was_added=True)
        return sent

    def add_row(self, topic: str, row: Row, partition: int | None) -> Steps[Sent]:
        """As `add`, for a record already encoded; no handler is called."""
        while not isinstance(sent := self.accumulator.add(topic, row, partition), Sent):
            if isinstance(sent, NeedTurn):
                self.accumulator.check_open()
                return self._interrupting.put(topic, row, partition)
            yield sent
        return sent

    async def _add_soon(self, topic: str, row: Row, partition: int | None) -> Sent:
        return await self.drive(self.add_row(topic, row, partition))

    def row(self, topic: str, value: Any, key: Any, headers: Headers | None, timestamp: Any) -> Row:
        """A record, checked and encoded by the application's encoders; `WrongType`."""
        pairs = checked_headers(headers) if headers else ()
        return Row(
            encoded(self._value_encoder, value, topic, "value", pairs),
            encoded(self._key_encoder, key, topic, "key", pairs),
            pairs,
            None if timestamp is None else checked_timestamp(timestamp),
        )

    def add_many(
        self, topic: str, values: Iterable[Any], keys: Iterable[Any] | None, sent: SentMany
    ) -> Steps[SentMany]:
        """Steps that return `sent`, which has from the start what was sent so far."""
        check_name(topic)
        values = listed(values, "values")
        keys = None if keys is None else listed(keys, "keys")
        if self.has_handler or self.accumulator.is_inside:
            pairs = zip(values, [None] * len(values) if keys is None else keys, strict=True)
            return self.add_each(topic, [Message(value, key) for value, key in pairs], sent)
        return Bulk(
            self.accumulator,
            topic,
            encoded_column(self._value_encoder, values, topic, "value"),
            None if keys is None else encoded_column(self._key_encoder, keys, topic, "key"),
            sent,
        ).steps()

    def add_each(
        self, topic: str, messages: Iterable[Message], sent: SentMany | None = None
    ) -> Steps[SentMany]:
        """As `add_many`, for messages that may have headers, partitions and timestamps."""
        sent = SentMany() if sent is None else sent
        for message in messages:
            try:
                sent.add_one((yield from self.add(topic, message)))
            except RecordTooLarge as error:
                queue = self._new_queue(topic, NO_PARTITION, NO_LEADER)
                sent.add(refused(queue, error), 0, 1)
        return sent

    # Waiting; on the loop

    def patience_s(self) -> float:
        """The deadline of a call that starts now, on the loop's clock (`max_block_ms`)."""
        return self.loop.time() + self._settings.max_block_ms / 1000

    async def drive(self, steps: Steps[T]) -> T:
        """Run the steps to their end, waiting for what they need."""
        until_s = self.patience_s()
        try:
            while True:
                await self.meet(next(steps), until_s)
        except StopIteration as last:
            result: T = last.value
            return result
        finally:
            steps.close()

    async def meet(self, need: Need, until_s: float) -> None:
        """Return when it is worth trying again; at `until_s` raise what stood in the way.

        That is `BufferFull`, or for metadata `ApiError` or `NoBroker`. An `ApiError` that trying
        again cannot change is raised at once.
        """
        try:
            async with asyncio.timeout_at(until_s):
                if isinstance(need, NeedRoom):
                    self._kick()
                    await self.accumulator.memory.wait(need.size_bytes)
                elif isinstance(need, NeedTopic):
                    await self._know(need)
        except TimeoutError:
            self._raise_late(need)

    def _raise_late(self, need: Need) -> None:
        limit = f"for {self._settings.max_block_ms} ms"
        if not isinstance(need, NeedTopic):
            self.meter.own.buffer_exhausted += 1
            used = f"all {self._settings.buffer_memory} bytes of buffer_memory were in use {limit}"
            raise BufferFull(used) from None
        if self._metadata.last_error is not None:
            raise self._metadata.last_error from None
        topic = self.accumulator.topics.get(need.topic)
        error = topic.error if topic is not None and topic.error else Error.LEADER_NOT_AVAILABLE
        raise ApiError(error, f"topic {need.topic} was not there {limit}") from None

    async def _know(self, need: NeedTopic) -> None:
        """Wait for fresh metadata that has the topic; `ApiError` if it lacks the partition."""
        check_name(need.topic)
        with self._metadata.awaited(need.topic):
            while True:
                await self._metadata.changed()
                error = self._metadata.last_error
                if isinstance(error, ApiError) and error.error in REFUSALS:
                    raise error
                self.accumulator.check_open()
                topic = self.accumulator.topics.get(need.topic)
                if topic is None:
                    continue
                if topic.error is None and topic.queues:
                    return check_partition(topic, need.partition)
                if topic.error is not None and not topic.error.retriable:
                    raise api_error(topic.error, f"topic {need.topic}")

    # The end; on the loop

    async def flush(self, timeout_s: float | None = None) -> None:
        """Send all added records, and wait until each has succeeded or failed. `TimeoutError`."""
        accumulator = self.accumulator
        async with asyncio.timeout(timeout_s):
            await self._interrupting.added()
            with accumulator.lock:
                batches = [batch for queue in accumulator.active for batch in queue.batches()]
                for batch in batches:
                    batch.is_hurried = True
            self._kick()
            for batch in batches:
                if not batch.is_done:
                    done: asyncio.Future[None] = self.loop.create_future()
                    batch.when_done(partial(make_known, done))
                    await done

    async def flush_last(self, timeout_s: float | None) -> None:
        """`flush`, and drain the connections' write buffers; returns when time is up."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self.flush()
                await self._sender.drain()

    def count_unsettled(self) -> int:
        """How many records are neither acknowledged nor failed. May be called from any thread.

        0 if the lock is not free within a second: a thread that had it may never run again.
        """
        if not self.accumulator.lock.acquire(timeout=_LOCK_S):
            return 0
        try:
            batches = [batch for queue in self.accumulator.active for batch in queue.batches()]
        finally:
            self.accumulator.lock.release()
        counts = (batch.count or len(batch.values) for batch in batches if not batch.is_done)
        return sum(counts) + len(self._interrupting)

    @property
    def is_closed(self) -> bool:
        """Whether a `close` has come to its end: the outcome of every record is known."""
        return self._closed.is_set()

    async def close(self, timeout_s: float | None) -> None:
        """Accept no more, deliver what is there within the time, fail the rest, close everything.

        Records for a topic that has been deleted fail sooner: it is missing for 10 seconds.

        If cancelled, it stops delivering but still closes. A second call waits for the first.
        """
        if self._is_closing:
            await self._closed.wait()
            return
        self._is_closing = True
        try:
            try:
                await self._add_last()
            except Exception:
                await self._deliver(timeout_s)  # earlier records are still delivered
                raise
            await self._deliver(timeout_s)
        finally:
            await self._end()

    def _refuse_new(self) -> None:
        with self.accumulator.lock:
            self.accumulator.is_closed = True
            self.accumulator.plain.clear()

    async def _deliver(self, timeout_s: float | None) -> None:
        """Accept no more, and deliver what is there, as far as time allows."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._interrupting.added()
                self._refuse_new()
                await self.flush_last(None)  # `_end` fails what is left

    async def _end(self) -> None:
        at_exit.note_closed(self)
        self._refuse_new()
        self._interrupting.close()
        self._refreshing.cancel()
        self.meter.stop_telling()
        self._sender.close()
        self._metadata.close()
        if self._identities is not None:
            self._identities.close()
        self._cluster.close()
        try:
            await asyncio.sleep(0)  # requests in flight fail, as their connections are closed
        finally:
            why = "the producer was closed before this was acknowledged"
            self._sender.give_up(ProducerClosed(why))
            self._closed.set()
            if self._interceptors is not None:  # once they are told of the last record
                self.loop.call_soon(self._interceptors.close)
        await asyncio.sleep(0)

    async def _add_last(self) -> None:
        if self._handler is None:
            return
        until_s = self.patience_s()
        for topic, message in self._handler.last_batch_before_close():
            value, key, headers, partition, timestamp = message
            row = self.row(topic, value, key, headers, timestamp)
            for need in self.add_row(topic, row, partition):
                await self.meet(need, until_s)

    def _tell_dequeued(self, batch: ProducerBatch) -> None:
        assert self._handler is not None, "only called with a handler"
        queue = batch.queue
        # Scheduled, not called here: the batch is sent whatever the handler raises.
        self.loop.call_soon(
            self._handler.after_dequeue, queue.topic, queue.partition, list(batch.messages())
        )
