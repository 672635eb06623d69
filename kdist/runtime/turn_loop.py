"""An event loop: asyncio's own, with a shorter way from a socket to who reads it.

`before_wait` tells when the loop is about to wait. That is the moment when all that was ready has
been read: who gathers work does it then. `call_soon` would do as well, but costs another round of
the loop with another look at the sockets: 2 us a request at ten connections.

`when_rung` is `call_soon_threadsafe` for what is called again and again.

`watch` calls who waits for a descriptor right where the selector finds it ready. asyncio would make
a list of what is ready, put a handle of each into its queue and run that in a context: 2 us a
request more. Whoever is watched for must do little and come back: one receive, one send. As long as
nothing else happens the selector waits again by itself, where asyncio would go round its loop.

`ending_turns`, `ringing` and `watch` below do the same on any loop, in that loop's own way.
"""

from __future__ import annotations

import asyncio
import os
import select
import selectors
import sys
import threading
from collections import deque
from collections.abc import Callable
from functools import partial
from io import FileIO
from typing import Any

READABLE, WRITABLE = select.EPOLLIN, select.EPOLLOUT
OnReady = Callable[[int], None]
"""Told what a descriptor is ready for: READABLE, WRITABLE, and the kernel's own flags of errors."""

_EVENTS_MAX = 256  # for one round: then timers and callbacks have their turn
_WAIT_S_MAX = 86400  # at a time: the kernel takes no more than 24 days
_RING = (1).to_bytes(8, sys.byteorder)  # an eventfd's unit
_LONE_TURNS = 3  # in which nobody is looked for who comes late, after one that nobody else was in
_Events = list[tuple[selectors.SelectorKey, int]]


class _Selector(selectors.EpollSelector):
    """Gives the loop its own events; those that are watched for it deals with itself."""

    def __init__(self) -> None:
        super().__init__()
        # Handles, since they run as the loop runs them: an exception goes to its handler.
        self.wanted: list[asyncio.Handle] = []
        self.loop: Any  # this selector's; its queues are asyncio's own, hence any
        self.serving: asyncio.Handle  # `serve`; there is no loop yet to make it for
        self._watched: dict[int, OnReady] = {}
        # The same epoll under a second descriptor: the base class keeps its object to itself.
        self._epoll = select.epoll.fromfd(os.dup(self.fileno()))
        self._polled: list[tuple[int, int]] = []
        self._lone_turns = 0  # that are left
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
            timeout = 0  # they may have called for something that the loop does not know of yet
        found: _Events = []
        self._found = found
        poll, run_serving = self._epoll.poll, self.serving._run
        while polled := poll(timeout, _EVENTS_MAX):
            self._polled = polled
            run_serving()
            if self.wanted and not found:
                self._serve_latecomers(len(polled))
                self._run_wanted()
            if found or (timeout := self._left()) == 0:
                break
        return found

    def _serve_latecomers(self, served: int) -> None:
        """Serve who has become ready meanwhile, until all have been, counted roughly.

        Who was answered in one turn asks again while the others are read in the next. Of ten
        connections nine share a turn so, where six did, and a produce costs a fifth less: most of a
        turn's cost is its own, since between two of them others use the core and its caches. One
        that asks alone is not followed by others, and the look would be for nothing.
        """
        if served == 1 and self._lone_turns:
            self._lone_turns -= 1
            return
        served_max = min(len(self._watched) - 1, _EVENTS_MAX)  # all but the loop's own bell
        while served < served_max and not self._found:
            self._polled = self._epoll.poll(0, _EVENTS_MAX)
            if not self._polled:
                self._lone_turns = _LONE_TURNS if served == 1 else 0
                return
            served += len(self._polled)
            self.serving._run()

    def _left(self) -> float | None:
        """How many seconds until a timer is due; 0 if there is anything to do, None if nothing."""
        loop = self.loop
        if self.wanted or loop._ready or loop._stopping:
            return 0
        timers = loop._scheduled
        if not timers:
            return None
        left: float = timers[0].when() - loop.time()
        return 0 if left <= 0 else left if left < _WAIT_S_MAX else _WAIT_S_MAX

    def serve(self) -> None:
        """What is ready. If one raises, those behind it are found again in the next round."""
        watched = self._watched
        for descriptor, events in self._polled:
            on_ready = watched.get(descriptor)
            if on_ready is not None:
                on_ready(events)
            else:
                self._find(descriptor, events)

    def _run_wanted(self) -> None:
        handles, self.wanted = self.wanted, []
        for handle in handles:
            handle._run()

    def _find(self, descriptor: int, events: int) -> None:
        """An event of the loop's own, as the base class would tell it."""
        key = self.get_map().get(descriptor)
        if key is not None:
            is_readable = selectors.EVENT_READ if events & ~WRITABLE else 0
            is_writable = selectors.EVENT_WRITE if events & ~READABLE else 0
            self._found.append((key, (is_readable | is_writable) & key.events))

    def close(self) -> None:
        self._epoll.close()
        super().close()


