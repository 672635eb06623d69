"""An event loop: asyncio's own, with a shorter path from a ready socket to its reader.

`before_wait` schedules a callback for when the loop is about to wait again. By then all that was
ready has been read, so gathered work can be processed at once. `call_soon` would do too, but costs
another iteration with another poll: 2 us a request at ten connections.

`when_rung` is `call_soon_threadsafe` for a callback that is scheduled again and again.

`watch` has the selector call a descriptor's callback directly when it is ready. asyncio would make
a list of all that is ready, queue a handle for each and run that in a context: 2 us a request more.
Such a callback must be short: one receive, one send. While nothing else is scheduled the selector
polls again by itself, where asyncio would go through an iteration of its loop.

The functions `ending_ticks`, `ringing` and `watch` do the same on any loop, at that loop's cost.
"""

from __future__ import annotations

import asyncio
import os
import select
import selectors
import sys
from collections import deque
from collections.abc import Callable
from functools import partial
from io import FileIO
from time import monotonic
from typing import Any

READABLE, WRITABLE = select.EPOLLIN, select.EPOLLOUT
OnReady = Callable[[int], None]
"""Called with what a descriptor is ready for: READABLE, WRITABLE, and epoll's error flags."""

_EVENTS_MAX = 256  # per poll: then timers and callbacks get to run
_WAIT_S_MAX = 86400  # per poll: the kernel accepts no more than 24 days
_RING = (1).to_bytes(8, sys.byteorder)  # what adds 1 to an eventfd
_LONE_TICKS = 3  # of one descriptor, which skip the check for latecomers after one in vain
TURN_S = 0.01  # for serving descriptors, and again for what ends ticks, and for callbacks
_Events = list[tuple[selectors.SelectorKey, int]]


class Turn:
    """What happens from one poll to the next, and the longest so far. Owner: the loop.

    Time ends it, not the number of events: after `TURN_S` no further descriptor is served, and no
    further callback runs, before the next poll and the timers that are due. What was passed over
    comes first then, so that none starves. Whatever else can take long asks `is_over` between its
    steps.
    """

    __slots__ = ("began_s", "end_s", "longest_s", "now_s")

    def __init__(self, now_s: Callable[[], float] = monotonic) -> None:
        self.now_s = now_s
        self.began_s = now_s()
        self.end_s = self.began_s + TURN_S
        self.longest_s = 0.0

    def begin(self) -> None:
        """The loop has polled."""
        self.began_s = now_s = self.now_s()
        self.end_s = now_s + TURN_S

    def renew(self) -> None:
        """Another kind of work begins, which gets a time of its own."""
        self.end_s = self.now_s() + TURN_S

    def is_over(self) -> bool:
        """Whether work that can go on later should stop now."""
        return self.now_s() >= self.end_s

    def end(self) -> None:
        """The loop is about to poll again."""
        self.longest_s = max(self.longest_s, self.now_s() - self.began_s)

    def take_longest_s(self) -> float:
        """How long the longest turn took that has ended since the last call."""
        longest_s, self.longest_s = self.longest_s, 0.0
        return longest_s


