"""A producer interrupted, answered late or never, and its close: nothing twice, lost or open."""

from __future__ import annotations

import asyncio
import linecache
import sys
from collections.abc import Callable, Iterable, Sequence
from types import FrameType
from typing import Any

import pytest

from kdist.client.producer.accumulator import Memory
from kdist.client.producer.asynchronous import AsyncProducer
from kdist.client.producer.encoding import RequestEncoder
from kdist.client.producer.faults import DeliveryTimedOut, ProducerClosed
from kdist.client.producer.message import CallbackHandler, Message
from kdist.client.producer.results import Sent
from kdist.errors import Error
from kdist.model import TopicPartition
from kdist.protocol.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from kdist.records.batch import BatchHeader
from tests.examples import first_of
from tests.unit.client.producer_world import FINE, Fault, Scene, play
from tests.unit.client.test_client_producer_sending import SMALL, numbers, once

pytestmark = pytest.mark.played(by=play)


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


@pytest.mark.played(by=play, partitions=2)
async def test_while_an_epoch_is_refused_nothing_is_sent_without_a_producer_id(
    scene: Scene, /
) -> None:
    brokers, answer = scene.brokers, scene.brokers.answer

    def refuse(broker: int, request: Any) -> Any:
        if isinstance(request, InitProducerIdRequest) and request.producer_id >= 0:
            code = Error.INVALID_PRODUCER_EPOCH.code
            return InitProducerIdResponse(error_code=code, producer_id=-1, producer_epoch=-1)
        return answer(broker, request)

    brokers.answer = refuse  # type: ignore[method-assign]
    brokers.fault = once(Fault(is_written=False, error=Error.UNKNOWN_PRODUCER_ID), at=2)
    async with scene.producer(**SMALL, retry_backoff_ms=0) as producer:
        for number in range(300):
            await producer.send("t", b"%d" % number, partition=number % 2)
            await asyncio.sleep(0.0002)
            producer._started._kick()
    ids = {header.producer_id for kept in brokers.kept.values() for header in kept.batches}
    assert ids == {1000, 1001}


async def test_the_batch_behind_an_expired_one_is_not_written_twice(scene: Scene, /) -> None:
    """Both are in the log, and their answers are lost until the first has expired."""
    loop = scene.brokers.loop

    def fault(*_: object) -> Fault:
        if loop.time() < begun_s + 0.9:
            return Fault(delay_s=40)
        return FINE if loop.time() > begun_s + 3.2 else Fault(is_written=False, is_cut=True)

    quick = dict.fromkeys(("retry_backoff_ms", "retry_backoff_max_ms"), 50)
    quick |= dict.fromkeys(("reconnect_backoff_ms", "reconnect_backoff_max_ms"), 50)
    limits = {"request_timeout_ms": 1_000, "delivery_timeout_ms": 3_000}
    async with scene.producer(linger_ms=0, **quick, **limits) as producer:
        await producer.send_and_wait("t", b"0")
        begun_s = loop.time()
        scene.brokers.fault = fault
        first = await producer.send("t", b"1")
        await asyncio.sleep(0.5)
        second = await producer.send("t", b"2")
        with pytest.raises(DeliveryTimedOut):
            await first
        assert (await second).offset == 2
        assert (await producer.send_and_wait("t", b"3")).offset == 3
    assert scene.brokers.kept[T0].values() == numbers(4)


@pytest.mark.parametrize("limits", [{}, {"request_timeout_ms": 2_000}])
async def test_a_record_in_flight_times_out_in_time(
    scene: Scene, /, limits: dict[str, int]
) -> None:
    """It took until the request timeout, 30 s; and longer if it was sent a second time."""
    loop = scene.brokers.loop
    async with scene.producer(delivery_timeout_ms=3_000, linger_ms=0, **limits) as producer:
        await producer.send_and_wait("t", b"0")
        scene.brokers.fault = lambda *_: Fault(delay_s=60)
        begun_s = loop.time()
        with pytest.raises(DeliveryTimedOut, match="within 3000 ms"):
            await producer.send_and_wait("t", b"1")
        assert 3 <= loop.time() - begun_s < 3.01
        scene.brokers.fault = lambda *_: FINE
        assert (await producer.send_and_wait("t", b"2")).offset == 2
    assert scene.brokers.kept[T0].values() == numbers(3)


