"""A group as a process: members that read by one of the guides' loops, come and go.

    python -m tests.soak.group LOOP STRATEGY BROKERS TOPIC JOURNAL SEED

Runs until its standard input ends; then all members leave. JOURNAL gets a list in JSON a line:
`[s, life, "got", partition, offset, value]`, `[s, life, "refused", why]` for a commit that did not
count or partitions that were lost, and at the end `["left over", threads and tasks]` and
`["stall", s]`, the most CPU time that the event loop's thread took between two of its turns.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import random
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable
from functools import partial
from typing import Any

from kdist import ConsumedRecord, Consumer, KdistError, RebalanceListener, WakenUp, aio

MEMBERS = 2
STAY_S = (8.0, 20.0)  # of the oldest, until another joins and it leaves
WAIT_S = 0.5
SLOW_S = (0.05, 0.25)  # for one record
TICK_S = 0.01
GONE_S = 5.0  # threads of an executor that was shut down end by themselves
SETTINGS: dict[str, Any] = {
    "auto_offset_reset": "earliest",
    "auto_commit_interval_ms": 1_000,
    "session_timeout_ms": 10_000,
    "heartbeat_interval_ms": 500,
    "max_poll_interval_ms": 10_000,
    "metadata_max_age_ms": 5_000,
}


class Journal:
    """The lines; members of one process write to it in turn."""

    def __init__(self, path: str) -> None:
        self._file = open(path, "w", buffering=1)  # noqa: SIM115 - as long as the process
        self._lock = threading.Lock()

    def note(self, *what: object) -> None:
        with self._lock:
            self._file.write(json.dumps(what) + "\n")


class Life(RebalanceListener):
    """One member, from joining to leaving."""

    def __init__(self, journal: Journal, number: int, pause_s: Callable[[], float]) -> None:
        self.journal = journal
        self.number = number
        self.pause_s = pause_s
        self.is_leaving = False
        self.consumer: Consumer | aio.Consumer | None = None

    def got(self, record: ConsumedRecord) -> None:
        place = record.partition, record.offset
        self.journal.note(time.time(), self.number, "got", *place, int(record.value or b""))

    def leave(self) -> None:
        """Have it leave, also from a loop that waits for a record."""
        self.is_leaving = True
        if self.consumer is not None:
            self.consumer.wakeup()

    def refused(self, why: object) -> None:
        self.journal.note(time.time(), self.number, "refused", repr(why))

    def on_lost(self, partitions: object) -> None:
        self.refused("lost")


class Refusals(logging.Handler):
    """Notes a commit of the consumer's own that failed, which it tells in its log only."""

    def __init__(self, journal: Journal) -> None:
        super().__init__(logging.WARNING)
        self._journal = journal

    def emit(self, record: logging.LogRecord) -> None:
        if "commit" in (text := record.getMessage()):
            self._journal.note(time.time(), None, "refused", text)


# --- blocking loops -----------------------------------------------------------------------------


def handle(life: Life, records: Iterable[ConsumedRecord]) -> None:
    for record in records:
        life.got(record)
        time.sleep(life.pause_s())


def by_for(life: Life, consumer: Consumer) -> None:
    for record in consumer:
        handle(life, [record])
        if life.is_leaving:
            return


def by_poll(life: Life, consumer: Consumer) -> None:
    handle(life, consumer.poll(WAIT_S, max_records=20))


def by_single_polls(life: Life, consumer: Consumer) -> None:
    handle(life, consumer.poll(WAIT_S, max_records=1))


def by_batches(life: Life, consumer: Consumer) -> None:
    for batch in consumer.poll_batches(WAIT_S, max_batches=3):
        handle(life, batch)


def by_commits(life: Life, consumer: Consumer) -> None:
    by_poll(life, consumer)
    commit(life, consumer)


def by_async_commits(life: Life, consumer: Consumer) -> None:
    for record in consumer:
        handle(life, [record])
        consumer.commit_async(None, lambda _, error: error and life.refused(error))
        if life.is_leaving:
            return


def commit(life: Life, consumer: Consumer) -> None:
    try:
        consumer.commit()
    except KdistError as error:
        life.refused(error)


BLOCKING = {
    "for": by_for,
    "poll": by_poll,
    "single": by_single_polls,
    "batches": by_batches,
    "commit": by_commits,
    "commit_async": by_async_commits,
}


def live(
    life: Life, loop: Callable[[Life, Consumer], None], brokers: str, topic: str, **settings: Any
) -> None:
    with Consumer(brokers, **settings) as consumer:
        consumer.subscribe([topic], life)
        life.consumer = consumer
        with contextlib.suppress(WakenUp):
            while not life.is_leaving:
                loop(life, consumer)
        commit(life, consumer)  # or what it was given last would come again


# --- asyncio ------------------------------------------------------------------------------------


async def aio_handle(life: Life, records: Iterable[ConsumedRecord]) -> None:
    for record in records:
        life.got(record)
        if pause_s := life.pause_s():
            await asyncio.sleep(pause_s)


async def aio_for(life: Life, consumer: aio.Consumer) -> None:
    async for record in consumer:
        await aio_handle(life, [record])
        if life.is_leaving:
            return


