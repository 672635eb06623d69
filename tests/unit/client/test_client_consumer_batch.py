"""Batches and records as a consumer returns them: each once, in order, taking turns."""

from __future__ import annotations

import copy
import json
import pickle
import sys
from collections import deque
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kdist.client.consumer.batch import Batch, CorruptFetch, NotDecoded
from kdist.client.consumer.iteration import Iteration
from kdist.client.consumer.opening import Opening, Ready, open_fetched
from kdist.client.consumer.partition import CompletedFetches, Partition
from kdist.errors import CorruptRecords, UserError, WrongType
from kdist.model import TopicPartition
from kdist.protocol.fetch import AbortedTransaction
from kdist.records.batch import (
    HEADER,
    HEADER_SIZE,
    TimestampType,
    read_header,
    seal,
    stamp_append_time,
)
from kdist.records.build import build_batch
from kdist.records.compression import Codec
from kdist.records.control import ControlType, EndTransactionMarker
from kdist.records.record import Record
from tests.written_records import write_marker, write_message_set

PARTITION = TopicPartition("clicks", 3)
NOW = 1_700_000_000_000


def opened(data: bytes | bytearray, position: int = 0, **options: object) -> list[Ready]:
    return list(open_fetched(data, Opening(PARTITION, position, **options)))  # type: ignore[arg-type]


def batches(data: bytes | bytearray, position: int = 0, **options: object) -> list[Batch]:
    return [each.batch for each in opened(data, position, **options) if each.batch is not None]


def numbered(first: int, count: int, **options: object) -> bytearray:
    values = [b"%d" % number for number in range(first, first + count)]
    return build_batch(values, timestamp_ms=NOW, base_offset=first, **options)  # type: ignore[arg-type]


def marker(offset: int, producer: int, control: ControlType) -> bytearray:
    key, value = write_marker(EndTransactionMarker(control, 0))
    return build_batch(
        [value],
        [key],
        timestamp_ms=NOW,
        base_offset=offset,
        producer_id=producer,
        is_transactional=True,
        is_control=True,
    )


def partition(number: int = 0) -> Partition:
    found = Partition(TopicPartition("t", number))
    found.seek(0)
    return found


def put(completed: CompletedFetches, into: Partition, *counts: int, **options: object) -> None:
    """Add batches of these many records after those fetched before."""
    for count in counts:
        start = into.fetch_position
        values = [b"%d" % number for number in range(start, start + count)]
        data = build_batch(values, timestamp_ms=0, base_offset=start)
        completed.put(into, open_fetched(data, Opening(into.key, start, **options)))  # type: ignore[arg-type]


@given(
    rows=st.lists(
        st.tuples(st.none() | st.binary(max_size=9), st.none() | st.binary(max_size=9)), min_size=1
    ),
    codec=st.sampled_from(Codec),
    skipped=st.integers(0, 20),
)
def test_records_are_returned_from_the_position_on(
    rows: list[tuple[bytes | None, bytes | None]], codec: Codec, skipped: int
) -> None:
    keys, values = ([row[i] for row in rows] for i in (0, 1))
    headers = [[("n", b"%d" % i)] for i in range(len(rows))]
    times = [NOW + i for i in range(len(rows))]
    data = build_batch(
        values, keys, headers, times, timestamp_ms=NOW, codec=codec, base_offset=100, leader_epoch=4
    )
    found = batches(data, 100 + skipped)
    if skipped >= len(rows):
        assert found == []
        return
    (batch,) = found
    assert (batch.start, batch.end) == (100 + skipped, 100 + len(rows))
    assert len(batch) == len(rows) - skipped
    assert batch.values() == values[skipped:]
    assert batch.keys() == keys[skipped:]
    assert list(batch.offsets()) == list(range(batch.start, batch.end))
    assert batch.timestamps() == times[skipped:]
    first = batch.records()[0]
    assert (first.topic, first.partition, first.offset) == ("clicks", 3, 100 + skipped)
    assert (first.key, first.value) == rows[skipped]
    assert first.timestamp == times[skipped]
    assert first.headers == (("n", b"%d" % skipped),)
    assert first.leader_epoch == 4
    assert [record.value for record in batch] == batch.values()


