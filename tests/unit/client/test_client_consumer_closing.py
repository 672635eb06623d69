"""A blocking consumer closed, left or interrupted wherever it is: no record is skipped."""

from __future__ import annotations

import asyncio
import contextlib
import linecache
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from types import FrameType
from typing import Any

import pytest

from kdist import aio
from kdist.client.background import BackgroundLoop
from kdist.client.coding import Decoder
from kdist.client.committed import Offsets
from kdist.client.consumer.batch import ConsumedRecord
from kdist.client.consumer.commits import Commits
from kdist.client.consumer.consumer import Consumer
from kdist.client.consumer.context import WakenUp, Wakeup
from kdist.client.consumer.interceptors import ConsumerInterceptor, ConsumerInterceptors
from kdist.client.consumer.metadata import Metadata
from kdist.client.consumer.opening import Opening, Ready, open_fetched
from kdist.client.consumer.partition import Partition
from kdist.client.consumer.rebalancing import Partitions, RebalanceListener
from kdist.errors import KdistError, UserError
from kdist.model import TopicPartition
from kdist.records.build import build_batch
from kdist.testing.virtual_clock import VirtualClock
from kdist.testing.virtual_loop import VirtualLoop

T0 = TopicPartition("t", 0)


@pytest.fixture
def consumer(monkeypatch: pytest.MonkeyPatch) -> Iterator[Consumer]:
    """A consumer that fetches nothing: it asks for no leader."""
    for name in ("start", "refresh"):
        monkeypatch.setattr(Metadata, name, lambda _: None)
    with Consumer("127.0.0.1:1") as opened:
        opened.assign([T0])
        opened.seek(T0, 0)
        yield opened


def put(consumer: Consumer, counts: list[int], decode: Decoder | None = None) -> None:
    """Make batches of these many records ready."""
    partition = consumer._core.partitions[T0]
    for count in counts:
        start = partition.fetch_position
        values = [b"%d" % number for number in range(start, start + count)]
        data = build_batch(values, timestamp_ms=0, base_offset=start)
        opening = Opening(T0, start, decoders=(None, decode))
        consumer._completed.put(partition, open_fetched(data, opening))


def test_a_listener_called_at_the_close_may_close_its_consumer() -> None:
    """As it does on any other rebalance, to end its program."""

    class Closing(RebalanceListener):
        def on_revoked(self, partitions: Partitions) -> None:
            told.append(list(partitions))
            consumer.close()

    told: list[list[TopicPartition]] = []
    partition = TopicPartition("t", 0)
    consumer = Consumer("127.0.0.1:1", group_id="g", enable_auto_commit=False)
    consumer.subscribe(["t"], Closing())
    consumer._core.partitions[partition] = Partition(partition)
    consumer.close()
    assert told == [[partition]]
    consumer.close()


def given(consumer: Consumer, count: int) -> None:
    """Have this many records of `T0` ready, in batches of four."""
    consumer.assign([T0])
    consumer.seek(T0, 0)
    for start in range(0, count, 4):
        values = [b"%d" % number for number in range(start, start + 4)]
        data = build_batch(values, timestamp_ms=0, base_offset=start)
        opened = open_fetched(data, Opening(T0, start, decoders=(None, None)))
        consumer._completed.put(consumer._core.partitions[T0], opened)


