"""An event loop in a background thread, for the blocking clients.

The calling thread waits for the outcome of its work. While it waits, the work may have a function
called in that thread, such as a rebalance listener, and that function may call the client again.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
import threading
import warnings
import weakref
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from queue import SimpleQueue
from typing import Any, TypeVar

from kdist.errors import UserError
from kdist.runtime.tick_loop import TickLoop
from kdist.runtime.unix import tell_when_forked

T = TypeVar("T")
_Step = Callable[[], None]
ENDING = "the program is ending: its clients have stopped"
FORKED = "the client belongs to the process that this one was forked from: open another one here"
_CLOSED = "the client was closed meanwhile"


class _CallFailed(Exception):
    """A called function failed, and its error was passed to the work that had it called."""


class BackgroundLoop:
    """The loop and its daemon thread, which run until `stop`.

    Any thread may call, but only one at a time if the work calls functions back. A forked process
    does not have the thread: `is_elsewhere` is then True, and `on_fork` was called. Nor does the
    thread run while the interpreter ends, when a `__del__` may still call.
    """

    def __init__(self, name: str) -> None:
        self.loop = TickLoop()
        self._has_ended = False  # set on the loop, by `stop`
        self._thread = threading.Thread(target=self._serve, name=name, daemon=True)
        self._thread.start()
        self._is_forked = False
        self.on_fork: Callable[[], None] = lambda: None
        tell_when_forked(self)
        self._callers: list[SimpleQueue[_Step | None]] = []  # waiting callers, the innermost last
        self._stopping = threading.Lock()  # acquired once, by the first `stop`

    @property
    def is_elsewhere(self) -> bool:
        """Whether the loop's thread does not run in this process, so that calls would hang."""
        return self._is_forked or sys.is_finalizing()

    @property
    def is_here(self) -> bool:
        """Whether the caller is the loop's own thread, which must not wait for itself."""
        return threading.current_thread() is self._thread

    def check_caller(self) -> None:
        """Raise `UserError` in the loop's own thread, in a forked process, or at exit."""
        if self.is_elsewhere:
            raise UserError(FORKED if self._is_forked else ENDING)
        if self.is_here:
            raise UserError("a callback of the client cannot wait for it")

    def forked(self) -> None:
        """Called in a forked process, by `kdist.runtime.unix`."""
        self._is_forked = True
        self.on_fork()

    def warn_if_left(self, front: object) -> None:
        """Issue a `ResourceWarning`, as for an open file, if `front` is collected before `stop`."""

        def warn(name: str) -> None:
            if self._thread.is_alive() and not self.is_elsewhere:
                warnings.warn(f"unclosed {name}: its thread goes on", ResourceWarning, stacklevel=2)

        weakref.finalize(front, warn, f"kdist.{type(front).__name__}").atexit = False

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run `work` on the loop, and return its result. If the caller is interrupted, cancel it.

        `UserError` if another thread stops the loop meanwhile, and as `check_caller` raises it.
        """
        steps: SimpleQueue[_Step | None] = SimpleQueue()
        self._callers.append(steps)  # before the work starts, so that `stop` finds this caller
        try:
            running = self._begin(work)
            running.add_done_callback(lambda _: steps.put(None))
            try:
                while (step := steps.get()) is not None:
                    try:
                        step()
                    except _CallFailed:
                        pass  # the work was passed the error, and decides whether to raise it
            except BaseException:
                running.cancel()
                raise
        finally:
            self._callers.remove(steps)
        if not running.done():  # `stop` has ended the loop before it began
            work.close()
        elif not running.cancelled():
            return running.result()
        raise UserError(_CLOSED)  # another thread called `stop`

    def _begin(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        try:
            self.check_caller()
            return asyncio.run_coroutine_threadsafe(work, self.loop)
        except (UserError, RuntimeError) as error:
            work.close()
            raise UserError(_CLOSED if isinstance(error, RuntimeError) else str(error)) from None

    async def call_back(self, function: Callable[..., object], *arguments: object) -> None:
        """Have the waiting caller's thread call `function`; raises what it raises.

        For use by work on the loop.
        """
        called: asyncio.Future[None] = self.loop.create_future()

        def call() -> None:
            try:
                function(*arguments)
            except Exception as error:
                self._tell(called, error)
                raise _CallFailed from error
            self._tell(called, None)

        self._callers[-1].put(call)
        await called

    def _tell(self, called: asyncio.Future[None], error: Exception | None) -> None:
        def tell() -> None:
            if called.done():
                return  # the caller was interrupted, and has cancelled the work
            if error is None:
                called.set_result(None)
            else:
                called.set_exception(error)

        with contextlib.suppress(RuntimeError):  # the loop was closed there, and the work with it
            self.loop.call_soon_threadsafe(tell)

    def call(self, function: Callable[..., T], *arguments: Any) -> T:
        """Call `function` on the loop, and return its result."""

        async def work() -> T:
            return function(*arguments)

        return self.run(work())

    def stop(self) -> None:
        """Cancel what is left on the loop, then end loop and thread. Later calls do nothing."""
        if self.is_elsewhere:
            return
        self.check_caller()
        if not self._stopping.acquire(blocking=False):
            return
        self.loop.call_soon_threadsafe(self._end)
        self._thread.join()
        for steps in tuple(self._callers):
            steps.put(None)

    def _end(self) -> None:
        self._has_ended = True
        self.loop.stop()

    def _serve(self) -> None:
        """Run the loop until `stop`, then cancel the tasks that are left. Runs in the thread."""
        while not self._has_ended:
            self._go_on(self.loop.run_forever)
        while left := asyncio.all_tasks(self.loop):
            for task in left:
                task.cancel()
            self._go_on(self.loop.run_until_complete, asyncio.wait(left))
        self.loop.close()

    def _go_on(self, run: Callable[..., object], *arguments: object) -> None:
        """Run the loop. A callback that exits does not end it: who calls would wait for ever."""
        try:
            run(*arguments)
        except (SystemExit, KeyboardInterrupt) as error:
            why = f"a callback raised {type(error).__name__}, which ends no program in this thread"
            self.loop.call_exception_handler({"message": why, "exception": error})