class _Selector(selectors.EpollSelector):
    """Calls back for watched descriptors by itself; returns all other events to the loop."""

    def __init__(self, turn: Turn) -> None:
        super().__init__()
        self._turn = turn
        # To run before the next wait. Handles pass exceptions to the loop's exception handler.
        self.wanted: list[asyncio.Handle] = []
        self.loop: Any  # set by the loop; Any, since its queues are private to asyncio
        self.serving: asyncio.Handle  # for `serve`; set by the loop, which a handle needs
        self._watched: dict[int, OnReady] = {}
        # The same epoll under a second descriptor: the base class keeps its own object private.
        self._epoll = select.epoll.fromfd(os.dup(self.fileno()))
        self._polled: list[tuple[int, int]] = []
        self._passed_over: list[int] = []  # descriptors that were ready when a turn was over
        self._lone_ticks = 0  # how many more skip the check for latecomers
        self._found: _Events = []

    def watch(self, descriptor: int, events: int, on_ready: OnReady) -> None:
        if not events:
            if self._watched.pop(descriptor, None) is not None:
                self._epoll.unregister(descriptor)
        elif descriptor in self._watched:
            self._epoll.modify(descriptor, events)
        else:
            self._epoll.register(descriptor, events)
            self._watched[descriptor] = on_ready

    def select(self, timeout: float | None = None) -> _Events:
        if self.wanted:
            self._run_wanted()
            timeout = 0  # they may have scheduled something after the loop computed the timeout
        found: _Events = []
        self._found = found
        poll, run_serving, turn = self._epoll.poll, self.serving._run, self._turn
        turn.end()
        while polled := poll(timeout, _EVENTS_MAX):
            turn.began_s = now_s = turn.now_s()  # as `begin`, for each request that comes alone
            turn.end_s = now_s + TURN_S
            self._polled = polled
            run_serving()
            if self.wanted and not found:
                if self._lone_ticks and len(polled) == 1:
                    self._lone_ticks -= 1
                else:
                    self._serve_latecomers(len(polled))
                self._run_wanted()
            if found or (timeout := self._left()) == 0:
                return found
        turn.begin()
        return found

    def _serve_latecomers(self, served: int) -> None:
        """Serve descriptors that became ready meanwhile, up to about as many as are watched.

        Peers answered in one tick send their next requests while the others are read. With this,
        nine of ten connections share a tick instead of six, and a produce costs a fifth less: most
        of a tick's cost is fixed, since between ticks other processes use the core and its caches.
        After a tick with one descriptor alone, others rarely follow, and some next ones skip this.
        """
        served_max = min(len(self._watched) - 1, _EVENTS_MAX)  # without the loop's own eventfd
        while served < served_max and not self._found and not self._turn.is_over():
            self._polled = self._epoll.poll(0, _EVENTS_MAX)
            if not self._polled:
                self._lone_ticks = _LONE_TICKS if served == 1 else 0
                return
            served += len(self._polled)
            self.serving._run()

    def _left(self) -> float | None:
        """Seconds until the next timer; 0 if anything is ready to run, None without a timer."""
        loop = self.loop
        if self.wanted or loop._ready or loop._stopping:
            return 0
        turn, timers = self._turn, loop._scheduled
        now_s = turn.now_s()
        if now_s - turn.began_s > turn.longest_s:  # as `end`
            turn.longest_s = now_s - turn.began_s
        if not timers:
            return None
        left: float = timers[0].when() - now_s
        return 0 if left <= 0 else left if left < _WAIT_S_MAX else _WAIT_S_MAX

    def serve(self) -> None:
        """Call back for all that is ready, until the turn is over.

        The next poll finds the rest again, as it does if one raises.
        """
        turn, watched, polled = self._turn, self._watched, self._polled
        if self._passed_over:
            self._put_first(polled)
        now_s, end_s, has_more = turn.now_s, turn.end_s, len(polled) > 1
        rest = iter(polled)
        for descriptor, events in rest:
            on_ready = watched.get(descriptor)
            if on_ready is not None:
                on_ready(events)
            else:
                self._find(descriptor, events)
            if has_more and now_s() >= end_s:
                self._passed_over += [descriptor for descriptor, _ in rest]
                return

    def _put_first(self, polled: list[tuple[int, int]]) -> None:
        """Put what was passed over first: each poll finds the same ones in the same order."""
        ranks = {descriptor: rank for rank, descriptor in enumerate(self._passed_over)}
        polled.sort(key=lambda each: ranks.get(each[0], len(ranks)))
        for descriptor, _ in polled:
            ranks.pop(descriptor, None)
        # More are ready than one poll finds; others are not watched any more.
        self._passed_over = [each for each in ranks if each in self._watched]

    def _run_wanted(self) -> None:
        handles, self.wanted = iter(self.wanted), []
        try:
            for handle in handles:
                handle._run()
        except BaseException:  # SystemExit or KeyboardInterrupt: the loop may go on
            self.wanted[:0] = handles
            raise

    def _find(self, descriptor: int, events: int) -> None:
        """Add an event of one of the loop's own descriptors, in the base class's form."""
        key = self.get_map().get(descriptor)
        if key is not None:
            is_readable = selectors.EVENT_READ if events & ~WRITABLE else 0
            is_writable = selectors.EVENT_WRITE if events & ~READABLE else 0
            self._found.append((key, (is_readable | is_writable) & key.events))

    def close(self) -> None:
        self._epoll.close()
        super().close()


class _Bell(FileIO):
    """An eventfd. It is closed once nobody refers to it, so not while a thread rings it.

    A lock would not do: a signal handler that interrupts a ring may wait for the loop, which would
    wait for the lock.
    """

    def __del__(self) -> None:
        self.close()