@pytest.fixture
def committed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The positions of `T0` that are committed, at a close or by a call."""
    found: list[int] = []

    async def commit(_: Commits, offsets: Offsets, timeout_s: float | None = None) -> None:
        found.append(offsets[T0].offset)

    monkeypatch.setattr(Commits, "commit", commit)
    for name in ("start", "refresh"):
        monkeypatch.setattr(Metadata, name, lambda _: None)
    return found


class Mishap(Exception):
    """An exception that a program did not expect."""


Work = Callable[[Consumer], None]


def fail_in_a_loop(consumer: Consumer) -> None:
    for record in consumer:
        if record.offset == 5:
            raise Mishap


def fail_after_two_polls(consumer: Consumer) -> None:
    assert [len(consumer.poll(0, max_records=3)) for _ in range(2)] == [3, 3]
    raise Mishap


def fail_after_a_loop_and_a_poll(consumer: Consumer) -> None:
    assert next(iter(consumer)).offset == 0
    assert len(consumer.poll(0, max_records=2)) == 2
    raise Mishap


def fail_after_a_commit(consumer: Consumer) -> None:
    assert len(consumer.poll(0, max_records=6)) == 6
    consumer.commit({T0: 4})
    raise Mishap


def fail_after_a_commit_in_a_held_loop(consumer: Consumer) -> None:
    for record in consumer:
        consumer._background.call(consumer._core.iteration.hold)
        if record.offset == 5:
            consumer.commit()
            raise Mishap


def fail_after_a_seek_back(consumer: Consumer) -> None:
    assert len(consumer.poll(0, max_records=6)) == 6
    consumer.seek(T0, 1)
    assert len(consumer.poll(0)) == 0
    raise Mishap


@pytest.mark.parametrize(
    ("work", "last"),
    [
        (fail_in_a_loop, 5),
        (fail_after_two_polls, 3),
        (fail_after_a_loop_and_a_poll, 1),
        (fail_after_a_commit, 4),
        (fail_after_a_commit_in_a_held_loop, 6),
        (fail_after_a_seek_back, 1),
    ],
)
def test_the_records_returned_last_before_a_failure_are_not_committed(
    committed: list[int], work: Work, last: int
) -> None:
    """They may not have been processed: at least once means that they are returned again."""
    with contextlib.suppress(Mishap), Consumer("127.0.0.1:1", group_id="g") as consumer:
        given(consumer, 8)
        work(consumer)
    assert committed[-1] == last


def test_a_close_while_an_exception_is_handled_commits_what_was_processed(
    committed: list[int],
) -> None:
    consumer = Consumer("127.0.0.1:1", group_id="g")
    given(consumer, 8)
    try:
        for record in consumer:
            assert record.offset < 2
    except AssertionError:
        consumer.close()
    assert committed == [2]


def test_all_returned_records_are_committed_at_a_normal_close(committed: list[int]) -> None:
    with Consumer("127.0.0.1:1", group_id="g") as consumer:
        given(consumer, 8)
        for record in consumer:
            if record.offset == 5:
                break
    assert committed == [6]


def eight_given(consumer: aio.Consumer) -> None:
    consumer.assign([T0])
    consumer.seek(T0, 0)
    data = build_batch([b"x"] * 8, timestamp_ms=0, base_offset=0)
    opened = open_fetched(data, Opening(T0, 0, decoders=(None, None)))
    consumer._core.completed.put(consumer._core.partitions[T0], opened)


async def fail_at(offset: int) -> None:
    async with aio.Consumer("127.0.0.1:1", group_id="g") as consumer:
        eight_given(consumer)
        async for record in consumer:
            if record.offset == offset:
                raise KeyError


def test_the_record_at_which_an_awaited_loop_failed_is_not_committed(committed: list[int]) -> None:
    with pytest.raises(KeyError):
        asyncio.run(fail_at(5))
    assert committed == [5]


async def commit_after_each() -> None:
    async with aio.Consumer("127.0.0.1:1", group_id="g") as consumer:
        eight_given(consumer)
        async for record in consumer:
            await consumer.commit()
            assert await consumer.position(T0) == record.offset + 1
            if record.offset == 7:
                break


def test_a_commit_within_an_awaited_loop_fetches_nothing_again(committed: list[int]) -> None:
    asyncio.run(commit_after_each())
    assert committed == [*range(1, 9), 8]


def test_a_partition_assigned_again_within_a_loop_goes_on_at_the_next_record(
    committed: list[int],
) -> None:
    del committed
    with Consumer("127.0.0.1:1", group_id="g") as consumer:
        given(consumer, 4)
        next(iter(consumer))
        consumer.assign([T0])
        assert consumer.position(T0) == 1
        assert [record.offset for record in consumer.poll(1)] == [1, 2, 3]  # not fetched again


def test_a_second_thread_is_refused_while_the_first_is_in_a_call(committed: list[int]) -> None:
    """Otherwise both would get some records twice and lose others."""
    del committed
    outcomes: list[object] = []

    def poll() -> None:
        try:
            outcomes.append(consumer.poll())
        except KdistError as refused:
            outcomes.append(refused)

    with Consumer("127.0.0.1:1") as consumer:
        given(consumer, 0)
        first = threading.Thread(target=poll)
        first.start()
        while consumer._sole_use.lock.acquire(blocking=False):
            consumer._sole_use.lock.release()
        for call in (consumer.poll, consumer.commit, lambda: next(iter(consumer))):
            with pytest.raises(UserError, match="another thread is using the consumer"):
                call()
        consumer.wakeup()
        first.join(10)
        assert isinstance(outcomes.pop(), WakenUp)
        first = threading.Thread(target=poll)
        first.start()
        while consumer._sole_use.lock.acquire(blocking=False):
            consumer._sole_use.lock.release()
    first.join(10)  # closed by the end of `with`, in this thread
    assert isinstance(outcomes.pop(), UserError)  # `ConsumerClosed`, if it had not begun to wait


def test_a_loop_that_is_left_and_restarted_resumes_where_it_was(consumer: Consumer) -> None:
    put(consumer, [3, 3])
    found = []
    for _ in range(4):
        for record in consumer:
            found.append(record.offset)
            assert consumer.position(T0) == len(found)
            break
    assert found == [0, 1, 2, 3]


def test_concurrent_loops_share_the_records(consumer: Consumer) -> None:
    put(consumer, [3, 3, 3])
    one, other = iter(consumer), iter(consumer)
    assert [next(each).offset for _ in range(4) for each in (one, other)] == list(range(8))
    assert consumer.position(T0) == 8


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
def test_records_of_an_interrupted_poll_count_as_not_returned(
    consumer: Consumer, error: type[BaseException]
) -> None:
    def decode(value: bytes) -> bytes:
        if value == b"7":
            raise error
        return value

    put(consumer, [5, 5], decode)
    assert len(consumer.poll(1, max_records=2)) == 2
    with pytest.raises(error):
        consumer.poll(1, max_records=100)
    assert consumer.position(T0) == 2
    assert consumer._core.partitions[T0].fetch_position == 2
    put(consumer, [5])
    assert [record.offset for record in consumer.poll(1)] == [2, 3, 4, 5, 6]


def test_a_poll_interrupted_while_it_waits_returns_nothing_twice(
    consumer: Consumer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    put(consumer, [5])
    assert len(consumer.poll(1)) == 5
    monkeypatch.setattr(consumer._core.context.wakeup, "wait_in_thread", interrupt)
    with pytest.raises(KeyboardInterrupt):
        consumer.poll(1)
    assert consumer.position(T0) == 5


@pytest.mark.parametrize(
    ("take", "begun", "end"),
    [
        (lambda consumer: consumer.poll(1), 0, 9),
        (lambda consumer: consumer.poll_batches(1), 0, 9),
        (lambda consumer: [next(iter(consumer))], 0, 1),
        (lambda consumer: [next(iter(consumer))], 1, 2),
        (lambda consumer: consumer.poll(1), 1, 9),
    ],
    ids=["records", "batches", "loop", "held loop", "held loop's rest"],
)
def test_wherever_a_poll_is_interrupted_the_next_resumes_where_it_began(
    consumer: Consumer, take: Callable[[Consumer], list[Any]], begun: int, end: int
) -> None:
    """At each line in turn, but not as a `with` ends: first it lets go of its lock."""

    def interrupt(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal left
        name = frame.f_code.co_filename
        if "/client/consumer/" not in name:
            return None
        if event == "line" and not linecache.getline(name, frame.f_lineno).strip().startswith("w"):
            left -= 1
            if left < 0:
                sys.settrace(None)
                raise KeyboardInterrupt
        return interrupt

    lines, found = 0, list[Any]()
    while not found:
        consumer.seek(T0, 0)
        put(consumer, [3, 2, 4])
        if begun:
            next(iter(consumer))
            consumer._background.call(consumer._core.iteration.hold)
        left = lines
        sys.settrace(interrupt)
        try:
            found = take(consumer)
        except KeyboardInterrupt:
            lines += 1
        finally:
            sys.settrace(None)
        position = consumer.position(T0)
        assert position == (end if found else begun)
        fetched = consumer._core.partitions[T0].fetch_position
        if fetched < 9:
            put(consumer, [9 - fetched])
        assert [each.offset for each in consumer.poll(0)] == list(range(position, 9))
    assert lines > 50


class Interrupted:
    """A lock at whose release a signal arrives, once: its handler runs before the next line."""

    def __init__(self, lock: Any) -> None:
        self.is_due = True
        self._lock = lock

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()
        if self.is_due:
            self.is_due = False
            raise KeyboardInterrupt

    def acquire(self, blocking: bool) -> bool:
        return bool(self._lock.acquire(blocking))

    def release(self) -> None:
        self._lock.release()


def test_a_poll_interrupted_as_it_lets_other_threads_in_returns_its_records_again(
    consumer: Consumer,
) -> None:
    """They were lost: Python handles signals at the end of a `with`, too."""
    put(consumer, [2])
    assert len(consumer.poll(1)) == 2
    put(consumer, [3])
    consumer._sole_use.lock = Interrupted(consumer._sole_use.lock)  # type: ignore[assignment]
    with pytest.raises(KeyboardInterrupt):
        consumer.poll(1)
    assert consumer.position(T0) == 2


def test_a_run_that_is_being_taken_counts_as_ready_all_the_time(
    consumer: Consumer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the loop may reset the position meanwhile, and the run has none to begin at."""

    def pass_on(partition: Partition, ready: Ready) -> None:
        move_on(partition, ready)
        seen.append(partition.has_ready)

    move_on, seen = Partition._pass, list[bool]()
    monkeypatch.setattr(Partition, "_pass", pass_on)
    put(consumer, [1])
    next(iter(consumer))
    assert seen == [True]
    consumer.poll(0)
    assert not consumer._core.partitions[T0].has_ready


