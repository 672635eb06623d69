"""The server's side of a connection: requests in, answers out in the order of the requests.

The handler gets each request's frame. It reserves a `ResponseSlot`, to be filled at once or later.
An answer waits for those of earlier requests, and all that are ready at the end of a tick leave in
one piece. No task, future or stream is made for a request.

Nothing more is read from a connection while there is a reason to `hold` it: too many answer bytes
or requests in flight wait (so a peer that sends without reading is stopped), its next requests must
wait for an earlier one, its client has to pause, or others must get their turn. A peer that breaks
the protocol gets its earlier answers and is then disconnected; no other is affected. The tables of
states and reasons are in `connection_state.py`.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol, cast

from kdist.errors import ProtocolError
from kdist.metrics.broker import NetworkMetrics
from kdist.model import ANONYMOUS
from kdist.network.connection_state import (
    CLOSED,
    FINISHING,
    HELD,
    LIMIT,
    OPEN,
    PRODUCES,
    QUOTA,
    TURN,
    Reason,
)
from kdist.network.receiving import NotYet, RequestReceiver
from kdist.network.sending import Sender, release, waiting_size
from kdist.network.socket_transport import PeekingTransport
from kdist.network.tick import Send, Tick
from kdist.network.tls_failed import TlsFailed
from kdist.protocol.frame import Chunk
from kdist.protocol.versions import request_bytes_max
from kdist.runtime.tasks import Tasks
from kdist.security.subjects import ANYBODY, Subject
from kdist.wire.primitives import BUFFERS, Buffer

logger = logging.getLogger(__name__)

_REFUSED_S = 30  # how long a refused connection stays open for the answers to its earlier requests
_THROTTLE_CHECK_S = 1.0  # how often a throttled connection is checked, for the peer may be gone


class Limits(NamedTuple):
    """Limits of one connection: its largest frame, requests in flight, bytes of unsent answers.

    `request_bytes_max` gives the largest frame of an API, by its key, with which a frame begins.
    Answers count with their bytes in memory; a file range counts `sending.RANGE_BYTES`.
    """

    frame_bytes_max: int = 100 << 20
    in_flight_max: int = 1000
    waiting_bytes_max: int = 1 << 20
    request_bytes_max: Callable[[int], int] = request_bytes_max


class Handler(Protocol):
    """Serves the requests of a listener's connections. Called on the loop's thread only."""

    def on_connect(self, connection: Connection) -> None:
        """A connection was admitted, and its TLS handshake, if any, is done."""
        ...

    def on_frame(self, connection: Connection, frame: memoryview) -> bool | None:
        """A whole request, without its size. `frame` is valid until this tick's hooks have run.

        True if it took microseconds for sure; else the clock is asked whether to go on this turn.
        `ProtocolError` closes the connection. After `NotYet` the connection is held, and the frame
        is handed over again, before all later ones. Anything else raised is a bug.
        """
        ...

    def on_disconnect(self, connection: Connection) -> None:
        """The connection is gone. Sending a response that was still due does nothing.

        Not called where `on_connect` was not.
        """
        ...


OnFrame = Callable[["Connection", memoryview], bool | None]
"""`Handler.on_frame`."""


class Connections(Protocol):
    """Admits and counts connections, and holds what they share: the listener."""

    handler: Handler
    tick: Tick
    limits: Limits
    metrics: NetworkMetrics
    loop: asyncio.AbstractEventLoop
    tasks: Tasks

    def admit(self, connection: Connection) -> int:
        """The number of connections ever admitted, including this one; 0 if it is refused."""
        ...

    def forget(self, connection: Connection) -> None:
        """An admitted connection is gone."""
        ...

    def prove(self, connection: Connection) -> None:
        """It is known now who an admitted connection's peer is."""
        ...

    def handshake_failed(self, connection: Connection, error: TlsFailed) -> None:
        """As `forget`, for one that ended in its TLS handshake."""
        ...


class ResponseSlot:
    """One request's place in the order of its connection's answers."""

    __slots__ = ("_connection", "chunks")

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self.chunks: Sequence[Chunk] | None = None

    def send(self, chunks: Sequence[Chunk]) -> None:
        """Answer; called exactly once. File ranges among the chunks are released when sent."""
        assert self.chunks is None, "a request has one answer"
        self.chunks = chunks
        self._connection.response_given(chunks)

    def discard(self) -> None:
        """Give no answer, as to a produce with acks=0."""
        self.send(())


class _ThrottleEnd(NamedTuple):
    """When a throttled connection goes on, and the timer for the next check of it."""

    until_s: float
    timer: asyncio.TimerHandle