class TickLoop(asyncio.SelectorEventLoop):
    """asyncio's loop for Unix, with `before_wait`, `watch`, and an eventfd to wake it by.

    To ring is to wake the loop up from any thread or signal handler; `_bell` is the eventfd.
    """

    def __init__(self, now_s: Callable[[], float] = monotonic) -> None:
        self.turn = Turn(now_s)
        self._tick_selector = _Selector(self.turn)
        super().__init__(self._tick_selector)
        self._due: deque[asyncio.Handle] = deque()  # what runs this turn, or in a later one
        self._running_due = asyncio.Handle(self._run_due, (), self)
        self._tick_selector.serving = asyncio.Handle(self._tick_selector.serve, (), self)
        self._tick_selector.loop = self
        bell = _Bell(os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC), "r+")
        self._bell: _Bell | None = bell  # None once the loop is closed
        self._rings_heard = 0
        self._rung_after = -1  # how many had been heard before the last one: it is unheard if equal
        self._rung_for: deque[asyncio.Handle] = deque()
        self.watch(bell.fileno(), READABLE, self._bell_rang)

    def before_wait(self, callback: Callable[[], None]) -> Callable[[], None]:
        """A trigger: once it is called, `callback` runs before the loop next waits or polls."""
        handle = asyncio.Handle(callback, (), self)

        def want() -> None:
            self._tick_selector.wanted.append(handle)

        return want

    def when_rung(self, callback: Callable[[], None]) -> Callable[[], None]:
        """A trigger for any thread: once called, `callback` runs soon on the loop's thread."""
        handle = asyncio.Handle(callback, (), self)

        def ring() -> None:
            if self.is_closed():
                raise RuntimeError("the loop is closed")
            self._rung_for.append(handle)
            self._write_to_self()

        return ring

    def _process_events(self, event_list: _Events) -> None:
        """The loop has polled, and will run all that is in `_ready`, and then the timers due."""
        super()._process_events(event_list)  # type: ignore[misc] # private to asyncio
        self.turn.renew()
        ready: deque[asyncio.Handle] = self._ready  # type: ignore[attr-defined] # as above
        if len(ready) > 1:
            due, running = self._due, self._running_due
            for _ in range(len(ready)):  # one at a time: other threads append meanwhile
                handle = ready.popleft()
                if handle is not running:
                    due.append(handle)
            ready.appendleft(running)

    def _run_due(self) -> None:
        due, is_over = self._due, self.turn.is_over
        try:
            while due:
                handle = due.popleft()
                if not handle.cancelled():
                    handle._run()
                    if is_over():
                        break
        finally:
            if due:
                self._ready.append(self._running_due)  # type: ignore[attr-defined] # as above

    def watch(self, descriptor: int, events: int, on_ready: OnReady) -> None:
        """See the function `watch`."""
        self._tick_selector.watch(descriptor, events, on_ready)

    def _write_to_self(self) -> None:
        """Wake the loop up, for what another thread has just put into its queue.

        asyncio sends a byte through a socket pair each time, and receives twice. Here, if a ring is
        still unheard, another is not needed: the loop checks its queue after `_bell_rang`.
        """
        heard = self._rings_heard
        if self._rung_after != heard:
            bell = self._bell  # held, so that its descriptor is not closed before the write
            if bell is not None:
                bell.write(_RING)
            # Only now: what interrupts this thread before it has rung has to ring itself.
            self._rung_after = heard

    def _bell_rang(self, _events: int) -> None:
        assert self._bell is not None, "the loop is not closed"
        self._bell.read(len(_RING))
        self._rings_heard += 1  # after the read, which would otherwise swallow a ring in between
        try:
            for _ in range(len(self._rung_for)):  # handles added meanwhile wait for the next ring
                self._rung_for.popleft()._run()
        finally:
            if self._rung_for:  # added meanwhile, or left by a SystemExit or KeyboardInterrupt
                self._write_to_self()

    def close(self) -> None:
        super().close()
        self._due.clear()
        self._bell = None


def turn_of(loop: asyncio.AbstractEventLoop) -> Turn:
    """The turn of a loop; one that is never over on any other than a `TickLoop`."""
    return loop.turn if isinstance(loop, TickLoop) else Turn(lambda: 0.0)


def ending_ticks(
    loop: asyncio.AbstractEventLoop, callback: Callable[[], None]
) -> Callable[[], object]:
    """A trigger for `callback` once all that is ready now has been read, on any loop."""
    if isinstance(loop, TickLoop):
        return loop.before_wait(callback)
    # Runs in the next iteration, before what that iteration finds ready to read.
    return partial(loop.call_soon, callback)


def ringing(loop: asyncio.AbstractEventLoop, callback: Callable[[], None]) -> Callable[[], object]:
    """A trigger for `callback` soon, from any thread, on any loop; `RuntimeError` if it is closed.

    On a `TickLoop` each call saves `call_soon_threadsafe`'s new handle and loop iteration.
    """
    if isinstance(loop, TickLoop):
        return loop.when_rung(callback)
    return partial(loop.call_soon_threadsafe, callback)


def watch(loop: asyncio.AbstractEventLoop, descriptor: int, events: int, on_ready: OnReady) -> None:
    """Call `on_ready` whenever `descriptor` is ready for `events` (READABLE, WRITABLE); 0: stop.

    A descriptor must always have the same `on_ready`, and must be watched for 0 before it is
    closed. What `on_ready` raises goes to the loop's exception handler.
    """
    if isinstance(loop, TickLoop):
        loop.watch(descriptor, events, on_ready)
        return
    for event, add, remove in (
        (READABLE, loop.add_reader, loop.remove_reader),
        (WRITABLE, loop.add_writer, loop.remove_writer),
    ):
        if events & event:
            add(descriptor, on_ready, event)
        else:
            remove(descriptor)
