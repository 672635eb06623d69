"""The blocking consumer.

    with Consumer("localhost:9092", group_id="clicks") as consumer:
        consumer.subscribe(["clicks"])
        for record in consumer:
            print(record.key, record.value)

Only one thread may use it at a time: while it is in a call, calls of other threads raise
`UserError`, except for `wakeup` and `close`. Fetching and heartbeats run in a background thread.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Coroutine, Iterator
from functools import partial
from itertools import chain
from typing import Any, Self, TypeVar, Unpack

from kdist.client.background import BackgroundLoop
from kdist.client.consumer.arguments import checked_end, checked_max
from kdist.client.consumer.batch import Batch, ConsumedRecord
from kdist.client.consumer.context import ConsumerClosed
from kdist.client.consumer.core import CLOSE_TIMEOUT_S, Core
from kdist.client.consumer.methods import ConsumerMethods
from kdist.client.consumer.settings import ConsumerKeywords, read_config
from kdist.client.discovery import find_brokers
from kdist.client.foreign import understanding
from kdist.client.operation import Blocking, check_timeout
from kdist.client.settings import Servers
from kdist.errors import KdistError, UserError
from kdist.network.network import AsyncioNetwork
from kdist.runtime.process import system_rng

T = TypeVar("T")
_SOON_S = 0.05


class SoleUse:
    """Lets only one thread at a time use a consumer: `check()`, then `with lock`.

    They are two steps, so that no signal handler runs between a call and its result. The thread
    inside may call again, as a listener does. Of two that pass `check` at once, one waits.
    """

    def __init__(self, check_caller: Callable[[], None]) -> None:
        self.lock = threading.RLock()
        self.is_ending = False  # `close` was called: others wait for the thread inside
        self._check_caller = check_caller

    def check(self) -> None:
        """`UserError` while another thread is inside, or whatever `check_caller` raises."""
        if self.lock.acquire(blocking=False):
            self.lock.release()
            return
        self._check_caller()  # in a forked process the lock is never released
        if not self.is_ending:
            raise UserError("another thread is using the consumer: only one may at a time")


class Consumer(ConsumerMethods, Blocking):
    """Reads topics, alone or as a member of a group. `close` it, or use it in a `with` block.

    `settings` are those that `ConsumerSettings` lists; an unknown or invalid one raises
    `UserError`. `key_decoder` and `value_decoder` turn bytes into any object; null stays None. One
    that needs a second argument is given a `CodingContext`.

    >>> Consumer("localhost:9092", grup_id="clicks")
    Traceback (most recent call last):
    kdist.errors.UserError: a consumer has no setting 'grup_id': did you mean group_id?
    """

    @understanding
    def __init__(
        self,
        bootstrap_servers: Servers = (),
        **settings: Unpack[ConsumerKeywords],
    ) -> None:
        found, decoders, hooks = read_config({"bootstrap_servers": bootstrap_servers, **settings})
        self._poll_records_max = found.max_poll_records
        self._background = background = BackgroundLoop("kdist-consumer")

        async def open_core() -> Core:
            brokers = await find_brokers(
                found.bootstrap_servers, found.zk_connect, found.security_protocol
            )
            network = AsyncioNetwork(background.loop)
            rng, tell = system_rng(), background.call_back
            return Core(network, brokers, found, rng, decoders, tell, hooks)

        try:
            self._core: Core = background.run(open_core())
        except BaseException:
            background.stop()
            raise
        background.warn_if_left(self)
        self._completed = self._core.completed
        self._iteration = self._core.iteration
        self._meter = self._core.meter
        self._interceptors = self._core.interceptors
        self._sole_use = SoleUse(background.check_caller)
        self._is_closed = False

    # Records

    @understanding
    def poll(
        self, timeout_s: float | None = None, max_records: int | None = None
    ) -> list[ConsumedRecord]:
        """The next records; an empty list if `timeout_s` passes without any (None: no limit).

        At most `max_records`, by default `max_poll_records`. With `enable_auto_commit`, a poll
        implies that the records before it have been processed, and may be committed.

        Raises `WakenUp` after `wakeup`, `NotDecoded` if a decoder fails, `OffsetOutOfRange` and
        `NoOffset` with `auto_offset_reset` none, other `ApiError`, and what a listener raises.
        """
        count = self._poll_records_max
        if max_records is not None:
            count = checked_max(max_records, "max_records")
        if self._iteration.is_open:
            self._call(Core.give_back)
        return self._taken(
            lambda: self._intercepted(self._completed.take_records(count)), timeout_s
        )

    @understanding
    def poll_batches(self, timeout_s: float | None = None, max_batches: int = 1000) -> list[Batch]:
        """As `poll`, but whole batches as producers sent them, with nothing decoded yet."""
        count = checked_max(max_batches, "max_batches")
        self._call(Core.give_back)
        return self._taken(lambda: self._completed.take_batches(count), timeout_s)

    def _taken(self, take: Callable[[], T], timeout_s: float | None) -> T:
        """What `take` returns. If it is interrupted, what it took is fetched again."""
        self._sole_use.check()
        self._completed.begun = {}
        try:
            with self._sole_use.lock:  # inside, as signals are handled at the end of a `with`, too
                return self._taken_in_time(take, timeout_s)
        except KdistError:
            raise
        except BaseException:
            self._call(Core.take_back)
            raise

    def _taken_in_time(self, take: Callable[[], T], timeout_s: float | None) -> T:
        core = self._core
        end_s = checked_end(timeout_s, core.context.now_s())
        if taken := self._taken_soon(take, end_s):
            return taken
        while True:
            left_s = None if end_s is None else end_s - core.context.now_s()
            self._run(core.ready(left_s))
            taken = take()
            self._maybe_kick()
            if taken or (left_s is not None and left_s <= 0):
                return taken

    def _taken_soon(self, take: Callable[[], T], end_s: float | None) -> T | None:
        """What is ready or arrives within `_SOON_S`, unless the loop has other work for a poll.

        A round trip to the loop costs 0.1 ms, which a consumer faster than its broker would
        otherwise spend on every poll.
        """
        context = self._core.context
        soon_s = context.now_s() + _SOON_S
        end_s = soon_s if end_s is None else min(soon_s, end_s)
        self._core.note_poll()
        while self._core.is_calm and not self._is_closed and not self._background.is_elsewhere:
            taken = take()
            self._maybe_kick()
            left_s = end_s - context.now_s()
            if taken or left_s <= 0:
                return taken
            context.wakeup.wait_in_thread(left_s)
        return None

    def _maybe_kick(self) -> None:
        if self._completed.is_hungry:
            self._completed.is_hungry = False
            self._background.loop.call_soon_threadsafe(self._core.kick)

    def __iter__(self) -> Iterator[ConsumedRecord]:
        """Yield records from where the last loop stopped; waits for more, and never ends."""
        records = chain.from_iterable(self._runs())
        return (
            records
            if self._interceptors is None
            else self._interceptors.each(records, self._iteration)
        )

    def _runs(self) -> Iterator[Iterator[ConsumedRecord]]:
        core, iteration = self._core, self._iteration
        while True:
            yield iteration.left  # shared with loops that were left, or that run beside this one
            self._taken(core.take_run, None)
            if not core.is_watching:
                core.is_watching = True
                self._background.loop.call_soon_threadsafe(core.watch_runs)

    def wakeup(self) -> None:
        """Make the current or next `poll` raise `WakenUp`, unless closed. Any thread may call."""
        if not self._is_closed:
            self._core.is_waking = True  # set here, as the next poll may be in this thread
            self._background.loop.call_soon_threadsafe(self._core.context.wakeup.set)

    # The end

    @understanding
    def close(self, timeout_s: float = CLOSE_TIMEOUT_S) -> None:
        """Commit if auto-commit is on, and leave the group; a static member stays in it.

        While an exception is handled, the records given last are not committed.
        """
        self._close(timeout_s, is_done=sys.exception() is None)

    def _close(self, timeout_s: float, *, is_done: bool) -> None:
        check_timeout(timeout_s)
        if self._is_closed or self._core.is_closing or self._background.is_elsewhere:
            return  # closed, or closing: a listener called meanwhile may call `close` again
        self._background.check_caller()
        self._sole_use.is_ending = True
        try:
            self._background.run(self._core.close(timeout_s, is_done=is_done))
        finally:
            self._is_closed = True
            self._background.stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        self._close(CLOSE_TIMEOUT_S, is_done=error is None)

    # Calls to the loop

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        try:
            self._check_open()
            self._sole_use.check()
        except UserError:
            work.close()
            raise
        with self._sole_use.lock:
            return self._background.run(work)

    def _operate(
        self, function: Callable[..., Coroutine[Any, Any, T]], *arguments: Any, **named: Any
    ) -> T:
        return self._run(function(self._core, *arguments, **named))

    def _call(self, function: Callable[..., T], *arguments: Any, **named: Any) -> T:
        return self._on_loop(partial(function, self._core, *arguments, **named))

    def _on_loop(self, function: Callable[[], T]) -> T:
        self._check_open()
        self._sole_use.check()
        with self._sole_use.lock:
            return self._background.call(function)

    def _check_open(self) -> None:
        if self._is_closed:
            raise ConsumerClosed
