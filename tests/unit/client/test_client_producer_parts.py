"""The producer's parts by themselves: settings, arguments, hashes, verdicts, memory, results."""

from __future__ import annotations

import asyncio
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka.partitioner.default import murmur2 as kafka_python_murmur2

from kdist.classic.producer import MessageSet
from kdist.client import partitioner
from kdist.client.producer.accumulator import Accumulator, Memory
from kdist.client.producer.faults import RecordTooLarge
from kdist.client.producer.settings import ProducerSettings, read_settings
from kdist.client.producer.settling import Verdict, judge
from kdist.client.producer.sync import Producer
from kdist.errors import ApiError, Error, UserError
from kdist.model import TopicPartition
from kdist.records import _compiled_keys, _reference_keys
from kdist.records.batch import HEADER_SIZE
from kdist.wire.crc32c import IS_PURE
from tests.unit.client.producer_world import Fault, Scene, play

pytestmark = pytest.mark.played(by=play)

BOTH = pytest.mark.parametrize(
    "hashing", [_reference_keys, _compiled_keys], ids=["reference", "compiled"]
)


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
        (
            {"linger.ms": 10, "request.timeout.ms": 1_000, "delivery_timeout_ms": 1_009},
            "delivery_timeout_ms is 1009, and must be at least linger_ms and request_timeout_ms"
            " together, 1010",
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
    ("given_", "request_ms", "delivery_ms"),
    [
        ({}, 30_000, 120_000),
        ({"delivery_timeout_ms": 3_000}, 2_995, 3_000),
        ({"delivery.timeout.ms": "1", "linger_ms": 0.5}, 1, 1),
        ({"request_timeout_ms": 300_000}, 300_000, 300_005),
        ({"request_timeout_ms": 1_000, "delivery_timeout_ms": 1_005}, 1_000, 1_005),
    ],
)
def test_of_two_timeouts_that_do_not_fit_the_one_that_was_not_given_gives_way(
    given_: dict[str, Any], request_ms: int, delivery_ms: int
) -> None:
    plain = read_settings(given_).plain
    assert (plain.request_timeout_ms, plain.delivery_timeout_ms) == (request_ms, delivery_ms)


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


async def test_a_future_whose_wait_timed_out_leaves_its_record_alone(scene: Scene, /) -> None:
    async with scene.producer(linger_ms=500) as producer:
        sent = await producer.send("t", b"a")
        with pytest.raises(TimeoutError, match="not acknowledged yet"):
            sent.result(timeout=0)
        with pytest.raises(TimeoutError):
            sent.exception(timeout=-1)
        assert (await sent).offset == 0
        assert sent.exception() is None


@pytest.mark.played(by=play, partitions=3)
async def test_round_robin_spreads_keys_in_turn(scene: Scene, /) -> None:
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


async def test_records_with_and_without_keys_share_batches_on_the_fast_path(
    scene: Scene, /
) -> None:
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


async def test_a_value_alone_goes_into_its_batch_without_a_call(
    scene: Scene, /, monkeypatch: pytest.MonkeyPatch
) -> None:
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


async def test_headers_and_timestamps_take_the_fast_path_once_a_batch_has_them(
    scene: Scene, /
) -> None:
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


async def test_a_batch_takes_no_more_headers_on_the_fast_path_than_it_has_room_for(
    scene: Scene, /
) -> None:
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


async def test_a_sent_records_repr_shows_its_outcome(scene: Scene, /) -> None:
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


@pytest.mark.parametrize(
    "headers",
    [
        {"a": b"b"},
        {"ab": b"c"},
        "ab",
        ["ab"],
        [("a",)],
        [("a", b"b", "c")],
        [("a", "b")],
        [(b"a", b"b")],
        [None],
    ],
)
async def test_headers_that_are_not_pairs_are_a_type_error(scene: Scene, /, headers: Any) -> None:
    async with scene.producer() as producer:
        with pytest.raises(TypeError, match="header"):
            await producer.send("t", b"a", headers=headers)
        await producer.send_and_wait("t", b"a", headers=[["a", b"b"], ("a", None)])