def test_a_record_shows_all_its_fields() -> None:
    (batch,) = batches(build_batch([b"v"], [b"k"], timestamp_ms=5))
    assert repr(batch.records()[0]) == (
        "ConsumedRecord(topic='clicks', partition=3, offset=0, timestamp=5, key=b'k', value=b'v',"
        " headers=())"
    )
    assert repr(batch) == "<Batch of clicks-3, offsets 0 to 1>"
    assert batch.topic == "clicks"


@pytest.mark.parametrize("again", [copy.deepcopy, lambda each: pickle.loads(pickle.dumps(each))])
def test_records_and_batches_can_be_pickled(again: Any) -> None:
    data = build_batch(
        [b'"a"', None, b'"c"'],
        [b"k", b"l", None],
        [[("n", b"1")], [], [("m", None)]],
        [NOW, NOW + 1, NOW + 2],
        timestamp_ms=NOW,
        codec=Codec.LZ4,
        base_offset=7,
        leader_epoch=4,
    )
    before = bytes(200)  # of the same fetch
    batch = Batch(
        PARTITION, read_header(data, 0), before + data, 200, 8, (bytes.decode, json.loads)
    )
    for found in (again(batch), again(batch.part(8, 9)), again(batch.records())):
        assert list(map(repr, found)) == list(map(repr, batch.records()))[: len(found)]
        assert list(found) == batch.records()[: len(found)]
        assert len({*found, *batch.records()}) == 2
        (first, *_) = found
        assert (first.leader_epoch, first.timestamp_type) == (4, TimestampType.CREATE_TIME)
    assert again(batch).offsets() == batch.offsets()
    assert batch.records()[0] != batch.records()[1]
    assert len(again(batch.part(8, 9))) == 1
    assert len(pickle.dumps(batch)) < len(data) + 300 + len(pickle.dumps(batch.header))


def test_log_append_time_is_that_of_all_records() -> None:
    data = numbered(0, 3)
    stamp_append_time(data, 0, 99)
    (batch,) = batches(data)
    assert batch.timestamps() == [99, 99, 99]
    assert batch.records()[0].timestamp_type is TimestampType.LOG_APPEND_TIME


def test_a_compacted_batch_keeps_its_offsets() -> None:
    whole = numbered(0, 5)
    size = (len(whole) - HEADER_SIZE) // 5  # of each record: they differ in one digit
    records = [whole[HEADER_SIZE + i * size : HEADER_SIZE + (i + 1) * size] for i in range(5)]
    thin = whole[:HEADER_SIZE] + records[1] + records[4]
    header = read_header(whole)._replace(record_count=2, batch_length=len(thin) - 12)
    HEADER.pack_into(thin, 0, *header)
    seal(thin, 0, len(thin))
    for position, left in ((0, [1, 4]), (1, [1, 4]), (2, [4]), (4, [4])):
        (batch,) = batches(thin, position)
        assert list(batch.offsets()) == left
        assert [record.offset for record in batch] == left
        assert batch.values() == [b"%d" % offset for offset in left]
        assert len(batch) == len(left)
        assert batch.end == 5


def test_decoders_are_called_except_for_null() -> None:
    data = build_batch([b'{"a": 1}', None], [b"k", None], timestamp_ms=NOW)
    (batch,) = batches(data, decoders=(bytes.decode, json.loads))
    assert batch.values() == [{"a": 1}, None]
    assert [record.key for record in batch] == ["k", None]
    assert batch.raw_values() == [b'{"a": 1}', None]


def test_a_record_that_cannot_be_decoded_is_named() -> None:
    data = build_batch([b"1", b"2", b"x"], timestamp_ms=NOW, base_offset=40)
    (batch,) = batches(data, 41, decoders=(None, int))
    with pytest.raises(NotDecoded, match=r"clicks-3, offset 42: the decoder failed") as caught:
        batch.values()
    assert caught.value.offset == 42
    assert batch.part(41, 42).values() == [2]


def test_arrow_has_every_column() -> None:
    data = build_batch(
        [b"v0", None], [None, b"k1"], [[("h", None)], []], [NOW, NOW + 1], timestamp_ms=NOW
    )
    (batch,) = batches(data)
    found = batch.to_arrow().to_pydict()
    assert found["offset"] == [0, 1]
    assert [int(each.timestamp() * 1000) for each in found["timestamp"]] == [NOW, NOW + 1]
    assert (found["key"], found["value"]) == ([None, b"k1"], [b"v0", None])
    assert found["headers"] == [[{"name": "h", "value": None}], []]
    assert batch.part(1, 2).to_arrow(["value"]).to_pydict() == {"value": [None]}