@pytest.mark.parametrize("is_written", [True, False])
@pytest.mark.parametrize("ends", ["with its answer", "with an error", "with its connection"])
@pytest.mark.parametrize("has_next", [True, False])
async def test_a_batch_that_expired_in_flight_leaves_no_gap_and_is_not_written_twice(
    scene: Scene, /, is_written: bool, ends: str, has_next: bool
) -> None:
    """Its number counts until its request has ended: then it is used, or the epoch is bumped."""
    error = Error.NOT_ENOUGH_REPLICAS if ends == "with an error" else Error.NONE
    if not is_written and not error and ends == "with its answer":
        error = Error.INVALID_RECORD
    delay_s = 2.9 if ends != "with its connection" else 60.0
    timeouts = {"request_timeout_ms": 2_990, "delivery_timeout_ms": 3_000}
    async with scene.producer(linger_ms=0, **timeouts) as producer:
        await producer.send_and_wait("t", b"0")
        scene.brokers.fault = once(Fault(is_written=False, is_cut=True))
        sent = await producer.send("t", b"1")
        await asyncio.sleep(0.01)  # its second attempt goes on beyond its time
        fault = Fault(is_written=is_written, error=error, delay_s=delay_s)
        scene.brokers.fault = once(fault)
        with pytest.raises(DeliveryTimedOut):
            await sent
        queue = sent._batch.queue
        assert queue.in_flight == [sent._batch]
        more = [await producer.send("t", b"2")] if has_next else []
        await asyncio.sleep(5)
        assert not queue.in_flight
        more.append(await producer.send("t", b"3"))
        for each in more:
            assert scene.brokers.kept[T0].records[(await each).offset].value in (b"2", b"3")
    values = [b"0", *[b"1"] * is_written, *[b"2"] * has_next, b"3"]
    assert scene.brokers.kept[T0].values() == values


async def test_batches_are_numbered_anew_only_once_none_is_in_flight(scene: Scene, /) -> None:
    """Two are refused for their sequence, the second of them a second after the first."""
    begun_s = scene.brokers.loop.time()
    later: list[float] = []

    def fault(_: TopicPartition, header: BatchHeader) -> Fault:
        if header.producer_epoch == 0 and header.base_sequence > 0:
            delay_s = 0.1 if header.base_sequence == 1 else 1.1
            error = Error.OUT_OF_ORDER_SEQUENCE_NUMBER
            return Fault(is_written=False, error=error, delay_s=delay_s)
        later.append(scene.brokers.loop.time() - begun_s)
        return FINE

    scene.brokers.fault = fault
    async with scene.producer(linger_ms=0, batch_size=1, retry_backoff_ms=10) as producer:
        await producer.send_and_wait("t", b"0")
        sent = [await producer.send("t", b"%d" % number) for number in (1, 2)]
        assert [(await each).offset for each in sent] == [1, 2]
    kept = scene.brokers.kept[T0]
    numbered = [(each.producer_epoch, each.base_sequence) for each in kept.batches]
    assert numbered == [(0, 0), (1, 0), (1, 1)]
    assert later[1] > 1


@pytest.mark.played(by=play, hosts=2)
async def test_a_new_leader_gets_nothing_before_requests_in_flight_to_the_old_one_end(
    scene: Scene, /
) -> None:
    """The old leader is frozen: what it was sent is in the log, and so many batches follow that the
    new leader would no longer recognise a duplicate.
    """

    async with scene.producer(linger_ms=0) as producer:
        await producer.send_and_wait("t", b"0")
        scene.brokers.fault = once(Fault(delay_s=60))
        sent = [await producer.send("t", b"1")]
        await asyncio.sleep(1)
        scene.brokers.leaders[T0] = 1
        producer._started._metadata.want(["t"])
        for number in range(2, 10):
            await asyncio.sleep(1)
            sent.append(await producer.send("t", b"%d" % number))
        assert [(await each).offset for each in sent] == list(range(1, 10))
    assert scene.brokers.kept[T0].values() == numbers(10)


class Failing(CallbackHandler):
    """An application's handler with bugs."""

    def after_dequeue(self, topic: str, partition: int, messages: Sequence[Message]) -> None:
        if partition == 1:
            raise ValueError("at the end of the queue")

    def last_batch_before_close(self) -> Iterable[tuple[str, Message]]:
        raise ValueError("at the end of all")