class TurnLoop(asyncio.SelectorEventLoop):
    """asyncio's loop for Unix, with `before_wait`, `watch`, and a bell for other threads."""

    def __init__(self) -> None:
        self._turn_selector = _Selector()
        super().__init__(self._turn_selector)
        self._turn_selector.serving = asyncio.Handle(self._turn_selector.serve, (), self)
        self._turn_selector.loop = self
        self._bell = FileIO(os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC), "r+")
        self._has_rung = False
        self._rung_for: deque[asyncio.Handle] = deque()
        self._ringing = threading.RLock()  # a signal's handler rings too, wherever it interrupts
        self.watch(self._bell.fileno(), READABLE, self._hear)

    def before_wait(self, callback: Callable[[], None]) -> Callable[[], None]:
        """A trigger: once called, `callback` runs before the loop waits next, or polls."""
        handle = asyncio.Handle(callback, (), self)

        def want() -> None:
            self._turn_selector.wanted.append(handle)

        return want

    def when_rung(self, callback: Callable[[], None]) -> Callable[[], None]:
        """A trigger for any thread: once called, `callback` runs where the loop hears of it."""
        handle = asyncio.Handle(callback, (), self)

        def ring() -> None:
            if self.is_closed():
                raise RuntimeError("the loop is closed")
            self._rung_for.append(handle)
            self._write_to_self()

        return ring

    def watch(self, descriptor: int, events: int, on_ready: OnReady) -> None:
        """As the function `watch`."""
        self._turn_selector.watch(descriptor, events, on_ready)

    def _write_to_self(self) -> None:
        """Wake up, for what another thread has just put into the loop's queue.

        asyncio's way is a byte through a pair of sockets each time, and two receives here. Who
        finds that it has rung need not ring: the loop looks into its queue once more after `_hear`.
        """
        if not self._has_rung:
            self._has_rung = True
            try:
                with self._ringing:  # or its number might be another file's by the write
                    if not self._bell.closed:  # else nobody is there to hear
                        self._bell.write(_RING)
            except BaseException:  # interrupted: the next must ring, or nobody would ever again
                self._has_rung = False
                raise

    def _hear(self, _events: int) -> None:
        self._bell.read(len(_RING))
        self._has_rung = False  # only now: the other way round a ring could be lost in between
        try:
            for _ in range(len(self._rung_for)):  # who rings again meanwhile is heard after others
                self._rung_for.popleft()._run()
        finally:
            if self._rung_for:  # what ends the process comes through
                self._write_to_self()

    def close(self) -> None:
        super().close()
        with self._ringing:
            self._bell.close()


def ending_turns(
    loop: asyncio.AbstractEventLoop, callback: Callable[[], None]
) -> Callable[[], object]:
    """A trigger for `callback` once all is read that is ready now, on any loop."""
    if isinstance(loop, TurnLoop):
        return loop.before_wait(callback)
    # In the loop's next round, and ahead of what that round finds ready to be read.
    return partial(loop.call_soon, callback)


def ringing(loop: asyncio.AbstractEventLoop, callback: Callable[[], None]) -> Callable[[], object]:
    """A trigger for `callback` soon, from any thread, on any loop; `RuntimeError` if it is closed.

    `call_soon_threadsafe` with a round of the loop's and a handle less, each time.
    """
    if isinstance(loop, TurnLoop):
        return loop.when_rung(callback)
    return partial(loop.call_soon_threadsafe, callback)


def watch(loop: asyncio.AbstractEventLoop, descriptor: int, events: int, on_ready: OnReady) -> None:
    """Call `on_ready` whenever `descriptor` is READABLE or WRITABLE, as `events` ask; 0: no more.

    Always with one `on_ready`, and no more before the descriptor is closed. What `on_ready` raises
    goes to the loop's exception handler.
    """
    if isinstance(loop, TurnLoop):
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