def test_who_has_no_pyarrow_is_told_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    (batch,) = batches(build_batch([b"v"], timestamp_ms=NOW))
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(UserError, match="needs pyarrow"):
        batch.to_arrow()


@pytest.mark.parametrize("columns", ["value", ["values"], [1]])
def test_a_column_that_arrow_does_not_have_is_refused(columns: Any) -> None:
    (batch,) = batches(build_batch([b"v"], timestamp_ms=NOW))
    with pytest.raises(WrongType, match="each one of offset, timestamp, key, value, headers"):
        batch.to_arrow(columns)


def test_damage_is_raised_after_the_whole_batches_before_it() -> None:
    data = numbered(0, 3) + numbered(3, 3)
    data[-1] ^= 1
    whole, broken = opened(data)
    assert whole.batch is not None
    assert whole.batch.values() == [b"0", b"1", b"2"]
    assert isinstance(broken.error, CorruptFetch)
    assert (broken.error.partition, broken.error.offset) == (TopicPartition("clicks", 3), 3)
    assert "clicks-3, at offset 3: CRC is" in str(broken.error)
    assert [each.error for each in opened(data, check_crcs=False)] == [None, None]


def test_damage_below_a_valid_checksum_is_named_with_its_offset() -> None:
    batch = numbered(5, 2, codec=Codec.GZIP)
    for at in range(HEADER_SIZE, len(batch)):
        batch[at] ^= 0xFF
    seal(batch, 0, len(batch))
    (damaged,) = batches(batch, 6)
    for look in (damaged.values, damaged.records, damaged.timestamps, damaged.keys):
        with pytest.raises(CorruptFetch, match="clicks-3, at offset 6: the gzip data is damaged"):
            look()


def test_overlapping_records_are_returned_once_and_earlier_offsets_are_left_out() -> None:
    found = batches(numbered(0, 3) + numbered(1, 4) + numbered(0, 2) + numbered(5, 1))
    assert [list(each.offsets()) for each in found] == [[0, 1, 2], [3, 4], [5]]
    assert opened(numbered(3, 3) + numbered(0, 2))[-1].next_offset == 6


@pytest.mark.parametrize("count", [2, 3])
def test_a_control_batch_of_several_records_counts_as_damaged(count: int) -> None:
    data = numbered(0, count, producer_id=7, is_transactional=True, is_control=True)
    aborted = [AbortedTransaction(producer_id=7, first_offset=0)]
    (told,) = opened(data, aborted=aborted)
    assert isinstance(told.error, CorruptFetch)


def test_a_batch_that_a_byte_limit_cut_is_left_for_the_next_fetch() -> None:
    data = numbered(0, 3) + numbered(3, 3)
    for cut in range(1, len(numbered(3, 3))):
        assert [each.next_offset for each in opened(data[:-cut])] == [3]


def old(first: int, count: int, **options: Any) -> bytes:
    """A message set, as brokers before 0.11 wrote it and later ones keep it."""
    numbers = range(first, first + count)
    records = [Record(each, NOW + each, b"k", b"%d" % each) for each in numbers]
    return write_message_set(records, options.pop("magic", 1), **options)


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.GZIP])
@pytest.mark.parametrize("magic", [0, 1])
def test_message_sets_of_an_old_log_are_returned_as_batches(magic: int, codec: Codec) -> None:
    log = old(0, 3, magic=magic, codec=codec) + numbered(3, 2) + old(7, 2, magic=magic)
    found = batches(log, 1)
    assert [each.values() for each in found] == [[b"1", b"2"], [b"3", b"4"], [b"7", b"8"]]
    assert [list(each.offsets()) for each in found] == [[1, 2], [3, 4], [7, 8]]
    assert found[0].timestamps() == ([NOW + 1, NOW + 2] if magic else [-1, -1])
    assert found[0].records()[0].key == b"k"
    assert pickle.loads(pickle.dumps(found[0])).values() == [b"1", b"2"]
    assert [each.next_offset for each in opened(log, 1)] == [3, 5, 9]


