"""The fast path of Fetch in a session of one partition (KIP-227).

The client increments the session's epoch with each request, and names the partition only when its
position has moved, so requests have two shapes, which are alike up to the epoch:

    header, limits, session id | epoch | no topics, nothing forgotten, rack
    header, limits, session id | epoch | topic, partition ... | offset | ... rack

The answer contains the partition only if it has something new. Sessions of several partitions take
the general path, where four partitions cost half as much again as one, and each partition without
news less than a microsecond. Measured with Debian's Python 3.11, from frame to answer: 10 to 12 µs
instead of 22 to 25.
"""

from __future__ import annotations

import struct
from dataclasses import replace
from typing import Any, NamedTuple

from kdist.broker.fast_path.one_partition import (
    Fetched,
    FetchTemplate,
    OneFetch,
    Reader,
    answer_of,
    is_one,
    release,
)
from kdist.broker.fetch_sessions import CachedPartition, Context, FetchSessions, Session
from kdist.network.chunks import Chunk
from kdist.network.connection import Connection
from kdist.protocol.envelope import encode_request, encode_response
from kdist.protocol.fetch import FetchPartition, FetchRequest, FetchResponse
from kdist.protocol.fetch_forms import OFFSET, difference, from_offset
from kdist.protocol.framing import SIZE_BYTES
from kdist.protocol.headers import RequestHeader, get_correlation_id

_EPOCH = struct.Struct(">i")
_CORRELATION_ID = struct.Struct(">i")


class SessionFetchTemplate(NamedTuple):
    """What the fetches of one session share.

    `one` is for a fetch that names the partition, with the limits in `asked`. `unnamed` is what
    follows the epoch in a request that does not name it; in one that does, `before` and `after` are
    what surrounds the fetch offset. `nothing` is the answer without news.
    """

    one: FetchTemplate
    asked: FetchPartition
    unnamed: bytes
    before: bytes
    after: bytes
    nothing: bytes

    def offset_in(self, rest: bytes, cached: CachedPartition) -> int | None:
        """The fetch offset in `rest`, the bytes after the epoch; None if it is another request."""
        if cached.key != self.one.key or cached.topic_id is not self.one.topic_id:
            return None
        asked, own = cached.asked, self.asked
        if rest == self.unnamed:
            is_own = (
                asked.partition_max_bytes == own.partition_max_bytes
                and asked.current_leader_epoch == own.current_leader_epoch
                and asked.last_fetched_epoch == own.last_fetched_epoch
            )
            return asked.fetch_offset if is_own else None
        place = len(self.before)
        if rest.startswith(self.before) and rest[place + OFFSET.size :] == self.after:
            offset: int = OFFSET.unpack_from(rest, place)[0]
            return offset
        return None


class SessionFetchFastPath:
    """Owner: `FetchFastPath`."""

    def __init__(self, reader: Reader, sessions: FetchSessions) -> None:
        self._reader = reader
        self._sessions = sessions

    def add(
        self,
        templates: dict[Any, Any],
        listener: str,
        frame: memoryview,
        header: RequestHeader,
        request: FetchRequest,
    ) -> int | None:
        """Return the position of the session epoch in `frame`; None if the request is not usual."""
        cached = self._sessions.only_partition(request.session_id)
        if cached is None or request.session_epoch <= 0 or request.forgotten_topics_data:
            return None
        unnamed, named = replace(request, topics=[]), request
        if not request.topics:
            named = replace(request, topics=[cached.named()])
        if not is_one(header.api_version, named):
            return None
        if encode_request(header, request)[SIZE_BYTES:] != frame:
            return None  # encoded differently than our codec does, so positions may differ
        epochs = (replace(request, session_epoch=epoch) for epoch in (0, -1))
        epoch_at = difference(*(encode_request(header, each) for each in epochs))[0] - SIZE_BYTES
        version, bytes_max = header.api_version, self._reader.handler.bytes_max
        one = FetchTemplate.of(version, listener, cached, named, bytes_max)
        template = _template_of(header, one, unnamed, SIZE_BYTES + epoch_at + _EPOCH.size)
        templates[_name(frame, epoch_at)] = template
        return epoch_at

    def try_handle(
        self, frame: memoryview, epoch_at: int, templates: dict[Any, Any], connection: Connection
    ) -> bool:
        """As `FetchFastPath.try_handle`."""
        template: SessionFetchTemplate | None = templates.get(_name(frame, epoch_at))
        session = None if template is None else self._sessions.get(template.one.request.session_id)
        rest = bytes(frame[epoch_at + _EPOCH.size :])
        if template is None or session is None or not rest or len(session.partitions) != 1:
            return False
        (cached,) = session.partitions.values()
        if session.epoch != _EPOCH.unpack_from(frame, epoch_at)[0]:
            return False
        offset = template.offset_in(rest, cached)
        if offset is None:
            return False
        reader = self._reader
        started_ns = reader.begin()
        found = reader.find(template.one, offset)
        if found is None:
            return False
        if rest != template.unnamed:
            cached.asked = _asked_from(template.asked, offset)
            cached.mark_dirty()
        if session.watchers:
            reader.overtake(session)
        elif cached.source is not None:
            # It is read at each request, and need not hear of changes.
            cached.depend_on(None)
            cached.mark_dirty()
        self._sessions.go_on(session)
        correlation_id = get_correlation_id(frame)
        if found.is_enough or template.one.request.max_wait_ms <= 0:
            connection.answer(_answer_of(template, cached, correlation_id, found))
            reader.note_at_once()
        else:
            fetch = _SessionFetch(
                reader, template.one, offset, correlation_id, connection, started_ns
            )
            fetch.join(template, session, cached)
            reader.wait(fetch, found, session)
        return True