async def aio_poll(life: Life, consumer: aio.Consumer) -> None:
    await aio_handle(life, await consumer.poll(WAIT_S, max_records=20))


async def aio_batches(life: Life, consumer: aio.Consumer) -> None:
    for batch in await consumer.poll_batches(WAIT_S, max_batches=3):
        await aio_handle(life, batch)


async def aio_commit(life: Life, consumer: aio.Consumer) -> None:
    await aio_poll(life, consumer)
    await commit_awaited(life, consumer)


async def commit_awaited(life: Life, consumer: aio.Consumer) -> None:
    try:
        await consumer.commit()
    except KdistError as error:
        life.refused(error)


ASYNCIO = {
    "async for": aio_for,
    "await poll": aio_poll,
    "await batches": aio_batches,
    "await commit": aio_commit,
}


async def aio_live(
    life: Life,
    loop: Callable[[Life, aio.Consumer], Coroutine[Any, Any, None]],
    brokers: str,
    topic: str,
    **settings: Any,
) -> None:
    async with aio.Consumer(brokers, **settings) as consumer:
        consumer.subscribe([topic], life)
        life.consumer = consumer
        with contextlib.suppress(WakenUp):
            while not life.is_leaving:
                await loop(life, consumer)
        await commit_awaited(life, consumer)


@contextlib.asynccontextmanager
async def stalls_noted(journal: Journal) -> AsyncIterator[None]:
    """The most CPU time of this thread between two turns of its loop."""

    async def watch() -> None:
        nonlocal longest_s
        before_s = time.thread_time()
        while True:
            await asyncio.sleep(TICK_S)
            now_s = time.thread_time()
            longest_s, before_s = max(longest_s, now_s - before_s), now_s

    longest_s = 0.0
    watching = asyncio.create_task(watch())
    yield
    watching.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await watching
    journal.note("stall", longest_s)


# --- members that come and go -------------------------------------------------------------------


class Group:
    """The members; each stays until another has joined in its place."""

    def __init__(self, arguments: list[str]) -> None:
        self.loop, strategy, brokers, topic, path, seed = arguments
        self.where = brokers, topic
        self.journal = Journal(path)
        logging.getLogger("kdist").addHandler(Refusals(self.journal))
        self.rng = random.Random(seed)
        slow = topic == "slow"
        self._pause_s = partial(self.rng.uniform, *SLOW_S) if slow else float
        self.settings = SETTINGS | {
            "group_id": f"{self.loop}, {strategy}, {topic}",
            "partition_assignment_strategy": [strategy],
            "enable_auto_commit": "commit" not in self.loop,
        }
        self._count = 0
        self.is_over = threading.Event()
        threading.Thread(target=self._wait_for_the_end, daemon=True, name="stdin").start()

    def _wait_for_the_end(self) -> None:
        sys.stdin.read()
        self.is_over.set()

    def life(self) -> Life:
        self._count += 1
        return Life(self.journal, self._count, self._pause_s)

    def run(self) -> None:
        """Blocking members, a thread each."""
        members: list[tuple[Life, threading.Thread]] = []
        while not self.is_over.is_set():
            while len(members) < MEMBERS + 1:
                life = self.life()
                work = partial(live, life, BLOCKING[self.loop], *self.where, **self.settings)
                thread = threading.Thread(target=work, name=f"member {life.number}")
                thread.start()
                members.append((life, thread))
            self.is_over.wait(self.rng.uniform(*STAY_S))
            life, thread = members.pop(0)
            life.leave()
            thread.join()
        for life, _ in members:
            life.leave()
        for _, thread in members:
            thread.join()

    async def run_awaited(self) -> None:
        """Members of asyncio, tasks of one loop; half of them leave by being cancelled."""
        members: list[tuple[Life, asyncio.Task[None]]] = []
        async with stalls_noted(self.journal):
            while not self.is_over.is_set():
                while len(members) < MEMBERS + 1:
                    life = self.life()
                    work = aio_live(life, ASYNCIO[self.loop], *self.where, **self.settings)
                    members.append((life, asyncio.create_task(work)))
                end_s = time.monotonic() + self.rng.uniform(*STAY_S)
                while time.monotonic() < end_s and not self.is_over.is_set():
                    await asyncio.sleep(WAIT_S)
                await self._leave_awaited(*members.pop(0))
            for life, _ in members:
                life.leave()
            for _, task in members:
                await task
        left = [str(each) for each in asyncio.all_tasks() if each is not asyncio.current_task()]
        self.journal.note("left over", left)

    async def _leave_awaited(self, life: Life, task: asyncio.Task[None]) -> None:
        if self.rng.random() < 0.5:
            life.leave()
            await task
            return
        life.refused("cancelled")  # what it was handling comes again
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


def main() -> None:
    group = Group(sys.argv[1:])
    if group.loop in ASYNCIO:
        asyncio.run(group.run_awaited())
    else:
        group.run()
    end_s = time.monotonic() + GONE_S
    while (left := threads_left()) and time.monotonic() < end_s:
        time.sleep(TICK_S)
    group.journal.note("left over", left)


def threads_left() -> list[str]:
    """The threads that are neither the main one nor the one that waits for the end."""
    return [each.name for each in threading.enumerate() if each.name not in ("MainThread", "stdin")]


if __name__ == "__main__":
    main()