def test_a_single_short_message_is_complete() -> None:
    (ready,) = opened(old(5, 1, magic=0), 5)
    assert ready.batch is not None
    assert (ready.batch.values(), ready.next_offset) == ([b"5"], 6)


def test_log_append_time_of_an_old_log_is_shown() -> None:
    (batch,) = batches(old(0, 2, append_time_ms=NOW + 9))
    assert batch.timestamps() == [NOW + 9, NOW + 9]
    assert batch.records()[0].timestamp_type is TimestampType.LOG_APPEND_TIME


def test_a_damaged_message_is_named_with_its_offset_after_the_whole_ones() -> None:
    data = bytearray(old(0, 3))
    data[-1] ^= 1
    whole, broken = opened(data)
    assert whole.batch is not None
    assert whole.batch.values() == [b"0", b"1"]
    assert "clicks-3, at offset 2: message CRC is" in str(broken.error)
    (unchecked,) = batches(data, check_crcs=False)
    assert len(unchecked) == 3


def test_control_batches_are_skipped() -> None:
    data = numbered(0, 2) + marker(2, 9, ControlType.COMMIT) + numbered(3, 1)
    found = opened(data)
    assert [each.next_offset for each in found] == [2, 3, 4]
    assert [each.batch and each.batch.values() for each in found] == [[b"0", b"1"], None, [b"3"]]


def test_records_of_aborted_transactions_are_left_out() -> None:
    data = bytearray()
    data += numbered(0, 1, producer_id=7, producer_epoch=0, base_sequence=0, is_transactional=True)
    data += numbered(1, 1, producer_id=8, producer_epoch=0, base_sequence=0, is_transactional=True)
    data += numbered(2, 1)
    data += numbered(3, 1, producer_id=7, producer_epoch=0, base_sequence=1, is_transactional=True)
    data += marker(4, 7, ControlType.ABORT)
    data += numbered(5, 1, producer_id=7, producer_epoch=0, base_sequence=2, is_transactional=True)
    data += marker(6, 8, ControlType.COMMIT)
    aborted = [AbortedTransaction(producer_id=7, first_offset=0)]
    given_values = [value for batch in batches(data, aborted=aborted) for value in batch.values()]
    assert given_values == [b"1", b"2", b"5"]
    assert [value for batch in batches(data) for value in batch.values()] == [
        b"0", b"1", b"2", b"3", b"5",
    ]  # fmt: skip


@given(
    counts=st.lists(st.integers(1, 9), min_size=1, max_size=6),
    wanted=st.lists(st.integers(0, 7), min_size=1, max_size=30),
)
def test_records_and_batches_may_be_taken_in_turn(counts: list[int], wanted: list[int]) -> None:
    """0 takes a batch; any other number takes that many records."""
    completed, one = CompletedFetches(), partition()
    put(completed, one, *counts)
    found: list[int] = []
    for count in wanted:
        if count:
            found += [record.offset for record in completed.take_records(count)]
        else:
            found += [offset for batch in completed.take_batches(1) for offset in batch.offsets()]
        assert found == list(range(len(found)))
        assert one.position == len(found)
    found += [record.offset for record in completed.take_records(1000)]
    assert found == list(range(sum(counts)))
    assert one.ready_bytes == 0
    assert completed.is_empty


def test_partitions_take_turns() -> None:
    completed, one, two = CompletedFetches(), partition(0), partition(1)
    put(completed, one, 4, 4)
    put(completed, two, 4, 4)
    assert [completed.take_records(2)[0].partition for _ in range(4)] == [0, 1, 0, 1]


def test_a_paused_partition_keeps_its_ready_records() -> None:
    completed, one = CompletedFetches(), partition()
    put(completed, one, 3)
    one.is_paused = True
    assert completed.is_empty
    assert completed.take_records(5) == []
    one.is_paused = False
    completed.offer(one)
    assert len(completed.take_records(5)) == 3


def test_a_seek_drops_the_ready_records() -> None:
    completed, one = CompletedFetches(), partition()
    put(completed, one, 3)
    one.seek(7)
    assert completed.take_records(5) == []
    assert (one.position, one.fetch_position, one.ready_bytes) == (7, 7, 0)


