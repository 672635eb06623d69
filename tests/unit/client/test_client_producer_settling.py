"""A producer whose answers come late or never, and its close: no duplicates, no open futures."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from typing import Any

import pytest

from kdist.client.producer.callbacks import CallbackHandler
from kdist.client.producer.faults import DeliveryTimedOut, ProducerClosed
from kdist.client.producer.message import Message
from kdist.errors import Error
from kdist.model import TopicPartition
from kdist.protocol.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from tests.unit.client.producer_world import FINE, Fault, Scene, play
from tests.unit.client.test_client_producer_sending import SMALL, numbers, once

T0 = TopicPartition("t", 0)


def test_while_an_epoch_is_refused_nothing_is_sent_without_a_producer_id() -> None:
    async def work(scene: Scene) -> None:
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

    play(work, partitions=2)


def test_the_batch_behind_an_expired_one_is_not_written_twice() -> None:
    """Both are in the log, and their answers are lost until the first has expired."""

    async def work(scene: Scene) -> None:
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

    play(work)


def test_a_new_leader_gets_nothing_before_requests_in_flight_to_the_old_one_end() -> None:
    """The old leader is frozen: what it was sent is in the log, and so many batches follow that the
    new leader would no longer recognise a duplicate.
    """

    async def work(scene: Scene) -> None:
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

    play(work, hosts=2)


class Failing(CallbackHandler):
    """An application's handler with bugs."""

    def after_dequeue(self, topic: str, partition: int, messages: Sequence[Message]) -> None:
        if partition == 1:
            raise ValueError("at the end of the queue")

    def last_batch_before_close(self) -> Iterable[tuple[str, Message]]:
        raise ValueError("at the end of all")


def test_a_handler_that_raises_stops_no_batch() -> None:
    async def work(scene: Scene) -> None:
        heard: list[str] = []
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: heard.append(str(context["exception"])))
        producer = await scene.producer(callback_handler=Failing()).start()
        sent = [await producer.send("t", b"a", partition=number) for number in range(2)]
        with pytest.raises(ValueError, match="at the end of all"):
            await producer.close()
        assert [(await each).offset for each in sent] == [0, 0]
        assert heard == ["at the end of the queue"]

    play(work, partitions=2)


def test_a_callback_that_raises_stops_no_other_callback() -> None:
    async def work(scene: Scene) -> None:
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

    play(work, partitions=2)


class Watching(CallbackHandler):
    """An application's handler that keeps its arguments."""

    def __init__(self) -> None:
        self.seen: list[Message] = []

    def after_dequeue(self, topic: str, partition: int, messages: Sequence[Message]) -> None:
        self.seen += messages


def test_a_handler_sees_headers_as_they_were_passed() -> None:
    async def work(scene: Scene) -> None:
        handler = Watching()
        headers = (("h", b"x"),)
        async with scene.producer(linger_ms=1000, callback_handler=handler) as producer:
            for each in (headers, None, headers):
                await producer.send("t", b"a", headers=each)
        assert [message.headers for message in handler.seen] == [headers, (), headers]

    play(work)


def test_the_batch_behind_one_that_cannot_be_encoded_is_sent() -> None:
    async def work(scene: Scene) -> None:
        async with scene.producer(linger_ms=0) as producer:
            await producer.send_and_wait("t", b"0")
            lock, seal = producer._started.accumulator.lock, producer._started.accumulator.seal
            sent = []
            for value in (b"a", b"b"):
                sent.append(await producer.send("t", value))
                with lock:
                    seal(sent[-1]._batch.queue)
            sent[0]._batch.values[0] = 5  # type: ignore[call-overload]
            await asyncio.sleep(1)
            assert isinstance(sent[0].exception(), TypeError)
            assert sent[1].result().offset == 1

    play(work)


def test_a_close_that_is_cancelled_leaves_nothing_open() -> None:
    async def work(scene: Scene) -> None:
        scene.brokers.fault = lambda *_: Fault(is_written=False, error=Error.NOT_ENOUGH_REPLICAS)
        producer = await scene.producer().start()
        sent = await producer.send("t", b"a")
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(producer.close(), 2)
        assert isinstance(sent.exception(0), ProducerClosed)
        await producer.close()
        await asyncio.sleep(1)
        assert asyncio.all_tasks() == {asyncio.current_task()}

    play(work)


def test_acks_0_requests_are_written_out_before_connections_are_closed() -> None:
    async def work(scene: Scene) -> None:
        values = [b"%d" % number * 100_000 for number in range(10)]
        async with scene.producer(acks=0) as producer:
            for value in values:
                await producer.send("t", value)
        await asyncio.sleep(1)
        assert scene.brokers.kept[T0].values() == values

    play(work)


def test_a_socket_that_accepts_nothing_is_not_waited_for_for_ever() -> None:
    async def work(scene: Scene) -> None:
        async with scene.producer(acks=0, request_timeout_ms=2_000) as producer:
            await producer.send_and_wait("t", b"a")
            scene.network.partition({"b0"}, {"client"})
            begun_s = scene.brokers.loop.time()
            await producer.send("t", bytes(900_000))
        assert scene.brokers.loop.time() - begun_s < 3

    play(work)


def test_a_send_waiting_for_a_topic_fails_when_the_producer_is_closed() -> None:
    async def work(scene: Scene) -> None:
        scene.brokers.topic_errors["t"] = Error.LEADER_NOT_AVAILABLE
        producer = await scene.producer().start()
        sending = asyncio.ensure_future(producer.send("t", b"a"))
        await asyncio.sleep(1)
        await producer.close()
        with pytest.raises(ProducerClosed):
            await asyncio.wait_for(sending, 1)

    play(work)
