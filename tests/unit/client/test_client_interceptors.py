"""Interceptors: what they see and change, in which order, and that their errors break nothing."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from kdist import ConsumerInterceptor, ProducerInterceptor, ProducerRecord, RecordMetadata
from kdist.classic import CallbackHandler, Message
from kdist.client.committed import Offsets
from kdist.client.consumer.batch import ConsumedRecord
from kdist.client.consumer.consumer import Consumer as BlockingConsumer
from kdist.client.offsets import OffsetAndMetadata
from kdist.client.producer.faults import BufferFull, ProducerClosed
from kdist.client.producer.sync import Producer
from kdist.errors import ApiError, Error, WrongType
from kdist.model import TopicPartition
from kdist.records.record import Headers
from tests.refusals import refused
from tests.simulator.cluster import Cluster
from tests.unit.cli.cli_cluster import CliCluster, cli_cluster
from tests.unit.client.client_group_world import TOPIC, Group, consumer_on, with_topic
from tests.unit.client.producer_world import FINE, Fault, Scene, play

T0, ZERO = TopicPartition("t", 0), TopicPartition(TOPIC, 0)
Seen = list[tuple[Any, ...]]


class Sending(ProducerInterceptor):
    """Adds its name to value and headers, and notes what happens."""

    def __init__(self, name: str, seen: Seen) -> None:
        self.name = name
        self.seen = seen

    def on_send(self, record: ProducerRecord) -> ProducerRecord:
        self.seen.append((self.name, "send", record.value))
        headers = (*record.headers, (self.name, b""))
        return record._replace(value=record.value + self.name.encode(), headers=headers)

    def on_acknowledgement(
        self, metadata: RecordMetadata, error: BaseException | None, headers: Headers
    ) -> None:
        names = "".join(name for name, _ in headers)
        self.seen.append((self.name, names, metadata[:3], type(error)))

    def close(self) -> None:
        self.seen.append((self.name, "close"))


class Broken(ProducerInterceptor, ConsumerInterceptor):
    """Raises whatever it is called for."""

    def _fail(self, *_: Any) -> Any:
        raise OSError("it is broken")

    on_send = on_acknowledgement = on_consume = on_commit = close = _fail


# Producers


@pytest.mark.played(by=play)
async def test_each_interceptor_gets_what_the_one_before_it_made(scene: Scene, /) -> None:
    seen: Seen = []
    interceptors = [Sending("a", seen), Broken(), Sending("b", seen)]
    async with scene.producer(interceptors=interceptors) as producer:
        metadata = await producer.send_and_wait("t", b"x")
    assert metadata.offset == 0
    (record,) = scene.brokers.kept[T0].records
    assert (record.value, record.headers) == (b"xab", (("a", b""), ("b", b"")))
    ends = [(name, "ab", ("t", 0, 0), type(None)) for name in "ab"]
    assert seen == [
        ("a", "send", b"x"),
        ("b", "send", b"xa"),
        *ends,
        ("a", "close"),
        ("b", "close"),
    ]


@pytest.mark.played(by=play)
async def test_every_record_of_a_call_is_acknowledged_with_its_offset(scene: Scene, /) -> None:
    seen: Seen = []
    scene.brokers.batch_bytes_max = 300  # so that batches are cut in two
    async with scene.producer(interceptors=[Sending("a", seen)], linger_ms=5) as producer:
        ranges = await (await producer.send_many("t", [b"%d" % n for n in range(40)]))
    assert [(each.start, each.end) for each in ranges[0]] == [(0, 40)]
    values = scene.brokers.kept[T0].values()
    assert values == [b"%da" % number for number in range(40)]
    told = [event[2][2] for event in seen if event[1] == "a"]
    assert sorted(told) == list(range(40))


@pytest.mark.played(by=play)
async def test_a_record_that_fails_is_told_with_its_error(scene: Scene, /) -> None:
    seen: Seen = []
    fault = Fault(is_written=False, error=Error.TOPIC_AUTHORIZATION_FAILED)
    scene.brokers.fault = lambda *_: fault
    async with scene.producer(interceptors=[Sending("a", seen)]) as producer:
        with refused(Error.TOPIC_AUTHORIZATION_FAILED):
            await producer.send_and_wait("t", b"x")
    assert seen[1] == ("a", "a", ("t", 0, -1), ApiError)


@pytest.mark.played(by=play)
async def test_a_send_that_raises_is_told_with_what_it_raises(scene: Scene, /) -> None:
    seen: Seen = []
    scene.brokers.fault = lambda *_: Fault(delay_s=5)
    producer = scene.producer(
        interceptors=[Sending("a", seen)], buffer_memory=20_000, max_block_ms=100
    )
    async with producer:
        await producer.send("t", b"x" * 15_000)
        with pytest.raises(BufferFull):
            await producer.send("t", b"x" * 15_000, partition=0)
        with pytest.raises(WrongType):
            await producer.send("t", b"x", key=5)
        scene.brokers.fault = lambda *_: FINE
    with pytest.raises(ProducerClosed):
        await producer.send("t", b"x")
    assert [event[2:] for event in seen if event[1] == "a" and event[3] is not type(None)] == [
        (("t", 0, -1), BufferFull),
        (("t", -1, -1), WrongType),
        (("t", -1, -1), ProducerClosed),
    ]


@pytest.mark.played(by=play)
@pytest.mark.parametrize("hooks", [{}, {"callback_handler": CallbackHandler()}, "interceptors"])
async def test_a_record_too_large_of_many_fails_alone_whoever_looks_on(
    scene: Scene, /, hooks: Any
) -> None:
    seen: Seen = []
    settings = {"interceptors": [Sending("a", seen)]} if hooks == "interceptors" else hooks
    async with scene.producer(max_request_size=1_000, **settings) as producer:
        many = await producer.send_many("t", [b"1", b"x" * 2_000, b"2"], keys=[None] * 3)
        with refused(Error.MESSAGE_TOO_LARGE):
            await many
        assert [count for _, count, _ in many.failures()] == [1]
        with pytest.raises(ValueError, match="shorter" if hooks else "keys"):
            await producer.send_many("t", [b"3"], keys=[])
    assert len(scene.brokers.kept[T0].values()) == 2


@pytest.mark.played(by=play)
async def test_a_close_that_is_cancelled_twice_closes_the_interceptors(scene: Scene, /) -> None:
    """As in a blocking producer, whose caller is interrupted in `close`."""
    seen: Seen = []
    scene.brokers.fault = lambda *_: Fault(delay_s=5)
    producer = await scene.producer(interceptors=[Sending("a", seen)]).start()
    await producer.send("t", b"x")
    closing = asyncio.create_task(producer.close())
    await asyncio.sleep(0.1)
    closing.cancel()
    await asyncio.sleep(0)
    closing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await closing
    await asyncio.sleep(0)
    assert [event[-1] for event in seen[1:]] == [ProducerClosed, "close"]


@pytest.mark.played(by=play)
async def test_a_send_that_is_interrupted_in_an_interceptor_is_told_to_those_before_it(
    scene: Scene, /
) -> None:
    class Interrupted(ProducerInterceptor):
        def on_send(self, record: ProducerRecord) -> ProducerRecord:
            raise KeyboardInterrupt

    seen: Seen = []
    async with scene.producer(interceptors=[Sending("a", seen), Interrupted()]) as producer:
        with pytest.raises(KeyboardInterrupt):
            await producer.send("t", b"x")
        assert seen[1:] == [("a", "a", ("t", -1, -1), KeyboardInterrupt)]


@pytest.mark.played(by=play)
async def test_interceptors_come_before_a_callback_handler(scene: Scene, /) -> None:
    class Handler(CallbackHandler):
        def before_enqueue(self, topic: str, message: Message) -> Message:
            return message._replace(value=message.value + b"h")

    async with scene.producer(
        interceptors=[Sending("a", [])], callback_handler=Handler()
    ) as producer:
        await producer.send_and_wait("t", b"x")
    assert scene.brokers.kept[T0].values() == [b"xah"]


@pytest.mark.played(by=play)
async def test_an_interceptor_that_raises_is_logged_once_a_minute(
    scene: Scene, /, caplog: pytest.LogCaptureFixture
) -> None:
    def logged() -> int:
        return len([each for each in caplog.records if "Broken" in each.getMessage()])

    with caplog.at_level(logging.ERROR, "kdist.client.guard"):
        async with scene.producer(interceptors=[Broken()]) as producer:
            for _ in range(3):
                await producer.send_and_wait("t", b"x")
            first = logged()
            await asyncio.sleep(61)
            await producer.send_and_wait("t", b"x")
    assert (first, logged()) == (1, 2)
    assert scene.brokers.kept[T0].values() == [b"x"] * 4


class Forgetful(ProducerInterceptor, ConsumerInterceptor):
    """Returns nothing."""

    def on_send(self, record: ProducerRecord) -> Any:
        return None

    def on_consume(self, records: list[ConsumedRecord]) -> Any:
        return None


@pytest.mark.played(by=play)
async def test_a_record_is_sent_as_it_was_if_an_interceptor_returns_none(
    scene: Scene, /, caplog: pytest.LogCaptureFixture
) -> None:
    async with scene.producer(interceptors=[Forgetful()]) as producer:
        await producer.send_and_wait("t", b"x")
    assert scene.brokers.kept[T0].values() == [b"x"]
    (logged,) = [each for each in caplog.records if each.name == "kdist.client.guard"]
    assert "Forgetful.on_send" in logged.getMessage()


@pytest.mark.played(by=play)
async def test_records_that_a_close_gives_up_are_told_before_the_end(scene: Scene, /) -> None:
    seen: Seen = []
    scene.brokers.fault = lambda *_: Fault(delay_s=50)
    producer = await scene.producer(interceptors=[Sending("a", seen)]).start()
    await producer.send_many("t", [b"x", b"y"])
    await producer.close(timeout_s=1)
    assert [event[-1] for event in seen] == [b"x", b"y", ProducerClosed, ProducerClosed, "close"]


# Consumers


class Reading(ConsumerInterceptor):
    """Leaves out records with even offsets, and notes what happens."""

    def __init__(self, seen: Seen) -> None:
        self.seen = seen

    def on_consume(self, records: list[ConsumedRecord]) -> list[ConsumedRecord]:
        self.seen.append(tuple(each.offset for each in records))
        return [each for each in records if each.offset % 2]

    def on_commit(self, offsets: Offsets) -> None:
        self.seen.append(("commit", *offsets.items()))

    def close(self) -> None:
        self.seen.append(("close",))


@pytest.mark.played(by=with_topic)
async def test_a_poll_returns_what_the_interceptors_leave_of_it(
    cluster: Cluster, group: Group, /
) -> None:
    await group.produce(6)
    seen: Seen = []
    consumer = consumer_on(cluster, "r", interceptors=[Forgetful(), Reading(seen), Broken()])
    consumer.assign([ZERO])
    consumer.seek(ZERO, 0)
    found: list[int] = []
    while len(found) < 3:
        found += [each.offset for each in await consumer.poll(10, max_records=3)]
    assert found == [1, 3, 5]
    assert seen == [(0, 1, 2), (3, 4, 5)]
    assert await consumer.position(ZERO) == 6
    assert await consumer.poll(0.1) == []
    await consumer.close()
    assert seen[2:] == [("close",)]


@pytest.mark.played(by=with_topic)
async def test_a_loop_that_is_left_goes_on_behind_its_last_record(
    cluster: Cluster, group: Group, /
) -> None:
    """A record that was left out of a run must not be counted off twice."""
    await group.produce(10)
    consumer = consumer_on(cluster, "r", interceptors=[Reading([])])
    consumer.assign([ZERO])
    consumer.seek(ZERO, 0)
    found: list[int] = []
    async for record in consumer:
        found.append(record.offset)
        if record.offset == 3:
            break
    assert await consumer.position(ZERO) == 4
    consumer.pause(ZERO)  # the rest of the run is given back
    consumer.resume(ZERO)
    async for record in consumer:
        found.append(record.offset)
        if record.offset == 7:
            break
    found += [each.offset for each in await consumer.poll(10)]  # of the same run
    assert found == [1, 3, 5, 7, 9]
    await consumer.close()


@pytest.mark.played(by=with_topic)
async def test_commits_are_told_once_the_coordinator_has_them(
    cluster: Cluster, group: Group, /
) -> None:
    await group.produce(4)
    seen: Seen = []
    interceptors = [Broken(), Reading(seen)]
    consumer = consumer_on(
        cluster, "r", group_id="g", auto_offset_reset="earliest", interceptors=interceptors
    )
    consumer.assign([ZERO])
    await consumer.commit({ZERO: 2})
    done = asyncio.Event()
    consumer.commit_async({ZERO: OffsetAndMetadata(3, "note")}, lambda *_: done.set())
    await done.wait()
    with refused(Error.UNKNOWN_TOPIC_OR_PARTITION):
        await consumer.commit({ZERO: 4, TopicPartition(TOPIC, 9): 1})
    commits = [dict(event[1:]) for event in seen if event[0] == "commit"]
    assert commits == [
        {ZERO: OffsetAndMetadata(2)},
        {ZERO: OffsetAndMetadata(3, "note")},
        {ZERO: OffsetAndMetadata(4)},
    ]
    assert consumer.metrics()["kdist_consumer_refused_commits_total"] >= 1
    await consumer.close()


class Committing(Reading):
    """Leaves out nothing."""

    def on_consume(self, records: list[ConsumedRecord]) -> list[ConsumedRecord]:
        return records


@pytest.mark.played(by=with_topic)
async def test_an_auto_commit_is_told(cluster: Cluster, group: Group, /) -> None:
    await group.produce(2)
    seen: Seen = []
    member = group.join(interceptors=[Committing(seen)])
    await cluster.until(lambda: group.is_all_found)
    await member.leave()
    commits = [dict(event[1:])[ZERO].offset for event in seen if event[0] == "commit"]
    assert commits[-1] == 2
    assert seen[-1] == ("close",)


# The blocking clients


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CliCluster]:
    with cli_cluster(tmp_path_factory.mktemp("cluster")) as brokers:
        yield brokers


def test_a_blocking_producers_interceptors_run_in_the_callers_thread(
    running: CliCluster,
) -> None:
    threads: list[tuple[str, bool]] = []

    class Noting(ProducerInterceptor):
        def on_send(self, record: ProducerRecord) -> ProducerRecord:
            threads.append(("send", threading.current_thread() is threading.main_thread()))
            return record._replace(value=record.value.upper())

        def on_acknowledgement(self, *_: Any) -> None:
            threads.append(("done", threading.current_thread() is threading.main_thread()))

    with Producer(running.address, interceptors=[Noting()]) as producer:
        producer.send("shouted", b"x").result(20)
        producer.send_many("shouted", [b"y", b"z"], keys=[b"k", None]).result(20)
    assert sorted(threads) == [("done", False)] * 3 + [("send", True)] * 3
    seen: Seen = []
    with BlockingConsumer(running.address, interceptors=[Reading(seen)]) as consumer:
        consumer.assign(consumer.partitions_for("shouted"))
        consumer.seek_to_beginning()
        found = []
        for record in consumer:
            found.append(record.value)
            if record.value == b"X" or len(found) == 1:
                break
        assert set(found) <= {b"X", b"Y", b"Z"}
        assert all(len(each) == 1 for each in seen)
    assert seen[-1] == ("close",)


def test_a_blocking_send_that_finds_no_room_is_told(running: CliCluster) -> None:
    seen: Seen = []
    with (
        Producer(running.address, interceptors=[Sending("a", seen)], max_block_ms=0) as producer,
        pytest.raises(ApiError),
    ):
        producer.send("not.there", b"x")
    assert (seen[1][2], seen[1][3]) == (("not.there", -1, -1), ApiError)


def test_a_blocking_clients_metrics_are_read_while_it_works_and_after(running: CliCluster) -> None:
    with Producer(running.address, client_id="p") as producer:
        for _ in range(100):
            producer.send("measured", b"x")
        producer.flush(20)
        with BlockingConsumer(running.address, client_id="c") as consumer:
            consumer.assign(consumer.partitions_for("measured"))
            consumer.seek_to_beginning()
            count = 0
            while count < 100:
                count += len(consumer.poll(20))
            text = producer.metrics_text(consumer)
    name = 'kdist_consumer_records_consumed_total{client_id="c",topic="measured"} 100.0'
    assert name in text
    sent = producer.metrics()['kdist_producer_records_sent_total{topic="measured"}']
    read = consumer.metrics()['kdist_consumer_records_consumed_total{topic="measured"}']
    assert (sent, read) == (100, 100)