def test_a_record_of_a_loop_whose_interceptor_is_interrupted_is_yielded_again(
    consumer: Consumer,
) -> None:
    """It was skipped, though a poll's would be returned again."""

    class Interrupting(ConsumerInterceptor):
        is_due = False

        def on_consume(self, records: list[ConsumedRecord]) -> list[ConsumedRecord]:
            if self.is_due:
                self.is_due = False
                raise KeyboardInterrupt
            return records

    one = Interrupting()
    consumer._interceptors = ConsumerInterceptors([one], lambda: 0.0)
    put(consumer, [4])
    found = [next(iter(consumer)).offset]
    for left in (2, 1):
        one.is_due = True
        with pytest.raises(KeyboardInterrupt):
            next(iter(consumer))
        assert consumer.position(T0) == 3 - left
        found.append(next(iter(consumer)).offset)
    assert found + [each.offset for each in consumer.poll(0)] == [0, 1, 2, 3]


def test_a_poll_all_of_whose_records_an_interceptor_drops_ends_in_time(consumer: Consumer) -> None:
    """It went on for as long as there were records."""

    class Dropping(ConsumerInterceptor):
        count = 0

        def on_consume(self, records: list[ConsumedRecord]) -> list[ConsumedRecord]:
            self.count += 1
            if self.count < 100:
                put(consumer, [1])
            return []

    dropping = Dropping()
    consumer._interceptors = ConsumerInterceptors([dropping], lambda: 0.0)
    put(consumer, [1])
    assert consumer.poll(0, 1) == []
    assert dropping.count < 5


