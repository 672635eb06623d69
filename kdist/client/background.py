"""An event loop in a thread of its own, for a front that blocks.

Who calls waits for the outcome. What the work must have called where the caller is, a rebalance
listener, comes to the waiting caller in between; it may call again from there.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import warnings
import weakref
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from queue import SimpleQueue
from typing import Any, TypeVar

from kdist.errors import UserError
from kdist.runtime.forks import tell_when_forked
from kdist.runtime.turn_loop import TurnLoop

T = TypeVar("T")
_Step = Callable[[], None]
FORKED = "the client is of the process that this one was forked from: open another one here"
_CLOSED = "the client was closed meanwhile"


class _Told(Exception):
    """What a function raised was told to the work that had it called."""


class BackgroundLoop:
    """The loop and its thread, which run until `stop`. A daemon: no program waits for it to end.

    Any thread may call; but only one at a time, where work calls back. In a process that is forked
    there is no such thread: `is_elsewhere` from then on, after a call of `on_fork`.
    """

    def __init__(self, name: str) -> None:
        self.loop = TurnLoop()
        self._thread = threading.Thread(target=self._serve, name=name, daemon=True)
        self._thread.start()
        self.is_elsewhere = False
        self.on_fork: Callable[[], None] = lambda: None
        tell_when_forked(self)
        self._callers: list[SimpleQueue[_Step | None]] = []  # who waits, the innermost last
        self._stopping = threading.Lock()  # taken once

    @property
    def is_here(self) -> bool:
        """Whether the caller is the loop's own thread, which must not wait for itself."""
        return threading.current_thread() is self._thread

    def check_caller(self) -> None:
        """`UserError` for the loop's own thread, and in a forked process."""
        if self.is_elsewhere:
            raise UserError(FORKED)
        if self.is_here:
            raise UserError("a callback of the client cannot wait for it")

    def forked(self) -> None:
        """As `kdist.runtime.forks` has it."""
        self.is_elsewhere = True
        self.on_fork()

    def warn_if_left(self, front: object) -> None:
        """A `ResourceWarning` when `front` is no more, and has not stopped this: as a file's."""

        def warn(name: str) -> None:
            if self._thread.is_alive() and not self.is_elsewhere:
                warnings.warn(f"unclosed {name}: its thread goes on", ResourceWarning, stacklevel=2)

        weakref.finalize(front, warn, f"kdist.{type(front).__name__}").atexit = False

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """What `work` gives, or raises. Cancelled if the caller waits no more, or is interrupted.

        `UserError` if another thread stops the loop meanwhile, and from where `check_caller` says.
        """
        steps: SimpleQueue[_Step | None] = SimpleQueue()
        self._callers.append(steps)  # before the loop is asked: `stop` tells whom it finds
        try:
            running = self._begin(work)
            running.add_done_callback(lambda _: steps.put(None))
            try:
                while (step := steps.get()) is not None:
                    try:
                        step()
                    except _Told:
                        pass  # the work has it, and will raise it, or not
            except BaseException:
                running.cancel()
                raise
        finally:
            self._callers.remove(steps)
        if not running.done():  # nor will it be
            work.close()
        elif not running.cancelled():
            return running.result()
        raise UserError(_CLOSED)  # by `stop`, in another thread

    def _begin(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        try:
            self.check_caller()
            return asyncio.run_coroutine_threadsafe(work, self.loop)
        except (UserError, RuntimeError) as error:
            work.close()
            raise UserError(_CLOSED if isinstance(error, RuntimeError) else str(error)) from None

    async def call_back(self, function: Callable[..., object], *arguments: object) -> None:
        """Have who waits call `function`; raises what it raises. For the loop's work."""
        called: asyncio.Future[None] = self.loop.create_future()

        def call() -> None:
            try:
                function(*arguments)
            except Exception as error:
                self._tell(called, error)
                raise _Told from error
            self._tell(called, None)

        self._callers[-1].put(call)
        await called

    def _tell(self, called: asyncio.Future[None], error: Exception | None) -> None:
        def tell() -> None:
            if called.done():
                return  # the caller was interrupted, and has cancelled
            if error is None:
                called.set_result(None)
            else:
                called.set_exception(error)

        with contextlib.suppress(RuntimeError):  # the loop was closed there, and the work with it
            self.loop.call_soon_threadsafe(tell)

    def call(self, function: Callable[..., T], *arguments: Any) -> T:
        """What `function` gives on the loop."""

        async def work() -> T:
            return function(*arguments)

        return self.run(work())

    def stop(self) -> None:
        """Cancel what is left on the loop, and end it and its thread. Again: nothing."""
        if self.is_elsewhere:
            return
        self.check_caller()
        if not self._stopping.acquire(blocking=False):
            return
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()
        for steps in tuple(self._callers):
            steps.put(None)

    def _serve(self) -> None:
        """The thread's: until `stop`, and then for as long as it takes to cancel what is left."""
        self.loop.run_forever()
        while left := asyncio.all_tasks(self.loop):
            for task in left:
                task.cancel()
            self.loop.run_until_complete(asyncio.wait(left))
        self.loop.close()
