"""Exceptions in the middle of a producer's work: no batch is forgotten and no memory leaks."""

from __future__ import annotations

import asyncio
import linecache
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest

from kdist.client.producer.asynchronous import AsyncProducer
from kdist.client.producer.encoding import RequestEncoder
from kdist.client.producer.results import Sent
from kdist.model import TopicPartition
from tests.examples import first_of
from tests.unit.client.producer_world import Scene, play

T0 = TopicPartition("t", 0)


async def opened(scene: Scene, partitions: int, **settings: Any) -> AsyncProducer:
    """A producer that has sent to each partition and is idle."""
    producer = await scene.producer(**settings).start()
    for number in range(partitions):
        await producer.send_and_wait("t", b"0", partition=number)
    await asyncio.sleep(200)
    return producer


async def check_all_is_well(
    scene: Scene, producer: AsyncProducer, partitions: int, lost_bytes: int = 0
) -> None:
    """New records are acknowledged at their offsets, and no memory stays reserved."""
    for number in range(partitions):
        sent = await producer.send("t", b"after", partition=number)
        await asyncio.sleep(1)
        assert sent.done(), "nobody looks at it any more"
        records = scene.brokers.kept[TopicPartition("t", number)].records
        assert records[sent.result().offset].value == b"after"
    memory = producer._started.accumulator.memory
    assert memory.free >= memory.size - lost_bytes
    assert not any(
        queue.in_flight or queue.waiting
        for queue in producer._started.accumulator.topics["t"].queues
    )
    await producer.close()


@pytest.mark.parametrize("error", [MemoryError, RuntimeError])
def test_a_batch_that_cannot_be_encoded_fails_alone(
    monkeypatch: pytest.MonkeyPatch, error: type[Exception]
) -> None:
    """The batches of the same request are sent."""

    async def work(scene: Scene) -> None:
        producer = await opened(scene, 2, linger_ms=20)
        encode = raising(monkeypatch, "encode", error, at=2)
        sent = [await producer.send("t", b"a", partition=number) for number in range(2)]
        await asyncio.sleep(1)
        assert len(encode) == 2
        assert sent[0].result(0).offset == 1
        assert isinstance(sent[1].exception(0), error)
        await check_all_is_well(scene, producer, 2)

    play(work, partitions=2)


@pytest.mark.parametrize(("method", "partitions"), [("frame", 1), ("join", 2)])
def test_a_request_that_runs_out_of_memory_fails(
    monkeypatch: pytest.MonkeyPatch, method: str, partitions: int
) -> None:
    async def work(scene: Scene) -> None:
        producer = await opened(scene, partitions, linger_ms=20)
        raising(monkeypatch, method, MemoryError, at=1)
        sent = [await producer.send("t", b"a", partition=number) for number in range(partitions)]
        await asyncio.sleep(1)
        assert all(isinstance(each.exception(0), MemoryError) for each in sent)
        await check_all_is_well(scene, producer, partitions)

    play(work, partitions=partitions)


def raising(
    monkeypatch: pytest.MonkeyPatch, method: str, error: type[Exception], at: int
) -> list[None]:
    """Have a method of `RequestEncoder` raise at its `at`-th call; yields the calls."""
    calls: list[None] = []
    usual: Callable[..., Any] = getattr(RequestEncoder, method)

    def call(*arguments: Any) -> Any:
        calls.append(None)
        if len(calls) == at:
            raise error
        return usual(*arguments)

    monkeypatch.setattr(RequestEncoder, method, call)
    return calls


def test_an_open_batch_behind_one_that_cannot_be_encoded_is_still_sent() -> None:
    async def work(scene: Scene) -> None:
        producer = await opened(scene, 1, linger_ms=50)
        accumulator = producer._started.accumulator
        bad = await producer.send("t", b"a")
        with accumulator.lock:
            accumulator.seal(bad._batch.queue)
        good = await producer.send("t", b"b")
        bad._batch.values[0] = 5  # type: ignore[call-overload]
        await asyncio.sleep(1)
        assert isinstance(bad.exception(0), TypeError)
        assert good.done()
        await check_all_is_well(scene, producer, 1)

    play(work)


@pytest.mark.parametrize("topic", first_of(["short", "of a key", "with more"]))
def test_after_an_interrupted_send_a_producer_still_sends(topic: str) -> None:
    """At each line in turn: acknowledged records are at their offsets, and nothing hangs."""
    row: dict[str, Any] = {
        "short": {},
        "of a key": {"key": b"k"},
        "with more": {"key": b"k", "headers": [("h", b"x")], "timestamp": 5},
    }[topic]

    async def work(scene: Scene) -> bool:
        producer = await opened(scene, 1, linger_ms=5)
        sent: list[Sent] = [await producer.send("t", b"first", partition=0)] if line % 2 else []
        is_interrupted = False
        sys.settrace(interrupting(line // 2))
        try:
            sent.append(await producer.send("t", b"x", **row))
        except KeyboardInterrupt:
            is_interrupted = True
        finally:
            sys.settrace(None)
        await asyncio.sleep(1)
        await asyncio.wait_for(producer.flush(), 5)
        for each in sent:
            if each.exception(0) is None:
                records = scene.brokers.kept[T0].records
                assert records[each.result().offset].value in {b"first", b"x"}
        await check_all_is_well(scene, producer, 1, lost_bytes=16 << 10)  # of one batch, at most
        return is_interrupted

    line, last = 0, 0
    while line - last < 4:
        if play(work):
            last = line
        line += 1
    assert last > 20


def interrupting(at: int) -> Callable[[FrameType, str, Any], Any]:
    """A trace function that raises before the `at`-th line that the producer runs.

    Not before a `with`: at its end, where Python handles no signal, it would be left open.
    """
    left = at

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal left
        if "/client/producer/" not in frame.f_code.co_filename:
            return None
        line = linecache.getline(frame.f_code.co_filename, frame.f_lineno)
        if event == "line" and not line.lstrip().startswith("with "):
            left -= 1
            if left < 0:
                sys.settrace(None)
                raise KeyboardInterrupt
        return trace

    return trace


def test_unacknowledged_records_can_be_counted_while_the_loop_sends() -> None:
    async def work(scene: Scene) -> None:
        producer = await opened(scene, 1)
        queue = (await producer.send("t", b"a"))._batch.queue
        with producer._started.accumulator.lock:
            producer._started.accumulator.seal(queue)
        await producer.send("t", b"b")
        found = iter(queue.batches())
        next(found)
        queue.mark_in_flight(queue.waiting.popleft())  # as the loop may at any moment
        assert len(list(found)) == 1
        queue.waiting.extend(queue.in_flight)
        queue.in_flight.clear()
        await check_all_is_well(scene, producer, 1)

    play(work)


def test_an_interrupted_wake_up_is_not_relied_on() -> None:
    async def work(scene: Scene) -> None:
        producer = await opened(scene, 1)
        sender = producer._started._sender
        ring, sender._ring = sender._ring, interrupt
        with pytest.raises(KeyboardInterrupt):
            await producer.send("t", b"a")
        sender._ring = ring
        await asyncio.wait_for(producer.flush(), 5)
        await check_all_is_well(scene, producer, 1)

    play(work)


def interrupt() -> None:
    raise KeyboardInterrupt
