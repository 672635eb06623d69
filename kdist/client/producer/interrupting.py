"""Records of what interrupts a call of its own thread, such as a signal handler or a `__del__`.

The interrupted call has the accumulator's lock, and goes on only afterwards, so its thread must not
wait. Such a record is added by the loop instead, once the lock is free. Until then a stand-in is
its batch, which becomes a reference to the real one.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

from kdist.client.producer.accumulator import Row
from kdist.client.producer.batch import PartitionQueue, ProducerBatch
from kdist.client.producer.faults import ProducerClosed
from kdist.client.producer.results import Sent, resolve_stand_in

_Add = Callable[[str, Row, int | None], Coroutine[Any, Any, Sent]]
_NO_PARTITION = -1


class Interrupting:
    """Owner: the loop, but for `put`. `add` adds a record, on the loop.

    `make_queue` is given a topic, a partition and a leader: a stand-in needs what waiting needs.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        add: _Add,
        make_queue: Callable[[str, int, int], PartitionQueue],
    ) -> None:
        self._loop = loop
        self._add = add
        self._make_queue = make_queue
        self._turn = asyncio.Lock()
        self._put: deque[tuple[ProducerBatch, str, Row, int | None]] = deque()
        self._adding: set[asyncio.Task[Sent]] = set()

    def __len__(self) -> int:
        return len(self._put) + len(self._adding)

    def put(self, topic: str, row: Row, partition: int | None) -> Sent:
        """Have the loop add the record soon, in the order of these calls; returns its future."""
        queue = self._make_queue(topic, _NO_PARTITION, _NO_PARTITION)
        stand_in = ProducerBatch(queue, 0, 0.0, 0)
        self._put.append((stand_in, topic, row, partition))
        self._loop.call_soon_threadsafe(self._begin)
        return Sent(stand_in, 0)

    async def added(self) -> None:
        """Wait until each record has been added, or has failed."""
        self._begin()
        if self._adding:
            await asyncio.wait(self._adding)

    def close(self) -> None:
        """Fail those that are still to be added."""
        for task in self._adding:
            task.cancel()

    def _begin(self) -> None:
        while self._put:
            stand_in, topic, row, partition = self._put.popleft()
            task = self._loop.create_task(self._add_in_turn(topic, row, partition))
            self._adding.add(task)
            task.add_done_callback(partial(self._end, stand_in))

    async def _add_in_turn(self, topic: str, row: Row, partition: int | None) -> Sent:
        async with self._turn:
            return await self._add(topic, row, partition)

    def _end(self, stand_in: ProducerBatch, task: asyncio.Task[Sent]) -> None:
        self._adding.discard(task)
        if task.cancelled():
            stand_in.error = ProducerClosed("the producer was closed before this was added")
        else:
            stand_in.error = task.exception()
        if stand_in.error is None:
            resolve_stand_in(stand_in, task.result())
        else:
            stand_in.finish()
