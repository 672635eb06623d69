"""The producer's parts by themselves: settings, verdicts, memory, results."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from kdist.client.producer.accumulator import Accumulator
from kdist.client.producer.faults import RecordTooLarge
from kdist.client.producer.memory import Memory
from kdist.client.producer.settings import ProducerSettings, read_settings
from kdist.client.producer.verdicts import Verdict, judge
from kdist.errors import ApiError, Error, UserError
from kdist.model import TopicPartition
from kdist.records.batch import HEADER_SIZE
from tests.unit.client.producer_world import Fault, Scene, play


@pytest.mark.parametrize(
    ("given_", "sentence"),
    [
        ({"lingerms": 5}, "a producer has no setting 'lingerms': did you mean linger_ms?"),
        ({"acks": 2}, "acks is 2, and must be one of all, -1, 1, 0"),
        ({"batch_size": "many"}, "batch_size is 'many', and must be an integer from 0 to"),
        ({"compression_type": "rar"}, "must be one of none, gzip, snappy, lz4, zstd"),
        ({"partitioner": "best"}, "partitioner is 'best', and must be one of sticky, round_robin"),
        (
            {"value_encoder": "utf-8"},
            "value_encoder is 'utf-8', and must be a callable",
        ),
        ({"callback_handler": print}, "must be a CallbackHandler"),
        ({"enable_idempotence": True, "acks": 1}, "enable_idempotence needs acks=all"),
        (
            {"linger_ms": 2_000, "delivery_timeout_ms": 2_000},
            "linger_ms is 2000, and must be less than delivery_timeout_ms, 2000",
        ),
    ],
)
def test_a_wrong_setting_is_refused_in_a_sentence(given_: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UserError) as raised:
        read_settings(given_)
    assert sentence in str(raised.value)
    assert "\n" not in str(raised.value)


def test_settings_are_accepted_as_python_values_and_as_text() -> None:
    config = read_settings({"linger_ms": "0.5", "acks": 1, "bootstrap_servers": ["a:1", "b:2"]})
    assert config.plain == ProducerSettings(
        linger_ms=0.5, acks="1", bootstrap_servers=("a:1", "b:2")
    )
    assert not config.is_idempotent
    assert read_settings({}).is_idempotent
    assert not read_settings({"enable_idempotence": False}).is_idempotent


@pytest.mark.parametrize(
    ("error", "count", "is_first", "verdict"),
    [
        (Error.DUPLICATE_SEQUENCE_NUMBER, 1, True, Verdict.DONE),
        (Error.NOT_LEADER_OR_FOLLOWER, 1, True, Verdict.RETRY),
        (Error.NETWORK_EXCEPTION, 1, False, Verdict.RETRY),
        (Error.OUT_OF_ORDER_SEQUENCE_NUMBER, 1, False, Verdict.FOLLOW),
        (Error.OUT_OF_ORDER_SEQUENCE_NUMBER, 1, True, Verdict.RENUMBER),
        (Error.UNKNOWN_PRODUCER_ID, 1, False, Verdict.RENUMBER),
        (Error.MESSAGE_TOO_LARGE, 2, True, Verdict.CUT),
        (Error.MESSAGE_TOO_LARGE, 1, True, Verdict.FAIL),
        (Error.TOPIC_AUTHORIZATION_FAILED, 1, True, Verdict.FAIL),
    ],
)
def test_a_verdict_follows_from_the_error_and_the_batchs_place(
    error: Error, count: int, is_first: bool, verdict: Verdict
) -> None:
    assert judge(error, count, is_first=is_first, is_idempotent=True) is verdict


def test_without_idempotence_a_wrong_sequence_is_final() -> None:
    error = Error.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert judge(error, 1, is_first=True, is_idempotent=False) is Verdict.FAIL


def test_memory_is_granted_in_the_order_of_waiting() -> None:
    async def main() -> None:
        memory = Memory(100)
        assert memory.take(90)
        assert not memory.take(20)
        came: list[int] = []

        async def wait(number: int, size: int) -> None:
            await memory.wait(size)
            came.append(number)
            assert memory.take(size)

        waiting = [asyncio.create_task(wait(number, 40)) for number in range(2)]
        await asyncio.sleep(0)
        memory.give_back(40)
        memory.wake()
        await asyncio.wait([waiting[0]])
        assert came == [0]
        memory.give_back(50)
        memory.wake()
        await asyncio.wait(waiting)
        assert came == [0, 1]

    asyncio.run(main())


def test_a_record_larger_than_the_whole_buffer_takes_all_of_it() -> None:
    memory = Memory(100)
    assert memory.take(500)
    assert not memory.take(1)
    memory.give_back(500)
    assert memory.free == 100


def test_a_future_whose_wait_timed_out_leaves_its_record_alone() -> None:
    async def work(scene: Scene) -> None:
        async with scene.producer(linger_ms=500) as producer:
            sent = await producer.send("t", b"a")
            with pytest.raises(TimeoutError, match="not acknowledged yet"):
                sent.result(timeout=0)
            with pytest.raises(TimeoutError):
                sent.exception(timeout=-1)
            assert (await sent).offset == 0
            assert sent.exception() is None

    play(work)


def test_round_robin_spreads_keys_in_turn() -> None:
    async def work(scene: Scene) -> None:
        async with scene.producer(partitioner="round_robin") as producer:
            sent = [await producer.send("t", b"a") for _ in range(6)]
            places = [(await each).partition for each in sent]
            assert sorted(places) == [0, 0, 1, 1, 2, 2]
            many = await (await producer.send_many("t", [b"a"] * 6))
            assert {place: sum(e - s for s, e in found) for place, found in many.items()} == {
                0: 2,
                1: 2,
                2: 2,
            }

    play(work, partitions=3)


def test_records_with_and_without_keys_share_batches_on_the_fast_path() -> None:
    async def work(scene: Scene) -> None:
        async with scene.producer(linger_ms=1000) as producer:
            sent = [await producer.send("t", b"%d" % n, (b"k", None)[n % 2]) for n in range(4)]
            quick = producer._started.accumulator.add_quick
            sent += [quick("t", b"4", None, None), quick("t", b"5", b"k", None)]
            sent.append(quick("t", b"6", None, 0))
            assert [quick("t", b"?", None, 1), quick("new", b"?", b"k", None)] == [None, None]
            assert None not in sent
            assert [(await each).offset for each in sent if each] == list(range(7))
        kept = scene.brokers.kept[TopicPartition("t", 0)]
        assert [batch.record_count for batch in kept.batches] == [7]
        keys = [record.key for record in kept.records]
        assert keys == [b"k", None, b"k", None, None, b"k", None]

    play(work)


def test_a_value_alone_goes_into_its_batch_without_a_call(monkeypatch: pytest.MonkeyPatch) -> None:
    async def work(scene: Scene) -> None:
        async with scene.producer(linger_ms=1000) as producer:
            sent = [await producer.send("t", b"0")]
            with monkeypatch.context() as patch:
                for name in ("add", "add_quick"):
                    patch.delattr(Accumulator, name)
                sent.append(await producer.send("t", b"1"))
                for more in ({"key": b"k"}, {"headers": []}, {"partition": 0}, {"timestamp": 1}):
                    with pytest.raises(AttributeError, match="add_quick"):
                        await producer.send("t", b"?", **more)
            sent.append(await producer.send("t", b"2", key=b"k"))
            assert [(await each).offset for each in sent] == [0, 1, 2]
        assert scene.brokers.kept[TopicPartition("t", 0)].values() == [b"0", b"1", b"2"]

    play(work)


def test_headers_and_timestamps_take_the_fast_path_once_a_batch_has_them() -> None:
    async def work(scene: Scene) -> None:
        async with scene.producer(linger_ms=1000) as producer:
            accumulator = producer._started.accumulator
            quick = accumulator.add_quick
            given: list[Any] = [("a", b"1"), ("ü", None)]
            sent: list[Any] = [await producer.send("t", b"0")]
            assert quick("t", b"?", None, None, given) is None
            assert quick("t", b"?", None, None, None, 7) is None
            sent.append(await producer.send("t", b"1", headers=iter(given), timestamp=1))
            sent.append(quick("t", b"2", None, None, given))
            sent.append(quick("t", b"3", None, 0, (), 3))
            sent.append(quick("t", b"4", None, None))
            for headers, timestamp in ((iter(given), 5), ([["a", b""]], 5), (given, -1), (1, 5)):
                assert quick("t", b"?", None, None, headers, timestamp) is None
            with pytest.raises(UnicodeEncodeError):
                await producer.send("t", b"?", headers=[("\ud800", b"")])
            given.pop()  # what was sent stays as it was
            made = [await each for each in sent]
        assert [each.offset for each in made] == list(range(5))
        kept = scene.brokers.kept[TopicPartition("t", 0)]
        assert [batch.record_count for batch in kept.batches] == [5]
        two = (("a", b"1"), ("ü", None))
        assert [record.headers for record in kept.records] == [(), two, two, (), ()]
        assert [record.timestamp for record in kept.records] == [each.timestamp for each in made]
        assert [made[n].timestamp for n in (1, 3)] == [1, 3]
        assert made[0].timestamp == made[2].timestamp == made[4].timestamp

    play(work)


def test_a_batch_takes_no_more_headers_on_the_fast_path_than_it_has_room_for() -> None:
    async def work(scene: Scene) -> None:
        async with scene.producer(linger_ms=1000, batch_size=400) as producer:
            for n in range(9):
                await producer.send("t", b"", headers=[("h", bytes(n * 10))])
            with pytest.raises(RecordTooLarge):
                await producer.send("t", b"", headers=[("h", bytes(2 << 20))])
        kept = scene.brokers.kept[TopicPartition("t", 0)]
        assert [record.headers for record in kept.records] == [
            (("h", bytes(n * 10)),) for n in range(9)
        ]
        assert all(batch.batch_length <= 400 + HEADER_SIZE for batch in kept.batches)

    play(work)


def test_a_sent_records_repr_shows_its_outcome() -> None:
    async def work(scene: Scene) -> None:
        async with scene.producer() as producer:
            sent = await producer.send("t", b"a", timestamp=5)
            assert repr(sent) == "<Sent: not acknowledged yet>"
            record = await sent
            assert repr(sent) == f"<Sent: {record}>"
            refused = Fault(is_written=False, error=Error.TOPIC_AUTHORIZATION_FAILED)
            scene.brokers.fault = lambda *_: refused
            many = await producer.send_many("t", [b"b", b"c"])
            with pytest.raises(ApiError):
                await many
            assert repr(many).startswith("<SentMany: TOPIC_AUTHORIZATION_FAILED: ")

    play(work)
