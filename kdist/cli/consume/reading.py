"""Reads partitions to their ends, alone or as a member of a group.

A consumer's position is behind what was shown, and nothing else, also where an end, the limit or an
error cut a batch: so what is committed is what somebody has seen.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import sys
from collections.abc import Collection, Iterator, Mapping
from typing import TYPE_CHECKING

from kdist.client.cluster import NoBroker
from kdist.client.consumer.rebalancing import RebalanceListener
from kdist.model import TopicPartition
from kdist.runtime.clock import SystemClock

if TYPE_CHECKING:
    from kdist.cli.consume.output import Output
    from kdist.client.cluster import Cluster
    from kdist.client.consumer.aio import Consumer
    from kdist.client.consumer.batch import Batch

_POLL_S = 1.0
_POLL_ENDING_S = 0.1  # where there may be nothing to wait for
_SILENCE_NS = 30_000_000_000


class Reading(RebalanceListener):
    """Reads what is assigned up to `ends`, or for ever. Owner: the command.

    In a group it has a partition begin at the committed offset; where there is none, at its end or
    with `from_beginning` at its first record; where retention has deleted records beyond the
    committed offset, at its first one, too. With `from_beginning` None all that is left to the
    consumer's `auto_offset_reset`.
    """

    def __init__(
        self,
        cluster: Cluster,
        consumer: Consumer,
        output: Output,
        ends: Mapping[TopicPartition, int] | None,
        *,
        from_beginning: bool | None = None,
        is_assigned: bool = False,
    ) -> None:
        self._cluster = cluster
        self._consumer = consumer
        self._output = output
        self._ends = ends
        self._from_beginning = from_beginning
        self._is_assigned = is_assigned
        self._done: set[TopicPartition] = set()  # partitions that are read to their ends

    async def on_assigned(self, partitions: Collection[TopicPartition]) -> None:
        self._is_assigned = True
        self._done.difference_update(partitions)
        if self._from_beginning is None or not partitions:
            return
        consumer = self._consumer
        committed = await consumer.committed(partitions)
        # One without a leader begins at its committed offset, once it has a leader.
        led = await self._cluster.led([each for each in partitions if committed[each]], 0)
        starts = await consumer.beginning_offsets(led)
        for each in partitions:
            found = committed[each]
            if found is None:
                seek = consumer.seek_to_beginning if self._from_beginning else consumer.seek_to_end
                seek(each)
            elif found.offset < starts.get(each, 0):
                consumer.seek(each, starts[each])

    def on_revoked(self, partitions: Collection[TopicPartition]) -> None:
        """The consumer commits; nothing else is to be done."""

    async def run(self) -> None:
        """Show records until the limit or all ends are reached."""
        silence = Silence(self._cluster, self._consumer)
        poll_s = _POLL_S if self._ends is None else _POLL_ENDING_S
        while not self._output.is_full and not await self._is_at_the_end():
            batches = await self._consumer.poll_batches(poll_s)
            self._show(batches)
            await silence.check(has_records=bool(batches))

    async def _is_at_the_end(self) -> bool:
        """Pause partitions that are read to their ends; whether those are all."""
        if self._ends is None or not self._is_assigned:
            return False
        for each in sorted(self._consumer.assignment() - self._done):
            # One that came later, to a pattern, has nothing of what was there at the start.
            end = self._ends.get(each, 0)
            if not end or await self._consumer.position(each) >= end:
                self._consumer.pause(each)
                self._done.add(each)
        return self._consumer.assignment() <= self._done

    def _show(self, batches: list[Batch]) -> None:
        rest = list(batches)
        try:
            while rest and not self._output.is_full:
                batch = rest[0]
                end = None if self._ends is None else self._ends.get(batch.partition)
                position = self._output.show(batch, end)
                del rest[0]
                if position < batch.end:
                    self._go_back(batch, position)
                    rest = [each for each in rest if each.partition != batch.partition]
        finally:
            for batch in reversed(rest):  # so the first of a partition has the last word
                self._go_back(batch, batch.start)

    def _go_back(self, batch: Batch, position: int) -> None:
        epoch = batch.header.partition_leader_epoch
        self._consumer.seek(batch.partition, position, epoch)


class Silence:
    """Tells a topic without new records from brokers that are gone. Owner: the command."""

    def __init__(self, cluster: Cluster, consumer: Consumer) -> None:
        self._cluster = cluster
        self._consumer = consumer
        self._clock = SystemClock()
        self._since_ns = self._clock.monotonic_ns()

    async def check(self, *, has_records: bool) -> None:
        """After 30 s without records ask the brokers, and raise the error if they do not answer."""
        now_ns = self._clock.monotonic_ns()
        if has_records:
            self._since_ns = now_ns
        elif now_ns - self._since_ns >= _SILENCE_NS:
            await self._consumer.end_offsets(await self._led())
            self._since_ns = self._clock.monotonic_ns()

    async def _led(self) -> Collection[TopicPartition]:
        """The partitions that have leaders; all of them if nobody can say."""
        assigned = self._consumer.assignment()
        try:
            return await self._cluster.led(assigned, 0)
        except NoBroker:
            return assigned  # so brokers are asked for longer


@contextlib.contextmanager
def ended_when_unread() -> Iterator[None]:
    """Raise BrokenPipeError inside the block once standard output is a pipe without a reader.

    A write would fail too, but only with the next record, which may never come.
    """
    if sys.stdout.isatty():
        yield  # a terminal becomes readable by typing, which would call `end`
        return
    loop, task, is_unread = asyncio.get_running_loop(), asyncio.current_task(), False
    assert task is not None

    def end() -> None:
        nonlocal is_unread
        is_unread = True
        loop.remove_reader(descriptor)
        task.cancel()

    try:
        descriptor = sys.stdout.fileno()
        loop.add_reader(descriptor, end)  # a pipe's write end reports only that the reader is gone
    except OSError:
        yield  # a regular file, or no descriptor at all
        return
    try:
        yield
    except asyncio.CancelledError:
        if not is_unread:
            raise
        raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE)) from None
    finally:
        loop.remove_reader(descriptor)
