"""A process is a value: all that runs for one broker hangs on it, and ends with it.

It owns a clock, a random generator, timers, blocking work and asyncio tasks. Several may share a
loop. What belongs to a process runs in a `contextvars.Context` in which `CURRENT` is set, and
asyncio copies that into each callback, timer and task that it schedules, those of other people's
code included. So whatever raises, the loop knows whose `on_failure` to call, and the simulator's
loop knows what a killed or stopped process must not run.

`AsyncioProcess` is the broker's, `testing/virtual_process.py` has the simulator's.
"""

from __future__ import annotations

import asyncio
import random
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar, copy_context
from functools import partial
from typing import Any, TypeVar

from kdist.runtime.clock import Clock, SystemClock
from kdist.runtime.tasks import Done, Timer

T = TypeVar("T")

CURRENT: ContextVar[Process | None] = ContextVar("process", default=None)
"""The process whose code runs; None in code that belongs to none."""


class Process(ABC):
    """A `Tasks`, and more. Owner: the loop's thread.

    `on_failure` gets what a callback, a task or the outcome of blocking work raised. While it is
    None that goes to the loop's default handler.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, clock: Clock, rng: random.Random) -> None:
        self.loop = loop
        self.clock = clock
        self.rng = rng
        self.secrets = rng  # makes what nobody may foresee
        self.on_failure: Callable[[BaseException], None] | None = None
        self.context = copy_context()
        self.context.run(CURRENT.set, self)
        self._started: dict[asyncio.Task[None], None] = {}
        self._is_closed = False
        self._under_way = 0
        self._idle = asyncio.Event()
        self._idle.set()

    def fail(self, error: BaseException) -> None:
        """Something of this process raised: it cannot go on."""
        if self.on_failure is not None:
            self.on_failure(error)
        else:
            told = {"message": "a process without an owner failed", "exception": error}
            self.loop.default_exception_handler(told)

    # Callbacks and timers

    def call_soon(self, callback: Callable[[], None]) -> None:
        self.loop.call_soon(self._call, callback, context=self.context)

    def call_later(self, delay_ms: float, callback: Callable[[], None]) -> Timer:
        return self.loop.call_later(delay_ms / 1000, self._call, callback, context=self.context)

    def _call(self, callback: Callable[[], None]) -> None:
        if not self._is_closed:
            callback()

    # Blocking work

    def run_blocking(self, work: Callable[[], None], done: Done) -> None:
        if not self._is_closed:
            self._under_way += 1
            self._idle.clear()
            self._submit(work, partial(self._end, done))

    @abstractmethod
    def _submit(self, work: Callable[[], None], done: Done) -> None:
        """Run `work` where it may block, then call `done`, which is never dropped."""

    def _end(self, done: Done, error: BaseException | None) -> None:
        self._under_way -= 1
        try:
            if not self._is_closed:
                done(error)
        finally:  # a bug in `done` must not keep `idle` waiting for ever
            if not self._under_way:
                self._idle.set()

    async def blocking(self, work: Callable[[], None]) -> None:
        """Run `work` in a thread; raises what it raises. It runs on if cancelled: see `idle`."""
        ended: asyncio.Future[None] = self.loop.create_future()
        raised: list[BaseException] = []  # not kept by a future, as the thread's frames reach that

        def done(error: BaseException | None) -> None:
            if ended.cancelled():
                return
            if error is not None:
                raised.append(error)
            ended.set_result(None)

        self.run_blocking(work, done)
        await ended
        if raised:
            raise raised.pop()

    async def idle(self) -> None:
        """Return once no blocking work runs, including work started by other work's callback."""
        while True:
            await self._idle.wait()
            await asyncio.sleep(0)  # its callback may have started more with `call_soon`
            await asyncio.sleep(0)
            if not self._under_way:
                return

    # Tasks

    def start(self, work: Coroutine[Any, Any, None], name: str) -> None:
        """Run `work` until `cancel_started`; the process fails with what it raises."""
        task = self._task(work, name)
        self._started[task] = None
        task.add_done_callback(self._ended, context=self.context)

    async def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run `work` in this process for a caller from anywhere; returns or raises as it does."""
        return await self._task(work)

    def _task(self, work: Coroutine[Any, Any, T], name: str | None = None) -> asyncio.Task[T]:
        return self.loop.create_task(work, name=name, context=self.context.copy())

    def _ended(self, task: asyncio.Task[None]) -> None:
        del self._started[task]
        if not task.cancelled():
            task.result()

    async def cancel_started(self) -> None:
        """Cancel what `start` has started, and wait for its end."""
        for task in self._started:
            task.cancel()
        if self._started:
            await asyncio.wait(tuple(self._started))

    def close(self) -> None:
        """Run no timer and no outcome of blocking work any more, and begin no such work.

        What was deferred (unlinking a deleted log's files, say) must not touch a directory after
        another process has taken it over.
        """
        self._is_closed = True


class AsyncioProcess(Process):
    """The broker's. It takes `loop`'s exceptions, those of nobody's callbacks too.

    The owner's thread is the loop's. Blocking work runs on a few threads, which share with the
    owner only the queue of results.
    """

    def __init__(
        self, loop: asyncio.AbstractEventLoop, rng: random.Random | None = None, threads: int = 4
    ) -> None:
        super().__init__(loop, SystemClock(), rng or system_rng())
        self.secrets = secure_rng()
        loop.set_exception_handler(self._take_exception)
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="kdist-blocking")
        self._results: deque[tuple[Done, BaseException | None]] = deque()  # its append is atomic

    def _take_exception(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if isinstance(error, BaseException):
            (process_of(context) or self).fail(error)
        else:
            loop.default_exception_handler(context)

    def _submit(self, work: Callable[[], None], done: Done) -> None:
        self._pool.submit(self._work, work, done)

    def _work(self, work: Callable[[], None], done: Done) -> None:
        """On a thread of the pool."""
        error: BaseException | None = None
        try:
            work()
        except BaseException as raised:  # noqa: BLE001 - passed to the owner, whatever it is
            error = raised
        self._results.append((done, error))
        del error  # its traceback has this frame: see `Done`
        self.loop.call_soon_threadsafe(self._deliver, context=self.context)

    def _deliver(self) -> None:
        done, error = self._results.popleft()
        done(error)

    def close(self) -> None:
        super().close()
        self._pool.shutdown(wait=False)


def system_rng() -> random.Random:
    """A generator seeded by the operating system, where a test passes a fixed seed."""
    return random.Random()


def secure_rng() -> random.Random:
    """A generator for secrets and nonces: nobody can foresee its numbers."""
    return random.SystemRandom()


def process_of(context: dict[str, Any]) -> Process | None:
    """The process that an exception handler's `context` is about, if it is about one."""
    handle = context.get("handle")
    if handle is not None:
        found: Process | None = handle._context.get(CURRENT)  # asyncio keeps it private before 3.12
        return found
    # A task or future of which nobody took the error: mostly its owner has just dropped it.
    task = context.get("task") or context.get("future")
    return getattr(task, "process", None) or CURRENT.get()