@pytest.mark.played(by=play, partitions=2)
async def test_a_handler_that_raises_stops_no_batch(scene: Scene, /) -> None:
    heard: list[str] = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: heard.append(str(context["exception"])))
    producer = await scene.producer(callback_handler=Failing()).start()
    sent = [await producer.send("t", b"a", partition=number) for number in range(2)]
    with pytest.raises(ValueError, match="at the end of all"):
        await producer.close()
    assert [(await each).offset for each in sent] == [0, 0]
    assert heard == ["at the end of the queue"]


@pytest.mark.played(by=play, partitions=2)
async def test_a_callback_that_raises_stops_no_other_callback(scene: Scene, /) -> None:
    heard: list[str] = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: heard.append(str(context["exception"])))
    async with scene.producer(linger_ms=1000) as producer:
        for number in range(2):
            sent = await producer.send("t", b"a", partition=number)
            sent.add_done_callback(lambda each: heard.append(f"at {each.result().partition}"))
            sent.add_done_callback(lambda each: [][each.result().partition])
            sent.add_done_callback(lambda each: heard.append(f"of {each.result().partition}"))
    why = "list index out of range"
    assert heard == ["at 0", why, "of 0", "at 1", why, "of 1"]


class Watching(CallbackHandler):
    """An application's handler that keeps its arguments."""

    def __init__(self) -> None:
        self.seen: list[Message] = []

    def after_dequeue(self, topic: str, partition: int, messages: Sequence[Message]) -> None:
        self.seen += messages


async def test_a_handler_sees_headers_as_they_were_passed(scene: Scene, /) -> None:
    handler = Watching()
    headers = (("h", b"x"),)
    async with scene.producer(linger_ms=1000, callback_handler=handler) as producer:
        for each in (headers, None, headers):
            await producer.send("t", b"a", headers=each)
    assert [message.headers for message in handler.seen] == [headers, (), headers]


async def test_the_batch_behind_one_that_cannot_be_encoded_is_sent(scene: Scene, /) -> None:
    async with scene.producer(linger_ms=0) as producer:
        await producer.send_and_wait("t", b"0")
        lock, seal = producer._started.accumulator.lock, producer._started.accumulator.seal
        sent = []
        for value in (b"a", b"b"):
            sent.append(await producer.send("t", value))
            with lock:
                seal(sent[-1]._batch.queue, is_known=True)
        sent[0]._batch.values[0] = 5  # type: ignore[call-overload]
        await asyncio.sleep(1)
        assert isinstance(sent[0].exception(), TypeError)
        assert sent[1].result().offset == 1


async def test_a_close_that_is_cancelled_leaves_nothing_open(scene: Scene, /) -> None:
    scene.brokers.fault = lambda *_: Fault(is_written=False, error=Error.NOT_ENOUGH_REPLICAS)
    producer = await scene.producer().start()
    sent = await producer.send("t", b"a")
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(producer.close(), 2)
    assert isinstance(sent.exception(0), ProducerClosed)
    await producer.close()
    await asyncio.sleep(1)
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_acks_0_requests_are_written_out_before_connections_are_closed(
    scene: Scene, /
) -> None:
    values = [b"%d" % number * 100_000 for number in range(10)]
    async with scene.producer(acks=0) as producer:
        for value in values:
            await producer.send("t", value)
    await asyncio.sleep(1)
    assert scene.brokers.kept[T0].values() == values


async def test_a_socket_that_accepts_nothing_is_not_waited_for_for_ever(scene: Scene, /) -> None:
    async with scene.producer(acks=0, request_timeout_ms=2_000) as producer:
        await producer.send_and_wait("t", b"a")
        scene.network.partition({"b0"}, {"client"})
        begun_s = scene.brokers.loop.time()
        await producer.send("t", bytes(900_000))
    assert scene.brokers.loop.time() - begun_s < 3


async def test_a_send_waiting_for_a_topic_fails_when_the_producer_is_closed(
    scene: Scene, /
) -> None:
    scene.brokers.topic_errors["t"] = Error.LEADER_NOT_AVAILABLE
    producer = await scene.producer().start()
    sending = asyncio.ensure_future(producer.send("t", b"a"))
    await asyncio.sleep(1)
    await producer.close()
    with pytest.raises(ProducerClosed):
        await asyncio.wait_for(sending, 1)


