"""The short way of fetches: one partition, asked for again and again, in a session or outside.

That is what clients send while they read one partition here: librdkafka and aiokafka without a
session, Java's client and kafka-python in one (`usual_session_fetch.py`). Who is asked, for how
much, and how the answer looks is known from the first of its kind, which went the long way. What
there is too little of waits, as there, for `min_bytes` or `max_wait_ms`. Measured, Debian's Python
3.11, from frame to answer: 6 µs, instead of 17; some two thirds of it for who asks as another has.
"""

from __future__ import annotations

from collections.abc import Callable

from kdist.broker.fetch import FetchHandler
from kdist.broker.one_partition import Kind, OneFetch, Reader, answer_of, is_one
from kdist.broker.usual_session_fetch import UsualSessionFetches
from kdist.metrics.broker import RequestMetrics
from kdist.network.connection import Connection
from kdist.protocol.fetch import FetchRequest
from kdist.protocol.fetch_forms import OFFSET, find_offset
from kdist.protocol.headers import RequestHeader, get_correlation_id

_NO_SESSION = (0, -1)  # id and epoch
# Of one kind per consumer there are few, and short ones: what has more is not usual, or hostile.
_KINDS_MAX = 1000
_FRAME_BYTES_MAX = 1000

_Name = tuple[int, bytes]


class UsualFetches:
    """Owner: the broker's `Service`."""

    def __init__(
        self, handler: FetchHandler, metrics: RequestMetrics, settle: Callable[[], None]
    ) -> None:
        """`settle` does what was asked for before and waits for the end of the turn.

        `end_turn` is to be called then.
        """
        self._reader = Reader(handler, metrics, settle)
        self.end_turn = self._reader.end_turn
        self._in_sessions = UsualSessionFetches(self._reader, handler.sessions)
        self._kinds: dict[_Name, Kind] = {}

    def learn(self, frame: memoryview, header: RequestHeader, request: FetchRequest) -> int | None:
        """Where the fetch offset stands, or the epoch of the session; None: not usual."""
        if len(frame) > _FRAME_BYTES_MAX:
            return None
        if request.session_id:
            return self._in_sessions.learn(frame, header, request)
        if (request.session_id, request.session_epoch) != _NO_SESSION or not is_one(
            header.api_version, request
        ):
            return None
        end = find_offset(frame, header, request)
        if end is not None:
            name = _name(frame, end)
            if name not in self._kinds:
                if len(self._kinds) >= _KINDS_MAX:
                    self._kinds.clear()
                bytes_max = self._reader.handler.bytes_max
                self._kinds[name] = Kind.of(header.api_version, request, bytes_max)
        return end

    def take(self, frame: memoryview, known_end: int, connection: Connection) -> bool:
        """Answer or let wait a request whose like was learned; otherwise False. `DiskFailed`."""
        if len(frame) > _FRAME_BYTES_MAX:
            return False  # nothing like it was learned: a produce, say, and not to be copied
        kind = self._kinds.get(_name(frame, known_end))
        if kind is None:
            return self._in_sessions.take(frame, known_end, connection)
        reader = self._reader
        started_ns = reader.begin()
        (offset,) = OFFSET.unpack_from(frame, known_end)
        found = reader.find(kind, offset)
        if found is None:
            return False
        correlation_id = get_correlation_id(frame)
        if found.is_enough or kind.request.max_wait_ms <= 0:
            connection.answer(answer_of(kind, correlation_id, found))
            reader.note_at_once()
        else:
            fetch = OneFetch(reader, kind, offset, correlation_id, connection, started_ns)
            reader.wait(fetch, found)
        return True


def _name(frame: memoryview, end: int) -> _Name:
    """All of a request but its correlation id, and the fetch offset that stands at `end`.

    And `end`: another request may be the same but for what it has at another place.
    """
    whole = frame.tobytes()
    return end, whole[:4] + whole[8:end] + whole[end + OFFSET.size :]