class _SessionFetch(OneFetch):
    """A waiting fetch in a session. Once a later request overtakes it, it is answered an error."""

    __slots__ = ("_cached", "_epoch", "_session", "_session_template")

    def join(
        self, template: SessionFetchTemplate, session: Session, cached: CachedPartition
    ) -> None:
        """Say which session it belongs to."""
        self._session_template = template
        self._session = session
        self._cached = cached
        self._epoch = session.epoch

    def attempt(self) -> bool:
        return self._proceed(is_last=self._session.epoch != self._epoch)

    def _answer(self, found: Fetched) -> None:
        if self._session.epoch != self._epoch:  # the client has gone on without this answer
            release(found)
            self._handle_long()
        else:
            self._send(_answer_of(self._session_template, self._cached, self.correlation_id, found))

    def _handle_long(self) -> None:
        request, handler = self._request(), self._reader.handler
        context = Context([], self._session, self._epoch)
        handler.go_on(request, self, context)


def _answer_of(
    template: SessionFetchTemplate, cached: CachedPartition, correlation_id: int, found: Fetched
) -> tuple[Chunk, ...]:
    high_watermark, _, start_offset = found.offsets
    if not found.has_records and cached.was_told(high_watermark, start_offset):
        head = template.nothing[:SIZE_BYTES] + _CORRELATION_ID.pack(correlation_id)
        return (head + template.nothing[len(head) :],)
    cached.high_watermark, cached.log_start_offset = high_watermark, start_offset
    return tuple(answer_of(template.one, correlation_id, found))


def _asked_from(asked: FetchPartition, offset: int) -> FetchPartition:
    """A copy with another fetch offset, made per request: `replace` takes four times as long."""
    return FetchPartition(
        partition=asked.partition,
        current_leader_epoch=asked.current_leader_epoch,
        fetch_offset=offset,
        last_fetched_epoch=asked.last_fetched_epoch,
        log_start_offset=asked.log_start_offset,
        replica_directory_id=asked.replica_directory_id,
        partition_max_bytes=asked.partition_max_bytes,
    )


def _template_of(
    header: RequestHeader, one: FetchTemplate, unnamed: FetchRequest, rest_at: int
) -> SessionFetchTemplate:
    """For requests like these. The frames of the two shapes differ from `rest_at` on."""
    named = one.request
    zeros, ones = (encode_request(header, from_offset(named, each)) for each in (0, -1))
    start, end = difference(zeros, ones)
    response = FetchResponse(session_id=named.session_id, responses=[])
    return SessionFetchTemplate(
        one=one,
        asked=named.topics[0].partitions[0],
        unnamed=bytes(encode_request(header, unnamed)[rest_at:]),
        before=bytes(zeros[rest_at:start]),
        after=bytes(zeros[end:]),
        nothing=bytes(encode_response(header.api_version, 0, response)),
    )


def _name(frame: memoryview, epoch_at: int) -> bytes:
    """What precedes the epoch, without the correlation id."""
    return b"".join((frame[:4], frame[8:epoch_at]))
