"""Validation of produced records: each fault gets the same error as from Kafka."""

from __future__ import annotations

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from kdist.errors import ApiError, Error
from kdist.records.batch import (
    HEADER_SIZE,
    RECORD_SIZE_MIN,
    Attribute,
    Batch,
    TimestampType,
    assembled,
    header_fault,
    read_header,
    seal,
)
from kdist.records.build import build_batch, read_batch
from kdist.records.codec import encode_records
from kdist.records.compression import Codec, content_bound
from kdist.records.message_set import Message, write_message
from kdist.records.record import Record
from kdist.records.validate import InvalidRecords, Rules, validating
from kdist.runtime.steps import run_steps
from tests.written_records import patch, validate, with_fields, write_message_set

NOW_MS = 1_700_000_000_000
RULES = Rules(message_bytes_max=1_000_000)
LATEST = 9
codecs = pytest.mark.parametrize("codec", list(Codec))


def batch_of(*timestamps: int, codec: Codec = Codec.NONE, **fields: int) -> bytearray:
    times = timestamps or (NOW_MS, NOW_MS + 1, NOW_MS - 1)
    keys = [b"key"] * len(times)
    batch = build_batch(keys, keys, timestamps=times, timestamp_ms=NOW_MS, codec=codec)
    return with_fields(batch, **fields) if fields else batch


def accepted(records: bytes | bytearray, rules: Rules = RULES, version: int = LATEST) -> Batch:
    [batch] = validate(records, rules, api_version=version, now_ms=NOW_MS)
    return batch


def refusal(records: bytes | bytearray, rules: Rules = RULES, version: int = LATEST) -> Error:
    with pytest.raises(ApiError) as raised:
        validate(records, rules, api_version=version, now_ms=NOW_MS)
    return raised.value.error


# --- batches ------------------------------------------------------------------------------------


@codecs
def test_a_valid_batch_is_passed_on_unchanged_and_uncopied(codec: Codec) -> None:
    records = batch_of(codec=codec)
    header, batch = accepted(records)
    assert header == read_header(records)
    assert batch.obj is records
    assert batch == records


def test_a_batch_in_a_read_only_buffer_is_copied_for_the_log_to_patch() -> None:
    records = bytes(batch_of())
    batch = accepted(records).data
    assert batch == records
    patch(batch, 0, base_offset=5, leader_epoch=1)
    assert read_header(batch).base_offset == 5


def test_an_idempotent_batch_is_accepted() -> None:
    header = accepted(batch_of(producer_id=7, producer_epoch=0, base_sequence=0)).header
    assert (header.producer_id, header.base_sequence) == (7, 0)


def test_a_batch_cut_at_any_length_is_corrupt() -> None:
    records = batch_of()
    for size in range(1, len(records)):
        assert refusal(records[:size]) == Error.CORRUPT_MESSAGE


