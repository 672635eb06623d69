"""Reads the records for a fetch of one partition and builds its answer, for Fetch's fast paths.

Both fast paths, with and without a session, read and wait like this. Answers equal those of the
general path byte for byte. Whatever has no prepared answer here (an error, records that are not in
the page cache) is passed to `FetchHandler`, at once or when the wait ends.
"""

from __future__ import annotations

import struct
import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from kdist.broker.crashes import DROPPED, Crashes
from kdist.broker.fetch_sessions import CachedPartition
from kdist.broker.handlers.fetch import FIRST_VERSION_OF_ZSTD, FetchHandler
from kdist.broker.handlers.fetch_checks import Read, bytes_wanted, is_enough
from kdist.errors import ApiError
from kdist.metrics.broker import RequestMetrics
from kdist.model import NO_EPOCH, TopicPartition
from kdist.network.connection import Connection, ResponseSlot
from kdist.network.sending import copied_if_small
from kdist.protocol.fetch import API, CONSUMER, FetchRequest, FetchResponse
from kdist.protocol.fetch_forms import AnswerForm, from_offset
from kdist.protocol.frame import SIZE_BYTES, Chunk, RequestHeader, encode_response
from kdist.replication.delayed import DelayedOperation, Watched
from kdist.replication.leadership import Leading
from kdist.replication.partition import READ_COMMITTED, Partition
from kdist.storage.reading import Slice

_OLDEST_VERSION = 4  # what is older is converted
_NONE_READ: tuple[Read, ...] = ()
_NS_PER_S = 1_000_000_000
_CORRELATION_ID = struct.Struct(">i")
_AFTER_ID = SIZE_BYTES + _CORRELATION_ID.size

Offsets = tuple[int, int, int]
CacheKey = tuple[Partition, Leading, int, Offsets]
"""Partition, its role, fetch offset, and the partition's offsets: what determines an answer."""


class CachedResponse:
    """A cache of one: the newest small answer to fetches of a template, and what determined it.

    Consumers at the end of the same partition send the same fetch and are woken together: the first
    answer is built, and copied for the others at two thirds of the cost. Offsets alone would not
    identify it: a re-created topic, or a log truncated and written by a new leader, can reach the
    same offsets with other records.
    """

    __slots__ = ("fetched", "is_forgotten", "key")

    def __init__(self) -> None:
        self.is_forgotten = False
        """Whether its template is: who waits by it may have lost the right since."""
        self.key: CacheKey | None = None
        self.fetched: Fetched
        """The result of that fetch, with its `answer`."""


class FetchTemplate(NamedTuple):
    """What repeated fetches of one partition share.

    `bytes_max`: the most bytes of records; `wanted`: how many are enough.

    `topic_id` is the one that they name, None if they name the topic.
    """

    version: int
    listener: str
    key: TopicPartition
    topic_id: uuid.UUID | None
    request: FetchRequest
    leader_epoch: int
    bytes_max: int
    wanted: int
    form: AnswerForm
    cached: CachedResponse

    @classmethod
    def of(
        cls,
        version: int,
        listener: str,
        cached: CachedPartition,
        request: FetchRequest,
        fetch_bytes_max: int,
    ) -> FetchTemplate:
        """The template of `request`, which names only `cached`.

        `fetch_bytes_max` is the broker's limit.
        """
        (topic,) = request.topics
        (asked,) = topic.partitions
        bytes_max = min(request.max_bytes, fetch_bytes_max)
        return cls(
            version,
            listener,
            cached.key,
            cached.topic_id,
            request,
            asked.current_leader_epoch,
            max(0, min(asked.partition_max_bytes, bytes_max)),
            bytes_wanted(request, bytes_max),
            AnswerForm.of(version, request),
            CachedResponse(),
        )


class Fetched(NamedTuple):
    """What a fetch found: a slice, which must be sent or released, or a finished `answer` to copy.

    `offsets`: high watermark, last stable offset, log start offset.
    """

    partition: Partition
    offsets: Offsets
    key: CacheKey
    part: Slice | None
    is_enough: bool
    answer: bytes = b""

    @property
    def has_records(self) -> bool:
        return self.part is not None or bool(self.answer)


