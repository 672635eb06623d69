"""The short way of fetches: one partition, outside of a session, asked for again and again.

That is what librdkafka and aiokafka send while they read one partition here. Who is asked, for how
much, and how the answer looks is known from the first of its kind, which went the long way. What
there is too little of waits, as there, for `min_bytes` or `max_wait_ms`. Measured, Debian's Python
3.11, from frame to answer: 6 µs, instead of 17.

Answers are the long way's byte for byte. What this way has no form for (an error, records that the
disk must be asked for) it leaves to `FetchHandler`, now or when the wait ends.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from kdist.broker.fetch import FetchHandler
from kdist.metrics.broker import RequestMetrics
from kdist.model import TopicPartition
from kdist.network.chunks import Chunk
from kdist.network.connection import Connection, Reply
from kdist.network.sending import copied_if_small
from kdist.protocol.envelope import encode_response
from kdist.protocol.fetch import API, FetchRequest, FetchResponse
from kdist.protocol.fetch_forms import OFFSET, AnswerForm, find_offset, from_offset
from kdist.protocol.headers import RequestHeader, get_fixed_fields
from kdist.replication.delayed import Delayed
from kdist.replication.partition import READ_COMMITTED, Partition
from kdist.storage.reading import Slice, read

_OLDEST_VERSION = 4  # what is older is converted
_FIRST_VERSION_OF_ZSTD = 10
_CONSUMER = -1  # as the replica id
_NO_EPOCH = -1
_NO_SESSION = (0, -1)  # id and epoch
# Of one kind per consumer there are few, and short ones: what has more is not usual, or hostile.
_KINDS_MAX = 1000
_FRAME_BYTES_MAX = 1000
_NS_PER_S = 1_000_000_000


class _Kind(NamedTuple):
    """What fetches have in common. `bytes_max` is what the partition may give."""

    version: int
    key: TopicPartition
    request: FetchRequest
    leader_epoch: int
    bytes_max: int
    bytes_min: int
    form: AnswerForm


class _Found(NamedTuple):
    """What there is for a fetch. `part` is to be sent or released.

    `offsets`: high watermark, last stable offset, log start.
    """

    partition: Partition
    offsets: tuple[int, int, int]
    part: Slice | None
    is_enough: bool


class UsualFetches:
    """Owner: the broker's `Service`."""

    def __init__(
        self, handler: FetchHandler, metrics: RequestMetrics, settle: Callable[[], None]
    ) -> None:
        """`settle` does what was asked for before and waits for the end of the turn."""
        self._handler = handler
        self._settle = settle
        self._partitions: Mapping[tuple[str, int], Partition] = handler.replicas.partitions
        self._waiting = handler.replicas.waiting
        self._find_cold = handler.page_cache.find_cold
        self._now_ns = handler.replicas.directory.around.clock.monotonic_ns
        self._metrics = metrics
        self._kinds: dict[bytes, _Kind] = {}

    # Learning

    def learn(self, frame: memoryview, header: RequestHeader, request: FetchRequest) -> int | None:
        """Where the fetch offset stands, behind the bytes that its like share; None: not usual."""
        if len(frame) > _FRAME_BYTES_MAX or not _is_usual(header.api_version, request):
            return None
        end = find_offset(frame, header, request)
        if end is not None:
            name = _name(frame, end)
            if name not in self._kinds:
                if len(self._kinds) >= _KINDS_MAX:
                    self._kinds.clear()
                self._kinds[name] = self._kind_of(header.api_version, request)
        return end

    def _kind_of(self, version: int, request: FetchRequest) -> _Kind:
        (topic,) = request.topics
        (asked,) = topic.partitions
        bytes_max = min(request.max_bytes, self._handler.bytes_max)
        return _Kind(
            version,
            TopicPartition(topic.topic, asked.partition),
            request,
            asked.current_leader_epoch,
            max(0, min(asked.partition_max_bytes, bytes_max)),
            min(request.min_bytes, bytes_max),
            AnswerForm.of(version, request),
        )

    # Answering

    def take(self, frame: memoryview, known_end: int, connection: Connection) -> bool:
        """Answer or let wait a request whose like was learned; otherwise False. `DiskFailed`."""
        kind = self._kinds.get(_name(frame, known_end))
        if kind is None:
            return False
        started_ns = self._now_ns()
        self._settle()
        (offset,) = OFFSET.unpack_from(frame, known_end)
        found = self.find(kind, offset)
        if found is None:
            return False
        _, _, correlation_id = get_fixed_fields(frame)
        wait_ms = kind.request.max_wait_ms
        if found.is_enough or wait_ms <= 0:
            connection.answer(answer_of(kind, correlation_id, found))
            self.note_answered(started_ns)
        else:
            _release(found)
            fetch = UsualFetch(self, kind, offset, correlation_id, connection, started_ns)
            self._waiting.add(fetch, (found.partition,), wait_ms, connection)
        return True

    def find(self, kind: _Kind, offset: int) -> _Found | None:
        """What there is from `offset` on; None if the long way has to see to it."""
        partition = self._partitions.get(kind.key)
        if (
            partition is None
            or not partition.is_leader
            or 0 <= kind.leader_epoch != partition.leader_epoch
        ):
            return None
        log, bytes_max = partition.log, kind.bytes_max
        start_offset = log.start_offset
        if not start_offset <= offset <= log.end_offset:
            return None
        if kind.version < _FIRST_VERSION_OF_ZSTD and log.settings.compression_type == "zstd":
            return None
        exposed = partition.exposed
        end = exposed[kind.request.isolation_level]
        offsets = (*exposed, start_offset)
        if offset >= end:
            return _Found(partition, offsets, None, kind.bytes_min <= 0)
        cold = self._find_cold(log, offset, bytes_max)
        if cold is not None:
            cold.release()
            return None
        part = read(log, offset, bytes_max, end_offset=end)
        size = 0 if part is None else part.size
        return _Found(partition, offsets, part, size >= kind.bytes_min)

    def note_answered(self, started_ns: int) -> None:
        """Count a request that came then."""
        metrics = self._metrics
        metrics.answered += 1
        metrics.seconds.observe((self._now_ns() - started_ns) / _NS_PER_S)

    def handle_long(self, fetch: UsualFetch) -> None:
        """Answer with what there is now, whatever that is: an error, records that are cold."""
        kind = fetch.kind
        request = from_offset(kind.request, fetch.offset)
        request.max_wait_ms = 0  # it has waited
        self._handler.handle(request, kind.version, fetch.reply, fetch.connection)