def test_a_waiter_on_the_loop_wakes_up_when_there_is_news() -> None:
    async def scenario() -> None:
        wakeup = Wakeup()
        wakeup.set()
        await wakeup.wait(3600)  # it is known at once
        wakeup.clear()
        loop = asyncio.get_running_loop()
        loop.call_later(2, wakeup.set)
        await wakeup.wait(3600)
        assert 2 <= loop.time() < 3

    VirtualLoop(VirtualClock()).run_until_complete(scenario())


def test_a_timeout_as_small_as_a_rounding_error_ends() -> None:
    async def scenario() -> None:
        loop, wakeup = asyncio.get_running_loop(), Wakeup()
        started_s = loop.time()
        await wakeup.wait(8.9e-16)
        assert loop.time() > started_s

    clock = VirtualClock()
    clock.advance_ns(6_825_776_807)
    VirtualLoop(clock).run_until_complete(scenario())


def test_a_cancellation_that_races_with_news_is_kept() -> None:
    async def scenario() -> None:
        for turns in range(5):
            wakeup = Wakeup()
            waiting = asyncio.ensure_future(wakeup.wait(3600))
            await asyncio.sleep(0)
            wakeup.set()
            for _ in range(turns):
                await asyncio.sleep(0)
            was_under_way = waiting.cancel()
            await asyncio.wait([waiting])
            assert waiting.cancelled() == was_under_way

    VirtualLoop(VirtualClock()).run_until_complete(scenario())