class Reader:
    """Owner: `FetchFastPath`."""

    def __init__(
        self,
        handler: FetchHandler,
        metrics: RequestMetrics,
        flush: Callable[[], None],
        crashes: Crashes,
    ) -> None:
        """`flush` carries out earlier requests that are queued for the end of the tick.

        The owner must call `end_tick` at that end.
        """
        self.handler = handler
        self.crashes = crashes
        self._flush = flush
        self.now_ns = handler.replicas.directory.context.clock.monotonic_ns
        self._partitions: Mapping[tuple[str, int], Partition] = handler.replicas.partitions
        self._waiting = handler.replicas.delayed
        self._read = handler.page_cache.read
        self._metrics = metrics
        self._answered = 0  # how many fetches were answered at once in this tick
        self._started_ns = 0  # when the first of them came

    def find(self, template: FetchTemplate, offset: int) -> Fetched | None:
        """What a fetch from `offset` finds; None if it has to take the general path."""
        partition, topic_id = self._partitions.get(template.key), template.topic_id
        if partition is None or (
            topic_id is not None and topic_id.int != partition.topic_id.int
        ):  # by their numbers, in a third of the time
            return None
        role = partition.role
        if not isinstance(role, Leading) or 0 <= template.leader_epoch != role.epoch:
            return None
        log, bytes_max = partition.log, template.bytes_max
        start_offset = log.start_offset
        if not start_offset <= offset <= log.end_offset:
            return None
        if template.version < FIRST_VERSION_OF_ZSTD and log.settings.compression_type == "zstd":
            return None
        # The prepared answer has no room for aborted transactions. Once kdist has transactions,
        # READ_COMMITTED fetches that meet an aborted one must return None here.
        snapshot = partition.offset_snapshot
        end = snapshot[template.request.isolation_level]
        offsets = (*snapshot, start_offset)
        key, cached = (partition, role, offset, offsets), template.cached
        if key == cached.key:
            return cached.fetched
        part: Slice | None = None
        size, reads = 0, _NONE_READ
        if offset < end:
            try:
                part, is_cold = self._read(log, offset, bytes_max, end)
            except ApiError:  # a damaged batch, no descriptor left: the general path answers it
                return None
            if part is not None:
                if is_cold:
                    part.release()
                    return None
                size, reads = part.size, ((log, part, end),)
        return Fetched(partition, offsets, key, part, is_enough(size, template.wanted, reads))

    def begin(self) -> int:
        """Carry out earlier requests; return when the first of this tick's fetches began."""
        self._flush()
        if not self._answered:
            self._started_ns = self.now_ns()
        return self._started_ns

    def note_at_once(self) -> None:
        """Have `end_tick` count a request that was answered at once."""
        self._answered += 1

    def end_tick(self) -> None:
        """Count the fetches answered at once in this tick, with the time that they took."""
        if self._answered:
            count, self._answered = self._answered, 0
            self.note_answered(self._started_ns, count)

    def note_answered(self, started_ns: int, count: int = 1) -> None:
        """Count requests that came at `started_ns`, and observe the time that they took."""
        metrics = self._metrics
        metrics.answered += count
        metrics.seconds.observe((self.now_ns() - started_ns) / _NS_PER_S, count)

    def overtake(self, session: Watched) -> None:
        """Have the session's waiting requests end with this tick: a later one has come."""
        self._waiting.changed(session)

    def wait(self, fetch: OneFetch, found: Fetched, *session: Watched) -> None:
        """Have the fetch wait for more than was found, or to be overtaken in its session."""
        release(found)
        wait_ms = fetch.template.request.max_wait_ms
        self._waiting.add(fetch, (found.partition, *session), wait_ms, fetch.connection)


