"""A producer and failing brokers in virtual time: what arrives, in which order, how often."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest

from kdist.client.producer.asynchronous import AsyncProducer
from kdist.client.producer.batch import ProducerBatch
from kdist.client.producer.faults import (
    BufferFull,
    DeliveryTimedOut,
    ProducerClosed,
    RecordTooLarge,
)
from kdist.client.producer.results import Sent
from kdist.errors import Error
from kdist.model import OffsetRange, TopicPartition
from kdist.protocol.init_producer_id import InitProducerIdRequest
from kdist.protocol.produce import ProduceRequest
from kdist.records.batch import BatchHeader
from tests.examples import first_of
from tests.refusals import refused
from tests.unit.client.producer_world import FINE, Fault, Scene, play

pytestmark = pytest.mark.played(by=play)


T0 = TopicPartition("t", 0)
SMALL: dict[str, Any] = {"batch_size": 200, "linger_ms": 0}


def once(fault: Fault, at: int = 0) -> Callable[[TopicPartition, BatchHeader], Fault]:
    """This fault for the `at`-th batch, and none for the others."""
    left = [FINE] * at + [fault]
    return lambda *_: left.pop(0) if left else FINE


async def send_some(scene: Scene, count: int = 60, **settings: Any) -> list[int]:
    """The offsets of records `0` to `count`, sent without waiting for each."""
    async with scene.producer(**SMALL | settings) as producer:
        sent = []
        for number in range(count):
            sent.append(await producer.send("t", b"%d" % number))
            await asyncio.sleep(0)
        return [(await each).offset for each in sent]


def numbers(count: int = 60) -> list[bytes]:
    return [b"%d" % number for number in range(count)]


async def test_records_arrive_in_order_with_their_offsets(scene: Scene, /) -> None:
    assert await send_some(scene) == list(range(60))
    assert scene.brokers.kept[T0].values() == numbers()
    assert len(scene.brokers.kept[T0].batches) > 5


@pytest.mark.parametrize(
    "fault",
    [
        Fault(is_cut=True),
        Fault(is_written=False, is_cut=True),
        Fault(error=Error.REQUEST_TIMED_OUT),
        Fault(is_written=False, error=Error.NOT_ENOUGH_REPLICAS),
        Fault(error=Error.NOT_ENOUGH_REPLICAS_AFTER_APPEND),
        Fault(is_written=False, error=Error.UNKNOWN_TOPIC_OR_PARTITION),
        Fault(delay_s=40),
        Fault(is_written=False, error=Error.OUT_OF_ORDER_SEQUENCE_NUMBER),
        Fault(is_written=False, error=Error.UNKNOWN_PRODUCER_ID),
        Fault(is_written=False, error=Error.INVALID_PRODUCER_EPOCH),
    ],
)
async def test_after_a_retriable_fault_every_record_is_written_once(
    scene: Scene, /, fault: Fault
) -> None:
    scene.brokers.fault = once(fault, at=2)
    assert await send_some(scene) == list(range(60))
    assert scene.brokers.kept[T0].values() == numbers()


@pytest.mark.parametrize("seed", first_of(range(40), 10))
def test_whatever_fails_every_record_is_written_once_and_in_order(seed: int) -> None:
    faults = [
        Fault(is_cut=True),
        Fault(is_written=False, is_cut=True),
        Fault(error=Error.REQUEST_TIMED_OUT),
        Fault(is_written=False, error=Error.NOT_ENOUGH_REPLICAS),
        Fault(delay_s=0.3),
    ]

    async def work(scene: Scene) -> None:
        brokers, rng = scene.brokers, scene.rng

        def fault(partition: TopicPartition, header: BatchHeader) -> Fault:
            if rng.random() < 0.05:
                brokers.leaders[partition] = rng.randrange(2)
            return rng.choice(faults) if rng.random() < 0.3 else FINE

        brokers.fault = fault
        async with scene.producer(**SMALL) as producer:
            sent: list[tuple[int, Sent]] = []
            for number in range(400):
                place = rng.randrange(3)
                sent.append((place, await producer.send("t", b"%d" % number, partition=place)))
                if rng.random() < 0.1:
                    await asyncio.sleep(rng.random() / 50)
            for number, (place, each) in enumerate(sent):
                kept = brokers.kept[TopicPartition("t", place)]
                assert kept.records[(await each).offset].value == b"%d" % number
        for place in range(3):
            values = brokers.kept[TopicPartition("t", place)].values()
            assert values == [b"%d" % n for n, (at, _) in enumerate(sent) if at == place]

    play(work, hosts=2, partitions=3, seed=seed)


@pytest.mark.played(by=play, hosts=2)
async def test_a_leader_that_moved_is_followed(scene: Scene, /) -> None:
    async with scene.producer(linger_ms=0) as producer:
        await producer.send_and_wait("t", b"a")
        scene.brokers.leaders[T0] = 1
        assert (await producer.send_and_wait("t", b"b")).offset == 1


async def test_a_batch_that_is_too_large_is_cut_until_it_fits(scene: Scene, /) -> None:
    scene.brokers.batch_bytes_max = 150
    async with scene.producer() as producer:
        many = await producer.send_many("t", numbers(50))
        last = await producer.send("t", b"50")
        assert await many == {0: [OffsetRange(0, 50)]}
        assert (await last).offset == 50
    assert scene.brokers.kept[T0].values() == numbers(51)


async def test_send_many_accepts_subclasses_of_list_and_bytes(scene: Scene, /) -> None:
    class Rows(list[bytes]):
        pass

    class Text(bytes):
        pass

    async with scene.producer() as producer:
        await (await producer.send_many("t", Rows([b"a", b"b"])))
        await (await producer.send_many("t", [Text(b"c"), bytearray(b"d"), Text(b"e")]))
    assert scene.brokers.kept[T0].values() == [b"a", b"b", b"c", b"d", b"e"]


async def test_a_record_that_is_too_large_fails_alone(scene: Scene, /) -> None:
    scene.brokers.batch_bytes_max = 150
    async with scene.producer(linger_ms=0) as producer:
        sent = [await producer.send("t", value) for value in (b"a", b"x" * 200, b"b")]
        assert (await sent[0]).offset == 0
        with refused(Error.MESSAGE_TOO_LARGE, "t-0"):
            await sent[1]
        assert (await sent[2]).offset == 1
        with pytest.raises(RecordTooLarge):
            await producer.send("t", b"x" * 2_000_000)
        many = await producer.send_many("t", [b"c", b"x" * 2_000_000, b"d"])
        with pytest.raises(RecordTooLarge):
            await many
        assert [error for _, _, error in many.failures()]
    assert scene.brokers.kept[T0].values() == [b"a", b"b", b"c", b"d"]


async def test_a_record_larger_than_a_request_is_refused_by_every_way_in(scene: Scene, /) -> None:
    async with scene.producer(max_request_size=1_000) as producer:
        await producer.send("t", b"a")
        for key in (None, b"k"):
            with pytest.raises(RecordTooLarge):
                await producer.send("t", b"x" * 2_000, key)
        many = await producer.send_many("t", [b"b", b"x" * 2_000, b"c"])
        with pytest.raises(RecordTooLarge):
            await many
        assert [(place, count) for place, count, _ in many.failures()] == [(0, 1)]
    assert scene.brokers.kept[T0].values() == [b"a", b"b", b"c"]


async def test_a_permanent_failure_leaves_no_sequence_gap_for_later_batches(
    scene: Scene, /
) -> None:
    scene.brokers.fault = once(Fault(is_written=False, error=Error.INVALID_RECORD), at=1)
    async with scene.producer(**SMALL) as producer:
        sent = [await producer.send("t", number) for number in numbers()]
        await producer.flush()
        failed = [each for each in sent if each.exception(0) is not None]
        assert 0 < len(failed) < 60
    values = [number for number, each in zip(numbers(), sent, strict=True) if each not in failed]
    assert scene.brokers.kept[T0].values() == values
    bumps = [each for each in scene.brokers.requests if isinstance(each, InitProducerIdRequest)]
    assert [(each.producer_id, each.producer_epoch) for each in bumps] == [(-1, -1), (1000, 0)]


async def test_a_record_that_nobody_acknowledges_times_out(scene: Scene, /) -> None:
    scene.brokers.fault = lambda *_: Fault(is_written=False, error=Error.NOT_ENOUGH_REPLICAS)
    async with scene.producer(delivery_timeout_ms=5_000) as producer:
        with pytest.raises(DeliveryTimedOut, match="5000 ms: NOT_ENOUGH_REPLICAS"):
            await producer.send_and_wait("t", b"a")
        assert 5 <= scene.clock.monotonic_ns() / 1e9 < 7
        scene.brokers.fault = lambda *_: FINE
        assert (await producer.send_and_wait("t", b"b")).offset == 0


async def test_retries_end_at_their_limit(scene: Scene, /) -> None:
    scene.brokers.fault = lambda *_: Fault(is_written=False, error=Error.NOT_ENOUGH_REPLICAS)
    async with scene.producer(retries=2) as producer:
        with refused(Error.NOT_ENOUGH_REPLICAS):
            await producer.send_and_wait("t", b"a")
    produces = [each for each in scene.brokers.requests if isinstance(each, ProduceRequest)]
    assert len(produces) == 3


async def test_sending_blocks_while_memory_is_used_up(scene: Scene, /) -> None:
    scene.brokers.fault = lambda *_: Fault(delay_s=1)
    async with scene.producer(buffer_memory=20_000, batch_size=5_000) as producer:
        for _ in range(100):
            await producer.send("t", b"x" * 1000)
        await producer.flush()
    assert scene.clock.monotonic_ns() / 1e9 > 4
    assert len(scene.brokers.kept[T0].records) == 100


async def send_large(producer: AsyncProducer) -> None:
    for _ in range(100):
        await producer.send("t", b"x" * 1000)


async def test_the_loop_is_woken_up_once_the_lock_is_free(scene: Scene, /) -> None:
    async with scene.producer(**SMALL) as producer:
        await producer.send_and_wait("t", b"first")
        accumulator = producer._started.accumulator
        kick, was_locked = accumulator._kick, []

        def watched(when_s: float) -> None:
            was_locked.append(accumulator.is_inside)
            kick(when_s)

        accumulator._kick = watched
        opens = await producer.send("t", b"a")
        seals = await producer.send("t", bytes(150), key=b"k")
        many = await producer.send_many("t", [bytes(90)] * 3)
        assert len(was_locked) >= 3
        assert not any(was_locked)
        await asyncio.gather(opens, seals, many)


async def test_a_buffer_that_stays_full_is_an_error_and_its_memory_is_freed(
    scene: Scene, /
) -> None:
    scene.brokers.fault = lambda *_: Fault(delay_s=20)
    async with scene.producer(buffer_memory=20_000, max_block_ms=500) as producer:
        with pytest.raises(BufferFull, match="20000 bytes of buffer_memory"):
            await send_large(producer)
        with pytest.raises(BufferFull):
            await producer.send_many("t", [b"x" * 1000] * 100)
        scene.brokers.fault = lambda *_: FINE
        await producer.flush()
        memory = producer._started.accumulator.memory
        assert memory.free == memory.size


async def test_what_send_many_raises_tells_what_was_sent(scene: Scene, /) -> None:
    """Who sent all of it again wrote some twice, and who did not lost the rest."""
    scene.brokers.fault = lambda *_: Fault(delay_s=20)
    async with scene.producer(buffer_memory=20_000, batch_size=5_000, max_block_ms=500) as producer:
        values = [b"%d" % number * 100 for number in range(100, 200)]
        with pytest.raises(BufferFull) as full:
            await producer.send_many("t", values)
        sending = asyncio.create_task(producer.send_many("t", values))
        await asyncio.sleep(0.1)
        sending.cancel()
        with pytest.raises(asyncio.CancelledError) as cancelled:
            await sending
        assert cancelled.value.sent.count == 0  # type: ignore[attr-defined]
        scene.brokers.fault = lambda *_: FINE
        sent = full.value.sent
        assert 0 < sent.count < 100
        await producer.flush()
        rest = await producer.send_many("t", values[sent.count :])
        await rest
        assert await sent == {0: [OffsetRange(0, sent.count)]}
    assert scene.brokers.kept[T0].values() == values


async def test_what_an_interrupted_send_many_has_sent_is_told_exactly(
    scene: Scene, /, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with scene.producer() as producer:
        await producer.send_and_wait("t", b"0")

        def interrupt(*_: object) -> None:
            raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setattr(producer._started.accumulator, "maybe_make_plain", interrupt)
            with pytest.raises(KeyboardInterrupt) as told:
                await producer.send_many("t", [b"1", b"2"])
        assert await told.value.sent == {0: [OffsetRange(1, 3)]}  # type: ignore[attr-defined]
        with monkeypatch.context() as patch:
            patch.setattr(ProducerBatch, "extend", interrupt)
            with pytest.raises(KeyboardInterrupt) as told:
                await producer.send_many("t", [b"3", b"4"])
        assert told.value.sent.count == 0  # type: ignore[attr-defined]
    assert scene.brokers.kept[T0].values() == numbers(3)


async def test_an_invalid_topic_is_an_error_at_once(scene: Scene, /) -> None:
    scene.brokers.topic_errors["t"] = Error.TOPIC_AUTHORIZATION_FAILED
    async with scene.producer() as producer:
        with refused(Error.TOPIC_AUTHORIZATION_FAILED, "topic t"):
            await producer.send("t", b"a")
        assert scene.clock.monotonic_ns() / 1e9 < 1


async def test_a_topic_that_is_never_created_is_an_error_in_the_end(scene: Scene, /) -> None:
    scene.brokers.topic_errors["t"] = Error.UNKNOWN_TOPIC_OR_PARTITION
    async with scene.producer(max_block_ms=3_000) as producer:
        with refused(Error.UNKNOWN_TOPIC_OR_PARTITION, "3000 ms"):
            await producer.send("t", b"a")


@pytest.mark.played(by=play, partitions=2)
async def test_a_missing_partition_is_an_error(scene: Scene, /) -> None:
    async with scene.producer() as producer:
        with refused(Error.UNKNOWN_TOPIC_OR_PARTITION):
            await producer.send("t", b"a", partition=2)
        scene.brokers.partitions = 3
        assert (await producer.send_and_wait("t", b"a", partition=2)).partition == 2


async def test_a_closed_producer_delivers_what_it_has_and_takes_no_more(scene: Scene, /) -> None:
    producer = await scene.producer().start()
    sent = await producer.send("t", b"a")
    await producer.close()
    assert (await sent).offset == 0
    with pytest.raises(ProducerClosed):
        await producer.send("t", b"b")
    with pytest.raises(ProducerClosed):
        await producer.send_many("u", [b"b"], keys=[b"k"])
    await producer.close()


async def test_closing_ends_at_its_timeout(scene: Scene, /) -> None:
    scene.brokers.fault = lambda *_: Fault(is_written=False, error=Error.NOT_ENOUGH_REPLICAS)
    producer = await scene.producer().start()
    sent = await producer.send("t", b"a")
    await producer.close(timeout_s=2)
    assert 2 <= scene.clock.monotonic_ns() / 1e9 < 3
    with pytest.raises(ProducerClosed, match="before this was acknowledged"):
        await sent


async def test_without_acknowledgements_there_are_no_offsets(scene: Scene, /) -> None:
    async with scene.producer(acks=0) as producer:
        assert (await producer.send_and_wait("t", b"a")).offset == -1
        await asyncio.sleep(1)
    (header,) = scene.brokers.kept[T0].batches
    assert header.producer_id == -1


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
async def test_all_parts_of_a_record_arrive(scene: Scene, /, codec: str) -> None:
    async with scene.producer(compression_type=codec) as producer:
        await producer.send("t", None, b"k", [("h", b"1"), ("h", None)], timestamp=7)
        await producer.send("t", bytearray(b"v"))
        await producer.send("t", b"w")
        await producer.send("t", b"x", timestamp=9)
        await producer.flush()
    one, two, three, four = scene.brokers.kept[T0].records
    assert one[1:] == (7, b"k", None, (("h", b"1"), ("h", None)))
    assert two[2:] == (None, b"v", ())
    assert (three.value, four.value, four.timestamp) == (b"w", b"x", 9)
    assert abs(two.timestamp - scene.clock.now_ms()) < 10_000


@pytest.mark.parametrize("row", [{}, {"key": b"k"}, {"headers": [("h", b"1")]}])
@pytest.mark.parametrize("linger_ms", [0, 5_000])
async def test_a_record_has_the_time_at_which_it_was_sent_however_old_its_batch(
    scene: Scene, /, row: dict[str, Any], linger_ms: int
) -> None:
    """It had the time at which its batch was opened: a look-up by time skipped it."""
    scene.brokers.fault = lambda *_: Fault(delay_s=8)
    settings = {"linger_ms": linger_ms, "max_in_flight_requests_per_connection": 1}
    async with scene.producer(**settings) as producer:
        first = await producer.send("t", b"0")
        await producer.flush(None if linger_ms else 60)
        sent: list[tuple[int, Sent]] = [(scene.clock.now_ms(), await producer.send("t", b"0"))]
        for number in range(30):
            await asyncio.sleep(0.1)
            sent.append((scene.clock.now_ms(), await producer.send("t", b"%d" % number, **row)))
            given = await producer.send("t", b"given", timestamp=7) if number == 20 else None
        many = await producer.send_many("t", [b"m", b"n"])
        await producer.flush()
        assert (await first).offset == 0
        assert given is None or (await given).timestamp == 7
        records = scene.brokers.kept[T0].records
        for at_ms, each in sent:
            made = await each
            assert at_ms - 10 <= made.timestamp <= at_ms
            assert records[made.offset].timestamp == made.timestamp
        ((piece,),) = (await many).values()
        assert sent[-1][0] - 10 <= records[piece.start].timestamp <= scene.clock.now_ms()


async def test_a_batch_that_is_sent_at_once_has_no_column_of_timestamps(scene: Scene, /) -> None:
    async with scene.producer(linger_ms=5) as producer:
        sent = []
        for _ in range(4):
            sent.append(await producer.send("t", b"a"))
            await asyncio.sleep(0.001)
        await producer.flush()
    assert len({(await each).timestamp for each in sent}) == 1


@pytest.mark.parametrize("row", [{}, {"key": b"k"}])
async def test_a_loop_over_send_lets_the_event_loop_run(scene: Scene, /, row: Any) -> None:
    """It held it until the memory was full: for 1.6 s with 400,000 records."""
    ran: list[int] = []
    async with scene.producer(batch_size=10_000) as producer:
        await producer.send_and_wait("t", b"0")
        number = 0

        async def look_on() -> None:
            while True:
                ran.append(number)
                await asyncio.sleep(0)

        looking = asyncio.create_task(look_on())
        for number in range(5_000):  # noqa: B007 - as a closure
            await producer.send("t", b"x" * 100, **row)
        looking.cancel()
        gaps = [after - before for before, after in pairwise([*ran, 5_000])]
        assert max(gaps) < 200  # a batch has some 86
        await producer.flush()
    assert len(scene.brokers.kept[T0].records) == 5_001


async def test_a_value_that_is_not_bytes_is_refused_naming_the_encoder_setting(
    scene: Scene, /
) -> None:
    async with scene.producer(value_encoder=str.encode) as producer:
        assert (await producer.send_and_wait("t", "ä")).offset == 0
        with pytest.raises(TypeError, match=r"a key is of type str.*key_encoder"):
            await producer.send("t", "ä", key="k")
        with pytest.raises(TypeError, match="header"):
            await producer.send("t", "ä", headers=[("h", "1")])
        with pytest.raises(TypeError, match="timestamp"):
            await producer.send("t", "ä", timestamp=1.5)
    async with scene.producer() as producer:
        with pytest.raises(TypeError, match="value 1 is of type int"):
            await producer.send_many("t", [b"a", 1])
    assert scene.brokers.kept[T0].values() == ["ä".encode()]