def test_a_thread_wakes_up_once_for_each_news() -> None:
    wakeup, woken = Wakeup(), threading.Event()

    def wait() -> None:
        wakeup.wait_in_thread(60)
        woken.set()

    waiting = threading.Thread(target=wait)
    waiting.start()
    wakeup.set()
    wakeup.set()
    assert woken.wait(60)
    waiting.join()
    wakeup.wait_in_thread(0.01)  # a wake-up that came after the thread was woken up counts, too
    assert not wakeup._bell.acquire(blocking=False)


def test_a_call_that_waits_fails_when_another_thread_closes_the_client() -> None:
    background, begun = BackgroundLoop("test"), threading.Event()

    async def work() -> None:
        begun.set()
        await asyncio.Event().wait()

    with ThreadPoolExecutor(1) as thread:
        waiting = thread.submit(lambda: background.run(work()))
        assert begun.wait(60)
        background.stop()
        with pytest.raises(UserError, match="the client was closed meanwhile"):
            waiting.result(60)


def test_calls_that_race_with_the_close_fail_and_do_not_hang() -> None:
    """At whatever moment they are made: no call waits for a loop that has stopped."""

    async def work() -> None:
        await asyncio.sleep(0)

    def ask(background: BackgroundLoop) -> None:
        def ask_on() -> None:
            while True:
                background.run(work())

        with pytest.raises(UserError, match="the client was closed meanwhile"):
            ask_on()

    for _ in range(20):
        background = BackgroundLoop("test")
        with ThreadPoolExecutor(4) as threads:
            asking = [threads.submit(ask, background) for _ in range(2)]
            stopping = [threads.submit(background.stop) for _ in range(2)]
            for each in (*asking, *stopping):
                each.result(60)
        background.stop()


def test_a_blocking_call_on_the_loops_own_thread_is_refused() -> None:
    background = BackgroundLoop("test")

    async def work() -> str:
        with pytest.raises(UserError) as caught:
            background.call(int)
        return str(caught.value)

    assert background.run(work()) == "a callback of the client cannot wait for it"
    background.stop()


def test_a_callback_may_close_the_client() -> None:
    background = BackgroundLoop("test")
    with pytest.raises(UserError, match="the client was closed meanwhile"):
        background.run(background.call_back(background.stop))
