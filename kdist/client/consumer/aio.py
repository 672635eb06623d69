"""The consumer for asyncio.

    async with Consumer("localhost:9092", group_id="clicks") as consumer:
        consumer.subscribe(["clicks"])
        async for record in consumer:
            print(record.key, record.value)

Create it within a running event loop, and use it on that loop. Methods that wait are coroutines.
A listener's methods may be coroutines, too. Several tasks may poll and iterate: each record is
given to one of them, and one takes part in a rebalance. An auto-commit is of what all were given,
so who has several tasks commits what they have handled.
"""

from __future__ import annotations

import asyncio
import inspect
import sys
from collections.abc import AsyncIterator, Callable
from itertools import islice
from operator import length_hint
from typing import Any, Self, TypeVar, Unpack

from kdist.client.consumer.arguments import checked_end, checked_max
from kdist.client.consumer.batch import Batch, ConsumedRecord
from kdist.client.consumer.context import ConsumerClosed
from kdist.client.consumer.core import CLOSE_TIMEOUT_S, Core
from kdist.client.consumer.methods import ConsumerMethods
from kdist.client.consumer.settings import ConsumerKeywords, read_config
from kdist.client.discovery import find_brokers, given_brokers
from kdist.client.foreign import understanding
from kdist.client.operation import check_timeout
from kdist.client.settings import Servers
from kdist.errors import KdistError
from kdist.network.network import AsyncioNetwork
from kdist.runtime.process import system_rng

T = TypeVar("T")
_TURN_S = 0.02  # for so long others may have to wait while records are ready
# A loop that takes less for a record looks at the clock only after so many: else that would be a
# quarter of what it costs. If it becomes slow and waits for something, its run is held.
_FAST_S, _STRIDE = 0.000003, 128


class Consumer(ConsumerMethods):
    """Reads topics; its settings and methods mean what they mean in `kdist.Consumer`."""

    @understanding
    def __init__(
        self,
        bootstrap_servers: Servers = (),
        **settings: Unpack[ConsumerKeywords],
    ) -> None:
        network = AsyncioNetwork(asyncio.get_running_loop())
        found, decoders, hooks = read_config({"bootstrap_servers": bootstrap_servers, **settings})
        brokers = given_brokers(found.bootstrap_servers, found.zk_connect)
        self._use(Core(network, brokers, found, system_rng(), decoders, call_back, hooks))

    @classmethod
    def over(cls, core: Core) -> Self:
        """A front for an existing core, as the connector and simulations have it."""
        consumer = cls.__new__(cls)
        consumer._use(core)
        return consumer

    def _use(self, core: Core) -> None:
        self._open: Core | None = core
        self._turn_s = 0.0  # when others were last let run
        self._taken_s = 0.0  # when iteration last polled
        self._meter = core.meter
        self._interceptors = core.interceptors

    @property
    def _core(self) -> Core:
        if self._open is None:
            raise ConsumerClosed
        return self._open

    def _operate(self, function: Callable[..., T], *arguments: Any, **named: Any) -> T:
        """What is given is a coroutine function, so this returns a coroutine."""
        return function(self._core, *arguments, **named)

    _call = _operate

    async def start(self) -> Self:
        """Look up the brokers in ZooKeeper, with `zk_connect`; `async with` calls this."""
        settings, cluster = self._core.settings, self._core.context.cluster
        if settings.zk_connect:
            cluster.bootstrap = await find_brokers(
                (), settings.zk_connect, settings.security_protocol
            )
        return self

    # Records

    @understanding
    async def poll(
        self, timeout_s: float | None = None, max_records: int | None = None
    ) -> list[ConsumedRecord]:
        """The next records; an empty list if `timeout_s` passes without any (None: no limit)."""
        count = self._core.settings.max_poll_records
        if max_records is not None:
            count = checked_max(max_records, "max_records")
        completed = self._core.completed
        return await self._polled(
            lambda: self._intercepted(completed.take_records(count)), timeout_s
        )

    @understanding
    async def poll_batches(
        self, timeout_s: float | None = None, max_batches: int = 1000
    ) -> list[Batch]:
        """As `poll`, but whole batches as producers sent them, with nothing decoded yet."""
        count = checked_max(max_batches, "max_batches")
        completed = self._core.completed
        return await self._polled(lambda: completed.take_batches(count), timeout_s)

    async def _polled(self, take: Callable[[], T], timeout_s: float | None) -> T:
        """As `_taken`, with what is held of a loop: also of another task's, begun meanwhile."""
        core = self._core

        def take_all() -> T:
            if core.iteration.is_open:
                core.give_back()
            return take()

        return await self._taken(take_all, timeout_s)

    async def _taken(self, take: Callable[[], T], timeout_s: float | None) -> T:
        core = self._core
        end_s = checked_end(timeout_s, core.context.now_s())
        while True:
            left_s = None if end_s is None else end_s - core.context.now_s()
            core.completed.begun = {}
            await self._let_others_run()  # first, as partitions may be lost meanwhile
            await core.ready(left_s)
            try:
                taken = take()
            except KdistError:
                raise
            except BaseException:  # interrupted: nobody would receive what was taken by then
                core.take_back()
                raise
            if core.completed.is_hungry:
                core.completed.is_hungry = False
                core.kick()
            if taken or (left_s is not None and left_s <= 0):
                return taken

    async def _let_others_run(self) -> None:
        """Yield to the loop if that was not done for long, as ready records are not waited for."""
        now_s = self._core.context.now_s()
        if now_s >= self._turn_s + _TURN_S:
            self._turn_s = now_s
            await asyncio.sleep(0)

    def __aiter__(self) -> AsyncIterator[ConsumedRecord]:
        records, iteration = self._records(), self._core.iteration
        if self._interceptors is None:
            return records
        return self._interceptors.each_later(records, iteration)

    async def _records(self) -> AsyncIterator[ConsumedRecord]:
        core = self._core
        iteration, now_s = core.iteration, core.context.loop.time
        while True:
            end_s, looked_s, stride = self._taken_s + _TURN_S, now_s(), 1
            # Shared with loops that were left. At the end the next is asked for as by a poll.
            while looked_s < end_s and length_hint(left := iteration.left):
                for record in islice(left, stride):
                    yield record
                before_s, looked_s = looked_s, now_s()
                stride = _STRIDE if looked_s - before_s < _FAST_S * stride else 1
            await self._taken(core.take_run, None)
            self._taken_s = now_s()
            if not core.is_watching:
                core.watch_runs()

    def wakeup(self) -> None:
        """Make the current or next `poll` raise `WakenUp`."""
        self._core.wake_up()

    # The end

    @understanding
    async def close(self, timeout_s: float = CLOSE_TIMEOUT_S) -> None:
        """Commit if auto-commit is on, and leave the group; a static member stays in it.

        While an exception is handled, the records given last are not committed.
        """
        await self._close(timeout_s, is_done=sys.exception() is None)

    async def _close(self, timeout_s: float, *, is_done: bool) -> None:
        check_timeout(timeout_s)
        if self._open is not None and not self._open.is_closing:
            try:
                await self._open.close(timeout_s, is_done=is_done)
            finally:
                self._open = None

    async def __aenter__(self) -> Self:
        return await self.start()

    async def __aexit__(self, _: object, error: BaseException | None, __: object) -> None:
        await self._close(CLOSE_TIMEOUT_S, is_done=error is None)


async def call_back(function: Callable[..., object], *arguments: object) -> None:
    """Call a listener's method, which may be a coroutine function."""
    outcome = function(*arguments)
    if inspect.isawaitable(outcome):
        await outcome