@pytest.mark.parametrize("error", [MemoryError, RuntimeError])
@pytest.mark.played(by=play, partitions=2)
async def test_a_batch_that_cannot_be_encoded_fails_alone(
    scene: Scene, /, monkeypatch: pytest.MonkeyPatch, error: type[Exception]
) -> None:
    """The batches of the same request are sent."""
    producer = await opened(scene, 2, linger_ms=20)
    encode = raising(monkeypatch, "encode", error, at=2)
    sent = [await producer.send("t", b"a", partition=number) for number in range(2)]
    await asyncio.sleep(1)
    assert len(encode) == 2
    assert sent[0].result(0).offset == 1
    assert isinstance(sent[1].exception(0), error)
    await check_all_is_well(scene, producer, 2)


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


async def test_an_open_batch_behind_one_that_cannot_be_encoded_is_still_sent(
    scene: Scene, /
) -> None:
    producer = await opened(scene, 1, linger_ms=50)
    accumulator = producer._started.accumulator
    bad = await producer.send("t", b"a")
    with accumulator.lock:
        accumulator.seal(bad._batch.queue, is_known=True)
    good = await producer.send("t", b"b")
    bad._batch.values[0] = 5  # type: ignore[call-overload]
    await asyncio.sleep(1)
    assert isinstance(bad.exception(0), TypeError)
    assert good.done()
    await check_all_is_well(scene, producer, 1)


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


@pytest.mark.parametrize("row", [{"key": b"k"}, {"headers": [("h", b"x")]}, {"timestamp": 5}])
async def test_an_interrupted_send_takes_no_other_record_with_it(
    scene: Scene, /, monkeypatch: pytest.MonkeyPatch, row: dict[str, Any]
) -> None:
    producer = await opened(scene, 1)
    before = await producer.send("t", b"before", **row)
    with monkeypatch.context() as patch:
        patch.setattr(Sent, "__init__", lambda *_: interrupt())  # at its start, as a signal's
        with pytest.raises(KeyboardInterrupt):
            await producer.send("t", b"x", **row)
    after = await producer.send("t", b"after", **row)
    assert ((await before).offset, (await after).offset) == (1, 2)
    await check_all_is_well(scene, producer, 1)


async def test_a_batch_whose_opening_is_interrupted_is_due_all_the_same(
    scene: Scene, /, monkeypatch: pytest.MonkeyPatch
) -> None:
    producer = await opened(scene, 1)
    await asyncio.sleep(1)  # until the loop looks for nothing
    with monkeypatch.context() as patch:
        patch.setattr(Memory, "is_wanted", property(lambda _: interrupt()))
        with pytest.raises(KeyboardInterrupt):
            await producer.send("t", b"x")
    sent = await producer.send("t", b"a")
    await asyncio.sleep(1)
    assert sent.done()
    await check_all_is_well(scene, producer, 1, lost_bytes=16 << 10)


async def test_unacknowledged_records_can_be_counted_while_the_loop_sends(scene: Scene, /) -> None:
    producer = await opened(scene, 1)
    queue = (await producer.send("t", b"a"))._batch.queue
    with producer._started.accumulator.lock:
        producer._started.accumulator.seal(queue, is_known=True)
    await producer.send("t", b"b")
    found = iter(queue.batches())
    next(found)
    queue.mark_in_flight(queue.waiting.popleft())  # as the loop may at any moment
    assert len(list(found)) == 1
    queue.waiting.extend(queue.in_flight)
    queue.in_flight.clear()
    await check_all_is_well(scene, producer, 1)


async def test_an_interrupted_wake_up_is_not_relied_on(scene: Scene, /) -> None:
    producer = await opened(scene, 1)
    sender = producer._started._sender
    ring, sender._ring = sender._ring, interrupt
    with pytest.raises(KeyboardInterrupt):
        await producer.send("t", b"a")
    sender._ring = ring
    await asyncio.wait_for(producer.flush(), 5)
    await check_all_is_well(scene, producer, 1)


def interrupt() -> None:
    raise KeyboardInterrupt