def test_every_flipped_bit_that_matters_is_noticed() -> None:
    records = batch_of()
    unchecked = range(12 * 8, 16 * 8)  # the leader epoch, which the broker writes
    for bit in range(8 * len(records)):
        if bit in unchecked:
            continue
        damaged = bytearray(records)
        damaged[bit // 8] ^= 1 << bit % 8
        assert refusal(damaged) in (Error.CORRUPT_MESSAGE, Error.INVALID_RECORD)


@given(st.binary(max_size=200), st.integers(0, 12))
def test_any_bytes_are_refused_with_a_row_of_the_table(data: bytes, version: int) -> None:
    try:
        batches = validate(data, RULES, api_version=version, now_ms=NOW_MS)
    except ApiError:
        return
    assert not data
    assert not batches


@pytest.mark.parametrize("version", [3, 9])
def test_since_version_3_no_records_are_invalid(version: int) -> None:
    assert refusal(b"", version=version) == Error.INVALID_RECORD


@pytest.mark.parametrize("version", [0, 2])
def test_before_version_3_no_records_are_nothing_to_append(version: int) -> None:
    assert validate(b"", RULES, api_version=version, now_ms=NOW_MS) == []


@pytest.mark.parametrize("version", [2, 3, 9])
def test_two_batches_are_invalid(version: int) -> None:
    assert refusal(batch_of() + batch_of(), version=version) == Error.INVALID_RECORD


def test_a_batch_of_magic_2_is_accepted_in_an_old_version_too() -> None:
    assert accepted(batch_of(), version=1).header.record_count == 3


def test_a_magic_from_the_future_is_corrupt_or_invalid() -> None:
    assert refusal(batch_of(magic=3)) == Error.INVALID_RECORD
    assert refusal(batch_of(magic=3), version=2) == Error.CORRUPT_MESSAGE


def test_a_batch_may_be_as_large_as_the_limit_and_no_larger() -> None:
    records = batch_of()
    assert accepted(records, Rules(message_bytes_max=len(records))).data == records
    too_small = Rules(message_bytes_max=len(records) - 1)
    assert refusal(records, too_small) == Error.MESSAGE_TOO_LARGE


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"base_offset": 1}, Error.INVALID_RECORD),
        ({"base_offset": -1}, Error.INVALID_RECORD),
        ({"record_count": 0}, Error.INVALID_RECORD),
        ({"record_count": 2}, Error.INVALID_RECORD),
        ({"record_count": 4}, Error.INVALID_RECORD),
        ({"last_offset_delta": 3}, Error.INVALID_RECORD),
        ({"last_offset_delta": -1, "record_count": 0}, Error.INVALID_RECORD),
        ({"attributes": int(Attribute.CONTROL)}, Error.INVALID_RECORD),
        ({"producer_id": 5, "base_sequence": -1}, Error.INVALID_RECORD),
        ({"last_offset_delta": 999, "record_count": 1000}, Error.INVALID_RECORD),
        ({"attributes": 5}, Error.INVALID_RECORD),
        ({"attributes": int(Attribute.LOG_APPEND_TIME)}, Error.INVALID_TIMESTAMP),
    ],
)
def test_a_header_that_no_client_may_send_is_refused(fields: dict[str, int], error: Error) -> None:
    assert refusal(batch_of(**fields)) == error


@codecs
@pytest.mark.parametrize("is_plain", [True, False])
def test_a_count_that_the_bytes_of_a_batch_cannot_hold_is_refused(
    codec: Codec, is_plain: bool
) -> None:
    rules = RULES if is_plain else Rules(1_000_000, timestamp_after_max_ms=1000)
    packed_bytes = len(batch_of(codec=codec)) - HEADER_SIZE
    bound = content_bound(codec, packed_bytes, batch_of(codec=codec)[HEADER_SIZE:])
    for count in (1 << 31) - 1, bound // RECORD_SIZE_MIN + 1:
        records = batch_of(codec=codec, record_count=count, last_offset_delta=count - 1)
        assert refusal(records, rules) == Error.INVALID_RECORD
        assert header_fault(read_header(records), len(records)) is None or codec == Codec.NONE


@codecs
def test_as_many_records_as_a_batch_may_have_are_taken_in_any_codec(codec: Codec) -> None:
    values = [b""] * 200_000
    records = build_batch(values, timestamp_ms=NOW_MS, codec=codec)
    assert accepted(records, Rules(2_000_000)).data == records


