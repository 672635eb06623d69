"""Conversion from magic 0 and 1 to batches and back: what is kept, dropped and refused."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka.record.default_records import DefaultRecordBatchBuilder
from kafka.record.legacy_records import LegacyRecordBatchBuilder
from kafka.record.memory_records import MemoryRecords

from kdist.errors import CorruptRecords, Error
from kdist.records.batch import HEADER_SIZE, read_header, seal, stamp_append_time
from kdist.records.build import build_batch, read_batch, read_body
from kdist.records.compression import Codec
from kdist.records.convert import Budget, down_convert, up_converting, with_body
from kdist.records.message_set import iter_messages
from kdist.records.record import Record
from kdist.runtime.steps import run_steps
from tests.refusals import refused
from tests.written_records import iter_records, patch, write_message_set

SIZE_MAX = 1 << 20
OLD_CODECS = [Codec.NONE, Codec.GZIP, Codec.SNAPPY, Codec.LZ4]
NOW_MS = 1_700_000_000_000
RECORDS = [
    Record(0, 1_700_000_000_000, b"key", b"value"),
    Record(1, 1_700_000_000_900, None, b"x" * 500),
    Record(2, 1_700_000_000_100, b"tombstone", None),
    Record(3, -1, b"", b""),
]
old_formats = pytest.mark.parametrize(
    ("magic", "codec"), list(itertools.product([0, 1], OLD_CODECS))
)


def up(message_set: bytes, codec: Codec | None = None) -> list[bytearray]:
    return run_steps(up_converting(iter_messages(message_set), SIZE_MAX, codec))


def down(batches: bytes, magic: int, fetch_offset: int = 0) -> bytes:
    return b"".join(sets_of(batches, magic, fetch_offset, Budget()))


def sets_of(batches: bytes, magic: int, fetch_offset: int, budget: Budget) -> Iterator[bytes]:
    return filter(None, map(run_steps, down_convert(batches, magic, fetch_offset, budget)))


def recompress(batch: bytes | bytearray, codec: Codec) -> bytearray:
    header = read_header(batch)
    return with_body(header, read_body(batch, 0, header), codec)


def read_set(message_set: bytes) -> list[Record]:
    return list(iter_records(message_set, SIZE_MAX))


def as_stored(records: list[Record], magic: int) -> list[Record]:
    """The records without what the old format cannot hold."""
    return [
        record._replace(headers=(), timestamp=record.timestamp if magic else -1)
        for record in records
    ]


def batch_of(records: list[Record], codec: Codec = Codec.NONE, base_offset: int = 0) -> bytes:
    return bytes(
        build_batch(
            [record.value for record in records],
            [record.key for record in records],
            [record.headers for record in records],
            [record.timestamp for record in records],
            timestamp_ms=-1,
            codec=codec,
            base_offset=base_offset,
        )
    )


def compacted_batch(offsets: list[int], codec: Codec) -> bytes:
    """A batch that lost records to compaction, as kafka-python builds it."""
    builder = DefaultRecordBatchBuilder(2, int(codec), False, -1, -1, -1, 1 << 20)
    for offset in offsets:
        builder.append(offset, 1000 + offset, b"k%d" % offset, b"v", [])
    return bytes(builder.build())


# --- up -----------------------------------------------------------------------------------------


@old_formats
def test_a_message_set_becomes_one_batch_of_its_codec(magic: int, codec: Codec) -> None:
    [batch] = up(write_message_set(RECORDS, magic, codec))
    assert read_header(batch).codec == codec
    assert read_batch(batch) == as_stored(RECORDS, magic)


@old_formats
def test_offsets_of_a_produced_set_do_not_matter(magic: int, codec: Codec) -> None:
    moved = [record._replace(offset=record.offset * 3 + 50) for record in RECORDS]
    [batch] = up(write_message_set(moved, magic, codec))
    assert [record.offset for record in read_batch(batch)] == [0, 1, 2, 3]


@old_formats
def test_a_set_of_kafka_python_becomes_a_batch_that_kafka_python_reads(
    magic: int, codec: Codec
) -> None:
    builder = LegacyRecordBatchBuilder(magic, int(codec), 1 << 20)
    for r in RECORDS:
        builder.append(r.offset, timestamp=r.timestamp, key=r.key, value=r.value)
    [batch] = up(bytes(builder.build()))
    [foreign] = MemoryRecords(bytes(batch))
    assert foreign.validate_crc()
    read = [Record(r.offset, r.timestamp, r.key, r.value) for r in foreign]
    assert read == as_stored(RECORDS, magic)


def test_a_batch_of_magic_0_has_no_timestamps() -> None:
    [batch] = up(write_message_set(RECORDS, 0))
    header = read_header(batch)
    assert (header.base_timestamp, header.max_timestamp) == (-1, -1)


def test_wrappers_and_runs_of_plain_messages_of_any_magic_become_a_batch_each() -> None:
    mixed = (
        write_message_set(RECORDS[:1], 0)
        + write_message_set(RECORDS[1:2], 1)
        + write_message_set(RECORDS, 1, Codec.GZIP)
        + write_message_set(RECORDS[:2], 0, Codec.LZ4)
        + write_message_set(RECORDS[3:], 1)
    )
    batches = up(mixed)
    codecs = [read_header(batch).codec for batch in batches]
    assert codecs == [Codec.NONE, Codec.GZIP, Codec.LZ4, Codec.NONE]
    assert [len(read_batch(batch)) for batch in batches] == [2, 4, 2, 1]


@pytest.mark.parametrize("codec", list(Codec))
def test_a_batch_gets_the_requested_codec(codec: Codec) -> None:
    [batch] = up(write_message_set(RECORDS, 1, Codec.GZIP), codec)
    assert read_header(batch).codec == codec
    assert read_batch(batch) == RECORDS


def test_a_wrappers_append_time_becomes_every_records_timestamp() -> None:
    [batch] = up(write_message_set(RECORDS, 1, Codec.GZIP, append_time_ms=77))
    assert {record.timestamp for record in read_batch(batch)} == {77}


def test_no_messages_make_no_batch() -> None:
    assert up(b"") == []


def test_a_wrapper_above_the_bound_is_corrupt() -> None:
    message_set = write_message_set([Record(0, 0, None, bytes(100_000))], 1, Codec.GZIP)
    with pytest.raises(CorruptRecords):
        run_steps(up_converting(iter_messages(message_set), 50_000))


def test_timestamps_too_far_apart_for_a_batch_are_corrupt() -> None:
    records = [Record(0, -(1 << 63), None, b""), Record(1, (1 << 63) - 1, None, b"")]
    with pytest.raises(CorruptRecords, match="do not fit"):
        up(write_message_set(records, 1))


# --- down ---------------------------------------------------------------------------------------


@old_formats
def test_a_batch_becomes_a_message_set_of_its_codec(magic: int, codec: Codec) -> None:
    message_set = down(batch_of(RECORDS, codec, base_offset=1000), magic)
    expected = [r._replace(offset=1000 + r.offset) for r in as_stored(RECORDS, magic)]
    assert read_set(message_set) == expected
    assert {message.attributes & 7 for message in iter_messages(message_set)} == {codec}
    assert {message.magic for message in iter_messages(message_set)} == {magic}


@old_formats
def test_gaps_that_compaction_left_stay_gaps(magic: int, codec: Codec) -> None:
    message_set = down(compacted_batch([0, 4, 9], codec), magic)
    assert [(r.offset, r.key) for r in read_set(message_set)] == [
        (0, b"k0"),
        (4, b"k4"),
        (9, b"k9"),
    ]
    foreign = [record.offset for batch in MemoryRecords(message_set) for record in batch]
    assert foreign == [0, 4, 9]


def test_a_batch_that_compaction_emptied_leaves_nothing() -> None:
    batch = bytearray(batch_of(RECORDS[:1])[:61])
    batch[8:12] = (49).to_bytes(4, "big")
    batch[57:61] = bytes(4)
    stamp_append_time(batch, 0, 5)  # which computes the CRC anew
    assert down(bytes(batch), 1) == b""


def test_headers_are_dropped_and_nothing_else() -> None:
    record = Record(0, 5, b"k", b"v", (("h", b"1"),))
    assert read_set(down(batch_of([record]), 1)) == [record._replace(headers=())]


def test_append_time_stays_append_time() -> None:
    batch = bytearray(batch_of(RECORDS))
    stamp_append_time(batch, 0, 4321)
    message_set = down(bytes(batch), 1)
    assert all(message.is_log_append_time for message in iter_messages(message_set))
    assert {record.timestamp for record in read_set(message_set)} == {4321}


def test_control_batches_are_left_out() -> None:
    marker = build_batch([b"v"], [b"k"], timestamp_ms=0, is_control=True, base_offset=4)
    batches = batch_of(RECORDS) + bytes(marker) + batch_of(RECORDS[:1], base_offset=5)
    assert [record.offset for record in read_set(down(batches, 1))] == [0, 1, 2, 3, 5]


def test_records_below_the_fetch_offset_are_dropped_where_nothing_was_compressed() -> None:
    plain = batch_of(RECORDS, base_offset=10)
    packed = batch_of(RECORDS, Codec.GZIP, base_offset=10)
    assert [record.offset for record in read_set(down(plain, 1, fetch_offset=12))] == [12, 13]
    assert [r.offset for r in read_set(down(packed, 1, fetch_offset=12))] == [10, 11, 12, 13]
    assert down(plain, 1, fetch_offset=14) == b""


def test_a_zstd_batch_ends_the_conversion_after_what_came_before_it() -> None:
    batches = batch_of(RECORDS) + batch_of(RECORDS, Codec.ZSTD, base_offset=4)
    sets = sets_of(batches, 1, 0, Budget())
    assert read_set(next(sets)) == RECORDS
    with refused(Error.UNSUPPORTED_COMPRESSION_TYPE):
        next(sets)


def test_a_last_batch_that_is_cut_is_left_out_at_every_length() -> None:
    first, second = batch_of(RECORDS), batch_of(RECORDS, base_offset=4)
    for cut in range(len(second)):
        assert len(read_set(down(first + second[:cut], 1))) == len(RECORDS)


def test_one_batch_at_a_time_is_converted() -> None:
    broken = bytearray(batch_of(RECORDS, base_offset=4))
    broken[-1] ^= 1
    sets = sets_of(batch_of(RECORDS) + broken, 1, 0, Budget())
    assert len(read_set(next(sets))) == len(RECORDS)
    with pytest.raises(CorruptRecords, match="CRC"):
        next(sets)


def test_a_batch_above_the_bound_is_corrupt() -> None:
    batch = batch_of([Record(0, 0, None, bytes(100_000))], Codec.LZ4)
    with pytest.raises(CorruptRecords):
        list(sets_of(batch, 1, 0, Budget(batch_bytes_max=50_000)))


def test_a_batch_of_more_records_than_the_bound_is_refused() -> None:
    with refused(Error.MESSAGE_TOO_LARGE):
        list(sets_of(batch_of(RECORDS), 1, 0, Budget(batch_records_max=3)))


@old_formats
@pytest.mark.parametrize("records", [1, 2, 3, 5, 9])
def test_with_a_small_budget_successive_answers_give_every_record_once(
    magic: int, codec: Codec, records: int
) -> None:
    """A consumer continues behind the last record it got, even inside a batch."""
    batches = [batch_of(RECORDS, codec, base_offset) for base_offset in (0, 4, 8)]
    got: list[Record] = []
    while len(got) < 12:
        rest = b"".join(batches[len(got) // 4 :])
        sets = b"".join(sets_of(rest, magic, len(got), Budget(records=records)))
        new = [record for record in read_set(sets) if record.offset >= len(got)]
        assert new
        got += new
    assert [record.offset for record in got] == list(range(12))
    assert [record.value for record in got] == [record.value for record in RECORDS] * 3


@pytest.mark.parametrize(("codec", "sets_max"), [(Codec.NONE, 3), (Codec.LZ4, 1)])
def test_the_batch_that_spends_the_bytes_is_the_last(codec: Codec, sets_max: int) -> None:
    """A byte counts four times if it is compressed."""
    record = Record(0, 0, None, bytes(100_000))
    batches = b"".join(batch_of([record], codec, offset) for offset in range(5))
    budget = Budget(bytes=250_000)
    sets = list(sets_of(batches, 1, 0, budget))
    assert [record.offset for each in sets for record in read_set(each)] == list(range(sets_max))
    assert budget.is_spent
    assert list(sets_of(batches, 1, 0, budget)) == []


@pytest.mark.parametrize(("codec", "sets_max"), [(Codec.NONE, 1024), (Codec.SNAPPY, 256)])
def test_batches_of_one_record_cost_more_than_their_bytes(codec: Codec, sets_max: int) -> None:
    one = batch_of(RECORDS[:1], codec)
    batches = b"".join(offset.to_bytes(8, "big") + one[8:] for offset in range(10_000))
    assert sets_max - 50 < len(list(sets_of(batches, 1, 0, Budget()))) <= sets_max


@pytest.mark.parametrize("codec", OLD_CODECS)
def test_what_takes_long_is_unpacked_by_a_thread_and_converted_in_steps(codec: Codec) -> None:
    values = [Record(n, NOW_MS, None, b"%d" % n * 20) for n in range(3000)]
    [steps] = down_convert(batch_of(values, codec), 1, 0, Budget())
    works = []
    while True:
        try:
            works.append(next(steps))
        except StopIteration as end:
            message_set = end.value
            break
        if works[-1] is not None:
            works[-1]()
    assert len(works) >= 5
    assert (works[0] is not None) == (codec != Codec.NONE)
    assert [record.offset for record in read_set(message_set)] == list(range(3000))


@pytest.mark.parametrize("codec", OLD_CODECS)
def test_records_of_megabytes_are_converted_by_a_thread_and_those_beside_them_are_not(
    codec: Codec,
) -> None:
    sizes = [10] * 600 + [3 << 20] + [10] * 600 + [300_000] * 6
    records = [Record(n, NOW_MS, None, bytes(size)) for n, size in enumerate(sizes)]
    [steps] = down_convert(batch_of(records, codec), 1, 0, Budget())
    works = []
    while True:
        try:
            works.append(next(steps))
        except StopIteration as end:
            message_set = end.value
            break
        if works[-1] is not None:
            works[-1]()
    assert list(iter_records(message_set, 8 << 20)) == records
    others = 0 if codec == Codec.NONE else 2  # it is unpacked, and compressed
    assert sum(work is not None for work in works) == others + 1
    assert works.count(None) >= 5


@pytest.mark.parametrize("codec", OLD_CODECS[1:])
@pytest.mark.parametrize("sizes", [[3 << 20], [30_000] * 100])
def test_a_wrapper_of_megabytes_is_read_and_its_batch_is_made_by_a_thread(
    codec: Codec, sizes: list[int]
) -> None:
    records = [Record(n, NOW_MS, None, bytes(size)) for n, size in enumerate(sizes)]
    messages = list(iter_messages(write_message_set(records, 1, codec)))
    steps, is_threaded = up_converting(messages, 8 << 20), []
    while True:
        try:
            work = next(steps)
        except StopIteration as end:
            [batch] = end.value
            break
        is_threaded.append(work is not None)
        if work is not None:
            work()
    assert is_threaded[0], "it is unpacked"
    assert sum(is_threaded) >= 3
    assert is_threaded[-1], "it is compressed"
    assert read_batch(batch) == records


def test_a_piece_that_ends_within_a_record_is_corrupt() -> None:
    for size in (-1, 1):
        batch = bytearray(batch_of(RECORDS))
        batch[HEADER_SIZE] += 2 * size
        seal(batch, 0, len(batch))
        with pytest.raises(CorruptRecords):
            down(bytes(batch), 1)


# --- round trips --------------------------------------------------------------------------------

any_records = st.lists(
    st.builds(
        Record,
        st.just(0),
        st.integers(-1, 2**61),
        st.none() | st.binary(max_size=20),
        st.none() | st.binary(max_size=200),
    ),
    min_size=1,
    max_size=15,
).map(lambda records: [record._replace(offset=index) for index, record in enumerate(records)])


@given(any_records, st.sampled_from([0, 1]), st.sampled_from(OLD_CODECS), st.integers(0, 2**40))
def test_down_and_up_conversion_keeps_what_the_format_can_hold(
    records: list[Record], magic: int, codec: Codec, base_offset: int
) -> None:
    message_set = down(batch_of(records, codec, base_offset), magic, base_offset)
    [batch] = up(message_set)
    patch(batch, 0, base_offset=base_offset, leader_epoch=0)
    expected = [r._replace(offset=r.offset + base_offset) for r in as_stored(records, magic)]
    assert read_batch(batch) == expected
    assert down(bytes(batch), magic, base_offset) == message_set


@given(any_records, st.sampled_from(list(Codec)), st.sampled_from(list(Codec)))
def test_recompressing_changes_the_codec_and_nothing_else(
    records: list[Record], source: Codec, target: Codec
) -> None:
    batch = batch_of(records, source)
    recompressed = recompress(batch, target)
    assert read_header(recompressed).codec == target
    assert read_batch(recompressed) == read_batch(batch)
    assert recompress(recompressed, source) == batch