class OneFetch(DelayedOperation):
    """A waiting fetch. Owner: itself, and `DelayedOperations`. It holds no slice while it waits.

    For the general path it is a `Call`.
    """

    __slots__ = (
        "_reader",
        "_slot",
        "_started_ns",
        "connection",
        "correlation_id",
        "offset",
        "template",
    )

    def __init__(
        self,
        reader: Reader,
        template: FetchTemplate,
        offset: int,
        correlation_id: int,
        connection: Connection,
        started_ns: int,
    ) -> None:
        self._reader = reader
        self._slot: ResponseSlot = connection.reserve()
        self._started_ns = started_ns
        self.template = template
        self.offset = offset
        self.correlation_id = correlation_id
        self.connection = connection

    def attempt(self) -> bool:
        return self._proceed(is_last=False)

    def expire(self) -> None:
        self._proceed(is_last=True)

    def _proceed(self, is_last: bool) -> bool:
        try:
            found = self._reader.find(self.template, self.offset)
            if found is None:
                self._handle_long()
            elif not (is_last or found.is_enough):
                release(found)
                return False
            elif self.template.cached.is_forgotten:
                release(found)
                self._handle_long()
            else:
                self._answer(found)
        except Exception as error:  # noqa: BLE001 - `Crashes` says what it costs
            self.crash(error)
        return True

    def _answer(self, found: Fetched) -> None:
        self._send(answer_of(self.template, self.correlation_id, found))

    def _send(self, chunks: Sequence[Chunk]) -> None:
        self._slot.send(chunks)
        self._reader.note_answered(self._started_ns)

    def _request(self) -> FetchRequest:
        """The request for the general path; it has waited already, so it must not wait again."""
        request = from_offset(self.template.request, self.offset)
        request.max_wait_ms = 0
        return request

    def _handle_long(self) -> None:
        """Have the general path answer: with an error, or with records read from the disk."""
        handler = self._reader.handler
        handler.handle(self._request(), self)

    @property
    def version(self) -> int:
        """The request's."""
        return self.template.version

    @property
    def listener(self) -> str:
        """As `dispatch.GeneralCall.listener`."""
        return self.template.listener

    def answer(self, response: FetchResponse) -> None:
        """Send the general path's response."""
        frame = encode_response(self.version, self.correlation_id, response)
        self._send(frame.chunks())

    def crash(self, error: BaseException) -> None:
        """As `dispatch.GeneralCall.crash`."""
        header = RequestHeader(API.key, self.version, self.correlation_id, None)
        self._reader.crashes.refuse(error, header, self._slot, self.connection)
        self._slot = DROPPED


def answer_of(template: FetchTemplate, correlation_id: int, found: Fetched) -> Sequence[Chunk]:
    """The chunks of the answer: a single one if the records are few enough to be copied."""
    partition, offsets, key, part, is_enough, known = found
    if known:
        return (known[:SIZE_BYTES] + _CORRELATION_ID.pack(correlation_id) + known[_AFTER_ID:],)
    if part is None:
        return (template.form.fill(correlation_id, offsets, 0) + template.form.tail,)
    size = part.size
    head = template.form.fill(correlation_id, offsets, size)
    copied = copied_if_small(part)
    if copied is None:
        return head, part, template.form.tail
    answer, cached = b"".join((head, copied, template.form.tail)), template.cached
    cached.key = key
    cached.fetched = Fetched(partition, offsets, key, None, is_enough, answer)
    return (answer,)


def is_one(version: int, request: FetchRequest) -> bool:
    """Whether this is a consumer's fetch of one partition with a prepared answer (pure)."""
    topics = request.topics
    return (
        version >= _OLDEST_VERSION
        and len(topics) == 1
        and len(topics[0].partitions) == 1
        and request.follower_id == CONSUMER
        and request.isolation_level in (0, READ_COMMITTED)
        and topics[0].partitions[0].last_fetched_epoch == NO_EPOCH
    )


def release(found: Fetched) -> None:
    """Release the slice that was found, if any."""
    if found.part is not None:
        found.part.release()