def test_a_zstd_batch_that_shrank_beyond_other_codecs_ratios_is_judged_by_its_blocks() -> None:
    values = [b""] * 200_000
    body = bytes(encode_records(values, None, None, None, NOW_MS))
    packed = zstandard.ZstdCompressor(1).compress(bytes(len(body)))
    assert len(body) > 1032 * len(packed)
    header = read_header(build_batch(values, timestamp_ms=NOW_MS, codec=Codec.ZSTD))
    for count, error in ((len(body) // 7, None), (1 << 20, Error.INVALID_RECORD)):
        claiming = header._replace(record_count=count, last_offset_delta=count - 1)
        records = assembled(claiming, packed)
        assert error is None or refusal(records) == error
        assert error or accepted(records)


@pytest.mark.parametrize("version", [2, 3, 6])
def test_zstd_before_version_7_is_unsupported(version: int) -> None:
    records = batch_of(codec=Codec.ZSTD)
    assert refusal(records, version=version) == Error.UNSUPPORTED_COMPRESSION_TYPE
    assert accepted(records, version=7).header.codec == Codec.ZSTD


# --- topic settings -----------------------------------------------------------------------------


@codecs
def test_a_compacted_topic_needs_a_key_in_every_record(codec: Codec) -> None:
    compacted = Rules(message_bytes_max=10_000, is_compacted=True)
    keyed = build_batch([b"a", None], [b"k", b""], timestamp_ms=0, codec=codec)
    assert accepted(keyed, compacted).data == keyed
    keys = [b"k", None, b"k", None]
    unkeyed = build_batch([b"v"] * 4, keys, timestamp_ms=0, codec=codec)
    with pytest.raises(InvalidRecords) as raised:
        accepted(unkeyed, compacted)
    assert raised.value.error == Error.INVALID_RECORD
    assert [fault.batch_index for fault in raised.value.faults] == [1, 3]


@pytest.mark.parametrize(
    "rules",
    [
        Rules(message_bytes_max=10_000, is_compacted=True),
        Rules(message_bytes_max=10_000, timestamp_before_max_ms=1000),
        Rules(message_bytes_max=10_000, codec=Codec.GZIP),
    ],
)
def test_unreadable_records_are_refused_with_an_error_that_is_not_retried(rules: Rules) -> None:
    records = batch_of(NOW_MS, codec=Codec.LZ4)
    records[61] ^= 0xFF  # the frame's magic number
    seal(records, 0, len(records))
    assert accepted(records)
    error = refusal(records, rules)
    assert error == Error.INVALID_RECORD
    assert not error.retriable


@codecs
@pytest.mark.parametrize("max_timestamp", [-1, NOW_MS - 1])
def test_a_max_timestamp_that_was_not_set_is_that_of_the_records(
    codec: Codec, max_timestamp: int
) -> None:
    header, batch = accepted(bytes(batch_of(codec=codec, max_timestamp=max_timestamp)))
    assert header == read_header(batch)
    assert header._replace(crc=0) == read_header(batch_of(codec=codec))._replace(crc=0)
    assert [record.timestamp for record in read_batch(batch)] == [NOW_MS, NOW_MS + 1, NOW_MS - 1]


@codecs
@pytest.mark.parametrize("max_timestamp", [NOW_MS + (25 * 3600 * 1000), (1 << 63) - 1])
def test_a_max_timestamp_far_above_the_base_is_set_to_that_of_the_records(
    codec: Codec, max_timestamp: int
) -> None:
    header, batch = accepted(batch_of(codec=codec, max_timestamp=max_timestamp))
    assert header == read_header(batch)
    assert batch == batch_of(codec=codec)


@codecs
@pytest.mark.parametrize("max_timestamp", [NOW_MS, NOW_MS + 2, NOW_MS + 24 * 3600 * 1000])
def test_a_max_timestamp_near_the_base_is_believed_if_the_records_are_compressed(
    codec: Codec, max_timestamp: int
) -> None:
    header, _ = accepted(batch_of(codec=codec, max_timestamp=max_timestamp))
    assert header.max_timestamp == (max_timestamp if codec else NOW_MS + 1)


@pytest.mark.parametrize("codec", list(Codec)[1:])
def test_records_a_day_apart_and_more_keep_their_max_timestamp(codec: Codec) -> None:
    records = batch_of(NOW_MS - 10**11, NOW_MS, codec=codec)
    assert accepted(bytes(records)).data == records


def test_a_batch_of_two_kilobytes_is_not_unpacked_to_64_mib() -> None:
    rules = Rules(message_bytes_max=1_000_000, body_bytes_max=64 << 20)
    for size, is_taken in ((3 << 20, True), (8 << 20, False)):
        batch = build_batch([bytes(size)], timestamp_ms=NOW_MS, codec=Codec.ZSTD)
        records = with_fields(batch, max_timestamp=-1)
        assert len(records) < 3000
        assert is_taken or refusal(records, rules) == Error.INVALID_RECORD
        assert not is_taken or accepted(records, rules).header.max_timestamp == NOW_MS


def test_what_a_topic_takes_uncompressed_it_takes_compressed() -> None:
    rules = Rules(message_bytes_max=10_000_000, body_bytes_max=64 << 20, is_compacted=True)
    records = build_batch([bytes(9_000_000)], [b"k"], timestamp_ms=NOW_MS, codec=Codec.ZSTD)
    assert accepted(records, rules)


def test_no_more_than_a_thousand_faulty_records_are_named() -> None:
    records = build_batch([b"v"] * 5000, timestamp_ms=NOW_MS)
    with pytest.raises(InvalidRecords) as raised:
        accepted(records, Rules(message_bytes_max=1_000_000, is_compacted=True))
    assert [fault.batch_index for fault in raised.value.faults] == list(range(1000))


def test_a_batch_whose_check_takes_long_is_not_changed_by_what_its_buffer_gets_next() -> None:
    records = batch_of(*[NOW_MS] * 20_000, codec=Codec.GZIP, max_timestamp=-1)
    steps = validating(records, RULES, LATEST, NOW_MS)
    work = next(steps)
    records[:] = bytes(len(records))
    assert work is not None
    work()
    with pytest.raises(StopIteration) as ended:
        next(steps)
    [(header, batch)] = ended.value.value
    assert header.max_timestamp == NOW_MS
    assert len(read_batch(batch)) == 20_000


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.GZIP])
def test_a_large_message_set_becomes_batches_in_steps(codec: Codec) -> None:
    old = [Record(n, NOW_MS, None, b"v") for n in range(25_000)]
    steps = validating(write_message_set(old, 1, codec), Rules(10_000_000), 2, NOW_MS)
    count = 0
    while True:
        try:
            work = next(steps)
        except StopIteration as end:
            batches = end.value
            break
        count += 1
        if work is not None:
            work()
    assert count > 50
    assert [header.record_count for header, _ in batches] == [10_000, 10_000, 5000]
    assert {header.codec for header, _ in batches} == {codec}