def test_an_error_is_raised_after_all_records_before_it_and_raised_again() -> None:
    completed, one = CompletedFetches(), partition()
    put(completed, one, 3)
    data = build_batch([b"x"], timestamp_ms=0, base_offset=3)
    data[-1] ^= 1
    completed.put(one, open_fetched(data, Opening(one.key, 3)))
    assert len(completed.take_records(10)) == 3
    for _ in range(2):
        with pytest.raises(CorruptRecords):
            completed.take_records(10)
        with pytest.raises(CorruptRecords):
            completed.take_batches(10)
    one.seek(4)
    assert completed.take_records(10) == []


def test_records_before_one_that_cannot_be_decoded_are_returned() -> None:
    def refuse_three(value: bytes) -> int:
        if value == b"3":
            raise ValueError("three")
        return int(value)

    completed, one = CompletedFetches(), partition()
    put(completed, one, 6, decoders=(None, refuse_three))
    assert [record.value for record in completed.take_records(10)] == [0, 1, 2]
    assert one.position == 3
    with pytest.raises(NotDecoded, match="t-0, offset 3"):
        completed.take_records(10)
    assert one.ready_bytes > 0


def test_room_is_reported_once_there_is_some() -> None:
    completed, one = CompletedFetches(), partition()
    put(completed, one, 4, 4)
    one.starved_above_bytes = one.ready_bytes
    completed.take_records(2)
    assert not completed.is_hungry  # of a batch that was not returned completely
    completed.take_records(2)
    assert completed.is_hungry


@given(st.integers(0, 5), st.booleans())
def test_iteration_tracks_its_position(count: int, is_settled_between: bool) -> None:
    completed, one, iteration = CompletedFetches(), partition(), Iteration()
    put(completed, one, 5)
    found, records = completed.take_run(10)
    assert found is one
    iteration.begin(one, records)
    left = iteration.left
    for _ in range(count):
        next(left)
        if is_settled_between:
            iteration.settle()
    iteration.settle()
    assert one.position == count
    iteration.hold()
    iteration.hold()
    assert list(left) == []
    assert iteration.last_given() == {one: max(count - 1, 0)}
    assert iteration.go_on() is (one if count < 5 else None)
    assert [record.offset for record in iteration.left] == list(range(count, 5))
    iteration.settle()
    assert one.position == 5


def test_iteration_drops_what_is_no_longer_wanted() -> None:
    completed, one, iteration = CompletedFetches(), partition(), Iteration()
    put(completed, one, 5)
    iteration.begin(*completed.take_run(10))  # type: ignore[arg-type]
    left = iteration.left
    next(left)
    iteration.drop([TopicPartition("t", 9)])
    assert next(left).offset == 1
    iteration.drop()
    assert list(left) == []
    one.seek(3)
    iteration.settle()
    assert one.position == 3


def test_iteration_leaves_a_position_that_was_looked_up_meanwhile() -> None:
    """The log lost records that iteration still returned, and the loop reset to the log's end."""
    completed, one, iteration = CompletedFetches(), partition(), Iteration()
    put(completed, one, 5)
    iteration.begin(*completed.take_run(10))  # type: ignore[arg-type]
    next(iteration.left)
    one.seek(2)
    iteration.settle()
    assert one.position == 2
    assert [record.offset for record in iteration.left] == [1, 2, 3, 4]
    iteration.drop()
    assert one.position == 2


@pytest.mark.parametrize("is_batch", [True, False])
def test_a_reset_as_the_last_batch_is_taken_is_not_undone(is_batch: bool) -> None:
    """The taking thread set the position once more: the partition was fetched from nowhere."""

    class Watched(deque):  # type: ignore[type-arg]
        def popleft(self) -> object:
            found = super().popleft()
            if not self:
                one.reset("latest")  # the loop, which looks at this moment
            return found

    completed, one = CompletedFetches(), partition()
    one.ready = Watched()
    put(completed, one, 3)
    assert len(completed.take_batches(1) if is_batch else completed.take_records(5)) > 0
    assert not one.may_be_fetched
    one.seek(7)
    assert (one.may_be_fetched, one.position) == (True, 7)


def test_a_position_set_after_a_reset_is_still_looked_up() -> None:
    completed, one, iteration = CompletedFetches(), partition(), Iteration()
    put(completed, one, 3)
    found, records = completed.take_run(5)
    assert found is one
    iteration.begin(one, records)
    one.reset("latest")
    one.position = 3  # as `settle` may, which had compared it just before
    assert one.is_missing
    assert not one.may_be_fetched
