"""Closing a blocking consumer, from wherever it is done."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable

import pytest

from kdist import aio
from kdist.client.committed import Offsets
from kdist.client.consumer.commits import Commits, Turn
from kdist.client.consumer.consumer import Consumer
from kdist.client.consumer.core import WakenUp
from kdist.client.consumer.metadata import Metadata
from kdist.client.consumer.opening import Opening, open_fetched
from kdist.client.consumer.partition import Partition
from kdist.client.consumer.rebalancing import Partitions, RebalanceListener
from kdist.errors import KdistError, UserError
from kdist.model import TopicPartition
from kdist.records.build import build_batch

T0 = TopicPartition("t", 0)


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

    async def commit(
        _: Commits, offsets: Offsets, timeout_s: float | None = None, turn: Turn | None = None
    ) -> None:
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