def test_all_timestamps_may_be_below_the_base() -> None:
    body = encode_records([b"v"], None, None, [NOW_MS - 5], NOW_MS)
    header = read_header(build_batch([b"v"], timestamp_ms=0))
    records = assembled(header._replace(base_timestamp=NOW_MS, max_timestamp=NOW_MS - 5), body)
    assert accepted(records).data == records


def test_a_record_that_is_too_new_is_refused_even_without_a_max_timestamp() -> None:
    rules = Rules(10_000, timestamp_after_max_ms=50)
    records = batch_of(NOW_MS + 51, max_timestamp=-1)
    assert refusal(records, rules) == Error.INVALID_TIMESTAMP


def test_timestamps_may_lie_as_far_back_and_ahead_as_the_limits_say() -> None:
    rules = Rules(10_000, timestamp_before_max_ms=100, timestamp_after_max_ms=50)
    assert accepted(batch_of(NOW_MS - 100, NOW_MS + 50, -1), rules)
    for timestamps, index in [((NOW_MS, NOW_MS - 101), 1), ((NOW_MS + 51, NOW_MS), 0)]:
        with pytest.raises(InvalidRecords) as raised:
            accepted(batch_of(*timestamps), rules)
        assert raised.value.error == Error.INVALID_TIMESTAMP
        assert [fault.batch_index for fault in raised.value.faults] == [index]


def test_a_max_timestamp_that_no_record_has_is_refused_where_it_is_too_new() -> None:
    rules = Rules(10_000, timestamp_after_max_ms=50)
    assert refusal(batch_of(max_timestamp=NOW_MS + 51), rules) == Error.INVALID_TIMESTAMP


@codecs
def test_append_time_is_stamped_and_lifts_the_timestamp_limits(codec: Codec) -> None:
    rules = Rules(
        10_000,
        timestamp_type=TimestampType.LOG_APPEND_TIME,
        timestamp_before_max_ms=0,
        timestamp_after_max_ms=0,
    )
    header, batch = accepted(batch_of(5, NOW_MS * 2, codec=codec), rules)
    assert header == read_header(batch)
    assert header.is_log_append_time
    assert [record.timestamp for record in read_batch(batch)] == [NOW_MS, NOW_MS]


@codecs
@pytest.mark.parametrize("target", list(Codec))
def test_a_batch_is_recompressed_where_the_topic_has_another_codec(
    codec: Codec, target: Codec
) -> None:
    records = batch_of(codec=codec)
    header, batch = accepted(records, Rules(10_000, codec=target))
    assert header == read_header(batch)
    assert header.codec == target
    assert read_batch(batch) == read_batch(records)
    assert (batch.obj is records) == (codec == target)