@pytest.mark.parametrize("partition", ["0", 0.0, b"0"])
async def test_an_invalid_partition_is_a_type_error(scene: Scene, /, partition: Any) -> None:
    async with scene.producer() as producer:
        for _ in range(2):  # before and after the topic is known
            with pytest.raises(TypeError, match=f"a partition must be an int, not {partition!r}"):
                await producer.send("t", b"a", partition=partition)
            await producer.send_and_wait("t", b"a")


async def test_a_flush_with_a_timeout_of_zero_does_not_wait(scene: Scene, /) -> None:
    with Producer(bootstrap_servers="localhost:1", max_block_ms=1) as producer:
        for timeout in (0, -1):
            producer.flush(timeout)
    async with scene.producer() as producer:
        core = producer._started
        await producer.send("t", b"a")
        for timeout in (0, -1):
            with pytest.raises(TimeoutError):
                await core.flush(timeout)
        await core.flush()
        await core.flush(-1)


async def test_a_message_set_of_the_first_design_is_no_value(scene: Scene, /) -> None:
    async with scene.producer() as producer:
        with pytest.raises(TypeError, match="a value is of type MessageSet, not bytes or None"):
            await producer.send("t", MessageSet([b"a"]))


@pytest.mark.parametrize("timeout", ["x", [1], float("nan")])
def test_an_invalid_timeout_is_a_type_error_and_closes_nothing(timeout: Any) -> None:
    async def work(scene: Scene) -> None:
        async with scene.producer() as producer:
            with pytest.raises(TypeError, match="timeout_s must be a number of seconds"):
                await producer.close(timeout)
            await producer.send_and_wait("t", b"it is open")

    play(work)
    with Producer(bootstrap_servers="127.0.0.1:1") as producer:
        for wait in (producer.flush, producer.close):
            with pytest.raises(TypeError, match="timeout_s must be a number of seconds"):
                wait(timeout)
        assert not producer._accumulator.is_closed


async def test_invalid_columns_are_named(scene: Scene, /) -> None:
    async with scene.producer() as producer:
        with pytest.raises(TypeError, match="values must be an iterable, such as a list"):
            await producer.send_many("t", None)  # type: ignore[arg-type]
        with pytest.raises(TypeError, match=r"keys must be an iterable.* not 7"):
            await producer.send_many("t", [b"a"], 7)  # type: ignore[arg-type]


@pytest.mark.parametrize("timeout", ["x", [], float("nan")])
async def test_an_invalid_timeout_of_a_future_is_a_type_error(
    scene: Scene, /, timeout: Any
) -> None:
    async with scene.producer() as producer:
        sent = await producer.send("clicks", b"v")
        for wait in (sent.result, sent.exception):
            with pytest.raises(TypeError, match="timeout must be a number of seconds or None"):
                wait(timeout)
        await sent


@BOTH
@given(key=st.binary(max_size=70))
def test_the_hash_is_that_of_another_client(hashing: ModuleType, key: bytes) -> None:
    assert hashing.murmur2(key) == kafka_python_murmur2(key) & 0xFFFFFFFF


@BOTH
@pytest.mark.parametrize(
    ("key", "value"),
    [  # of Kafka's UtilsTest.testMurmur2
        (b"21", -973932308),
        (b"foobar", -790332482),
        (b"a-little-bit-long-string", -985981536),
        (b"a-little-bit-longer-string", -1486304829),
        (b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971),
        (b"abc", 479470107),
    ],
)
def test_the_hash_is_that_of_the_java_client(hashing: ModuleType, key: bytes, value: int) -> None:
    assert hashing.murmur2(key) == value & 0xFFFFFFFF


@BOTH
@given(keys=st.lists(st.none() | st.binary(max_size=20)), count=st.integers(1, 1000))
def test_keys_hashed_together_go_where_each_goes_alone(
    hashing: ModuleType, keys: list[bytes | None], count: int
) -> None:
    places = hashing.partitions_for(keys, count)
    assert places == _reference_keys.partitions_for(keys, count)
    assert places == [None if key is None else hashing.partition_for(key, count) for key in keys]
    assert all(place is None or 0 <= place < count for place in places)


def test_the_compiled_hash_is_used_unless_the_reference_is_asked_for() -> None:
    hashing = _reference_keys if IS_PURE else _compiled_keys
    assert partitioner.partition_for is hashing.partition_for