class UsualFetch(Delayed):
    """One request. Owner: itself, and `Waiting` while it waits; then it holds no slice."""

    __slots__ = ("_path", "_slot", "_started_ns", "connection", "correlation_id", "kind", "offset")

    def __init__(
        self,
        path: UsualFetches,
        kind: _Kind,
        offset: int,
        correlation_id: int,
        connection: Connection,
        started_ns: int,
    ) -> None:
        self._path = path
        self._slot: Reply = connection.reserve()
        self._started_ns = started_ns
        self.kind = kind
        self.offset = offset
        self.correlation_id = correlation_id
        self.connection = connection

    def attempt(self) -> bool:
        return self._proceed(is_last=False)

    def expire(self) -> None:
        self._proceed(is_last=True)

    def _proceed(self, is_last: bool) -> bool:
        found = self._path.find(self.kind, self.offset)
        if found is None:
            self._path.handle_long(self)
        elif is_last or found.is_enough:
            self._slot.send(answer_of(self.kind, self.correlation_id, found))
            self._path.note_answered(self._started_ns)
        else:
            _release(found)
            return False
        return True

    def reply(self, response: FetchResponse | None) -> None:
        """Send what the long way says."""
        frame = encode_response(API.key, self.kind.version, self.correlation_id, response)
        self._slot.send(frame.chunks())
        self._path.note_answered(self._started_ns)


def answer_of(kind: _Kind, correlation_id: int, found: _Found) -> Sequence[Chunk]:
    """The chunks of the answer; one, if the records are few enough to be copied."""
    _, offsets, part, _ = found
    if part is None:
        return (kind.form.fill(correlation_id, offsets, 0) + kind.form.tail,)
    size = part.size
    head = kind.form.fill(correlation_id, offsets, size)
    copied = copied_if_small(part)
    if copied is None:
        return head, part, kind.form.tail
    return (b"".join((head, copied, kind.form.tail)),)


def _name(frame: memoryview, end: int) -> bytes:
    """All of a request but its correlation id, and the fetch offset that stands at `end`."""
    return b"".join((frame[:4], frame[8:end], frame[end + OFFSET.size :]))


def _is_usual(version: int, request: FetchRequest) -> bool:
    """Whether this way can have a form for it (pure)."""
    topics = request.topics
    return (
        version >= _OLDEST_VERSION
        and len(topics) == 1
        and len(topics[0].partitions) == 1
        and request.replica_id == _CONSUMER
        and (request.session_id, request.session_epoch) == _NO_SESSION
        and request.isolation_level in (0, READ_COMMITTED)
        and topics[0].partitions[0].last_fetched_epoch == _NO_EPOCH
    )


def _release(found: _Found) -> None:
    if found.part is not None:
        found.part.release()