def test_a_batch_may_not_outgrow_the_limit_by_recompressing() -> None:
    records = build_batch([bytes(5000)], timestamp_ms=0, codec=Codec.GZIP)
    rules = Rules(message_bytes_max=1000, codec=Codec.NONE)
    assert len(records) < 1000
    assert refusal(records, rules) == Error.MESSAGE_TOO_LARGE


def test_a_decompression_bomb_is_refused_where_it_must_be_decompressed() -> None:
    records = build_batch([bytes(5000)], timestamp_ms=0, codec=Codec.GZIP)
    rules = Rules(message_bytes_max=10_000, codec=Codec.LZ4, body_bytes_max=4000)
    assert refusal(records, rules) == Error.INVALID_RECORD


# --- message sets -------------------------------------------------------------------------------

OLD = [Record(0, NOW_MS, b"key", b"value"), Record(1, NOW_MS + 5, None, b"other")]


@pytest.mark.parametrize("version", [0, 1, 2])
@pytest.mark.parametrize("magic", [0, 1])
@pytest.mark.parametrize("codec", [Codec.NONE, Codec.GZIP, Codec.SNAPPY, Codec.LZ4])
def test_old_message_sets_become_batches(version: int, magic: int, codec: Codec) -> None:
    header, batch = accepted(write_message_set(OLD, magic, codec), version=version)
    assert header == read_header(batch)
    assert header.codec == codec
    assert [record.value for record in read_batch(batch)] == [b"value", b"other"]


@pytest.mark.parametrize("magic", [0, 1])
def test_message_sets_end_with_version_2(magic: int) -> None:
    assert refusal(write_message_set(OLD, magic), version=3) == Error.INVALID_RECORD


def test_the_topics_codec_and_append_time_apply_to_message_sets_too() -> None:
    rules = Rules(10_000, codec=Codec.ZSTD, timestamp_type=TimestampType.LOG_APPEND_TIME)
    header, batch = accepted(write_message_set(OLD, 0, Codec.GZIP), rules, version=0)
    assert header.codec == Codec.ZSTD
    assert {record.timestamp for record in read_batch(batch)} == {NOW_MS}


@pytest.mark.parametrize(
    ("records", "error"),
    [
        (write_message_set(OLD, 1)[:-1], Error.CORRUPT_MESSAGE),
        (write_message_set(OLD, 1)[:-1] + b"?", Error.CORRUPT_MESSAGE),
        (write_message_set(OLD, 0) + write_message_set(OLD, 1), Error.INVALID_RECORD),
        (write_message_set(OLD, 1, Codec.GZIP) * 2, Error.INVALID_RECORD),
        (write_message_set(OLD, 1, append_time_ms=1), Error.INVALID_TIMESTAMP),
        (write_message(*Message(0, 1, 0, NOW_MS, None, bytes(9990))), Error.MESSAGE_TOO_LARGE),
        (write_message(*Message(0, 1, Codec.GZIP, 0, None, b"x")), Error.CORRUPT_MESSAGE),
    ],
)
def test_a_message_set_that_no_client_may_send_is_refused(records: bytes, error: Error) -> None:
    assert refusal(records, Rules(10_000), version=2) == error


def test_a_compacted_topic_needs_keys_in_message_sets_too() -> None:
    rules = Rules(10_000, is_compacted=True)
    assert accepted(write_message_set(OLD[:1], 1), rules, version=2)
    assert refusal(write_message_set(OLD, 1), rules, version=2) == Error.INVALID_RECORD


def test_timestamp_limits_apply_to_message_sets_except_magic_0() -> None:
    rules = Rules(10_000, timestamp_before_max_ms=10, timestamp_after_max_ms=1)
    assert refusal(write_message_set(OLD, 1), rules, version=2) == Error.INVALID_TIMESTAMP
    assert accepted(write_message_set(OLD, 0), rules, version=2)


def test_a_large_message_set_is_not_used_after_the_first_step() -> None:
    """Its request's bytes are gone after the tick."""
    records = [Record(n, NOW_MS, None, bytes([n]) * 900_000) for n in range(8)]
    received = bytearray(write_message_set(records, 1))
    steps = validating(received, Rules(message_bytes_max=16 << 20), 2, NOW_MS)
    assert next(steps) is None
    received[:] = bytes(len(received))
    [(_, data)] = run_steps(steps)
    assert read_batch(data) == records