class Connection(RequestReceiver):
    """One peer's connection. `context` holds the handler's own state for it.

    CPU time of a small request above a C program's (echo of 100 bytes, `bench_network.py`): 4.6 us
    with ten connections that wait for each answer, 3 with fifty, 0.4 with a hundred requests
    pipelined. With asyncio's own transports it was 8, 6 and 1.3.
    """

    principal = ANONYMOUS
    """Who has proved to be its peer."""
    subject: Subject = ANYBODY
    """Who sends on it. Whoever sets another must reset `context`, which holds for this one."""

    def __init__(self, connections: Connections) -> None:
        limits = connections.limits
        super().__init__(
            connections.tick,
            limits.frame_bytes_max,
            limits.request_bytes_max,
            connections.metrics,
        )
        self.context: Any = None
        self.number = 0  # ascending in the order of admission; 0: not admitted
        self.peer = "an unknown peer"
        self.host = ""
        # Set here, cleared by the listener's idle check: cheaper than reading a clock.
        self.is_active = True
        self._connections = connections
        self._on_frame: OnFrame = connections.handler.on_frame
        self._responses: deque[ResponseSlot | Buffer] = deque()
        self._will_write = False  # whether `begin_writing` will be called when this tick ends
        self.pending_response = b""  # the one that the tick sends by itself (`Tick.will_send`)
        self._end_timer: asyncio.TimerHandle | None = None  # of `finish_soon`
        self._reasons: set[Reason] = set()  # why it is HELD
        self._throttle_end: _ThrottleEnd | None = None  # while it is throttled
        self.pending_produces = 0  # under way; the handler counts them, and has others wait
        self.is_working = False  # whether a task carries out a request; the handler says so
        self._in_flight_max = limits.in_flight_max
        self._waiting_bytes_max = limits.waiting_bytes_max

    # The transport's calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(PeekingTransport, transport)
        address = transport.get_extra_info("peername") or ("", 0)
        self.host = str(address[0])
        self.peer = (
            f"[{self.host}]:{address[1]}" if ":" in self.host else f"{self.host}:{address[1]}"
        )
        self.number = self._connections.admit(self)
        if not self.number:
            self._enter(CLOSED)
            self._transport.abort()
            return
        tasks = self._connections.tasks
        self._sender = Sender(
            self._transport, self._metrics, self._progressed, tasks, self._tick.turn
        )
        if not self._transport.is_handshaking:
            self.handshake_done()

    def handshake_done(self) -> None:
        """As `tls.Admitted`: it may be served."""
        self._connections.handler.on_connect(self)

    def prove(self) -> None:
        """It is known who the peer is, or it need not be: what counts those who are not is told."""
        self._connections.prove(self)

    def get_extra_info(self, name: str) -> Any:
        """What the transport knows, such as "peer_der"."""
        return self._transport.get_extra_info(name)

    def pause_writing(self) -> None:
        self._sender.is_blocked = True

    def resume_writing(self) -> None:
        self._sender.transport_took_all()

    def eof_received(self) -> bool:
        """The peer sends no more requests. Answers that are ready by the tick's end are sent."""
        self._enter(FINISHING)
        self._connections.loop.call_soon(self.close)
        return True

    def connection_lost(self, exc: Exception | None) -> None:
        if self._enter(CLOSED):
            self._release_all()
        elif not self.number:
            return
        if self._end_timer is not None:
            self._end_timer.cancel()  # it would keep this connection alive
        self._forget_throttle()
        self._connections.forget(self)
        if not self._transport.is_handshaking:
            self._connections.handler.on_disconnect(self)
        elif isinstance(exc, TlsFailed):
            self._connections.handshake_failed(self, exc)
        del self._sender  # a reference cycle: the two would wait for the garbage collector

    # Requests

    @property
    def handler(self) -> Handler:
        """The listener's. It may have handed over what comes next (`take_frames`)."""
        return self._connections.handler

    def take_frames(
        self,
        on_frame: OnFrame,
        frame_bytes_max: int | None = None,
    ) -> None:
        """Hand frames to `on_frame` from the next on, of any API and up to that many bytes.

        Without a number the listener's limits hold.
        """
        self._on_frame = on_frame
        if frame_bytes_max is None:
            limits = self._connections.limits
            self._limit_frames(limits.frame_bytes_max, limits.request_bytes_max)
        else:
            self._limit_frames(frame_bytes_max, None)

    def frame_received(self, frame: memoryview) -> None:
        self.is_active = True
        try:
            is_short = self._on_frame(self, frame)
        except NotYet as wait:
            self.hold(wait.reason)
            raise
        except OSError as error:  # asyncio would take it for a lost connection and say nothing
            raise RuntimeError(f"handling a request of {self.peer} failed") from error
        if (
            len(self._responses) >= self._in_flight_max
            or self._sender.waiting_bytes >= self._waiting_bytes_max
        ):
            self._hold_for_limit()
        if not is_short and self._tick.turn.is_over():
            self.hold(TURN)
            self._connections.loop.call_soon(self._resume)

    def frame_refused(self, error: ProtocolError) -> None:
        logger.warning("closing the connection of %s: %s", self.peer, error)
        self._metrics.failed_connections += 1
        self.finish_soon()  # earlier requests were carried out or soon will be, and get an answer

    def hold(self, reason: Reason) -> None:
        """Hand over no requests until this reason, and any other, is gone."""
        self._reasons.add(reason)
        if self._enter(HELD):
            self._transport.pause_reading()

    def _hold_for_limit(self) -> None:
        self._metrics.held_connections += 1
        self.hold(LIMIT)

    def _is_full(self) -> bool:
        return len(self._responses) >= self._in_flight_max or not self.has_room

    @property
    def has_room(self) -> bool:
        """Whether an answer that takes memory may be made: the peer is there, and reads."""
        return self.state is not CLOSED and self._sender.waiting_bytes < self._waiting_bytes_max

    def end_hold(self, reason: Reason) -> None:
        """The reason is gone, if it was one. After the last, requests are handed over again."""
        reasons = self._reasons
        if reason in reasons:
            reasons.remove(reason)
            if not reasons:
                # Not now: a tick is ending, and frames handed over from here belong to the next.
                self._connections.loop.call_soon(self._resume)

    def _resume(self) -> None:
        """Hand over the frames that were received before it was held, then read on."""
        self._reasons.discard(TURN)
        if self._reasons or self.state is not HELD:
            return
        if self._is_full():  # by answers that were given meanwhile
            self._hold_for_limit()
        elif self._enter(OPEN):
            self.find_kept_frames()
            if self.state is OPEN:
                self._transport.resume_reading()

    def end_pending_produce(self) -> None:
        """A produce is done. After the last, a request that waits for it goes on."""
        self.pending_produces -= 1
        if not self.pending_produces:
            self.end_hold(PRODUCES)

    def throttle(self, seconds: float) -> bool:
        """Hand over no requests for so long. Answers are sent, and the peer's end is noticed.

        False if it hands over none any more.
        """
        if self.state in (FINISHING, CLOSED):
            return False
        until_s = self._connections.loop.time() + seconds
        if self._throttle_end is not None:
            until_s = max(until_s, self._throttle_end.until_s)
        self._await_throttle_end(until_s)
        self.hold(QUOTA)
        return True

    def _await_throttle_end(self, until_s: float) -> None:
        self._forget_throttle()
        loop = self._connections.loop
        check_s = min(loop.time() + _THROTTLE_CHECK_S, until_s)
        self._throttle_end = _ThrottleEnd(
            until_s, loop.call_at(check_s, self._check_throttle, until_s)
        )

    def _check_throttle(self, until_s: float) -> None:
        self.is_active = True  # it would send if it were let
        if self._connections.loop.time() >= until_s:
            self.end_throttle()
        elif (
            self._reasons <= {QUOTA, LIMIT} and self._own is None and self._transport.is_peer_gone()
        ):
            self.eof_received()
        else:
            self._await_throttle_end(until_s)

    def end_throttle(self) -> None:
        """Go on at once."""
        self._forget_throttle()
        self.end_hold(QUOTA)

    def _forget_throttle(self) -> None:
        if self._throttle_end is not None:
            self._throttle_end.timer.cancel()
            self._throttle_end = None

    # Answers

    def reserve(self) -> ResponseSlot:
        """Reserve the place for the answer to the frame that is being handled."""
        if self.pending_response:
            self._queue_pending_response()
        slot = ResponseSlot(self)
        self._responses.append(slot)
        return slot

    def answer_at_once(self, data: Buffer) -> None:
        """As `reserve().send((data,))`, but cheaper: no `ResponseSlot` is made.

        If no other answer waits, it becomes the `pending_response`, which the tick sends by itself,
        unless another answer follows before the tick ends.
        """
        if not (self._responses or self.pending_response) and self.state is OPEN:
            sender = self._sender
            send = sender.socket_send
            if send is not None and not sender.waiting_bytes:
                self._metrics.sent_bytes += len(data)
                self.pending_response = bytes(data)
                self._tick.will_send(self, send)
                return
        if self.state is CLOSED:
            return
        if self.pending_response:
            self._queue_pending_response()
        self._queue(data)

    def _queue_pending_response(self) -> None:
        """Withdraw it from the tick and queue it, so that other answers follow it."""
        response, self.pending_response = self.pending_response, b""
        self._metrics.sent_bytes -= len(response)
        self._queue(response)

    def _queue(self, data: Buffer) -> None:
        self._responses.append(data)
        self._sender.waiting_bytes += len(data)
        if not self._will_write:
            self._will_write = True
            self._tick.will_write(self)

    def answer(self, chunks: Sequence[Chunk]) -> None:
        """As `reserve().send(chunks)`."""
        if len(chunks) == 1 and isinstance(chunks[0], BUFFERS):
            self.answer_at_once(chunks[0])
        else:
            self.reserve().send(chunks)

    def response_given(self, chunks: Sequence[Chunk]) -> None:
        """A slot has its chunks. They are sent once all earlier slots have theirs."""
        if self.state is CLOSED:
            release(chunks)
            return
        self._sender.waiting_bytes += waiting_size(chunks)
        if not self._will_write:
            self._will_write = True
            self._tick.will_write(self)

    def begin_writing(self) -> tuple[Send, Buffer] | None:
        """As `TickWriter.begin_writing`: answers that are plain bytes; others are sent at once."""
        self._will_write = False
        if self.state is CLOSED:
            return None
        responses, sender = self._responses, self._sender
        if (send := sender.direct_send()) is not None and ResponseSlot not in map(type, responses):
            data = responses[0] if len(responses) == 1 else b"".join(cast(deque[Buffer], responses))
            responses.clear()
            return send, cast(Buffer, data)
        if (
            send is not None
            and len(responses) == 1
            and (chunks := cast(ResponseSlot, responses[0]).chunks)
        ):
            responses.clear()
            sender.send_answer(chunks)
        else:
            self._put_answers()
            sender.write()
        if self.state is not OPEN:
            self._after_writing()
        return None

    def end_writing(self, data: Buffer, sent: int | OSError) -> None:
        """As `TickWriter.end_writing`."""
        size, sender = len(data), self._sender
        if sent == size:
            sender.waiting_bytes -= size
            self._metrics.sent_bytes += size
        else:
            sender.sent_in_part(data, sent)
        if self.state is not OPEN:
            self._after_writing()

    def sent_in_part(self, data: Buffer, sent: int | OSError) -> None:
        """As `TickWriter.sent_in_part`. The whole response was counted as sent: take that back."""
        self._metrics.sent_bytes -= len(data)
        self._sender.waiting_bytes += len(data)
        self._sender.sent_in_part(data, sent)

    def _put_answers(self) -> None:
        responses, sender = self._responses, self._sender
        while responses:
            response = responses[0]
            if not isinstance(response, ResponseSlot):
                sender.put_bytes(response)
            elif response.chunks is not None:
                sender.put(response.chunks)
            else:
                break
            responses.popleft()

    def _progressed(self) -> None:
        """The kernel has taken more of the answers."""
        self.is_active = True
        self._after_writing()

    def _after_writing(self) -> None:
        sender = self._sender
        if self.state is HELD:
            if not self._is_full():
                self.end_hold(LIMIT)
        elif self.state is FINISHING and not (self._responses or sender.has_waiting):
            self.close()

    # The end

    @property
    def is_waiting(self) -> bool:
        """Whether the peer waits for an answer of ours, and is not behind in reading."""
        return bool(self.pending_response or self._responses) and not self._sender.is_blocked

    def finish(self) -> None:
        """Take no more requests, and close once all requests taken are answered."""
        if self._enter(FINISHING):
            self._transport.pause_reading()
            self.drop_received()
            self.response_given(())  # the tick writes and then closes; its hooks may answer before

    def finish_soon(self) -> None:
        """As `finish`, but close after half a minute, answered or not."""
        self.finish()
        if self._end_timer is None and self.state is FINISHING:
            # A fetch may wait for days, and with reading paused the peer's end goes unnoticed.
            self._end_timer = self._connections.loop.call_later(_REFUSED_S, self.abort)

    def close(self) -> None:
        """Close now. Bytes that the transport holds are still sent, queued answers are dropped."""
        if self._enter(CLOSED):
            self._release_all()
            self._transport.close()

    def abort(self) -> None:
        """Close now and send nothing more."""
        self.close()
        self._transport.abort()

    def _release_all(self) -> None:
        self._metrics.sent_bytes -= len(self.pending_response)
        self.pending_response = b""
        self.drop_received()
        self._sender.close()
        for response in self._responses:
            if isinstance(response, ResponseSlot) and response.chunks is not None:
                release(response.chunks)
        self._responses.clear()
