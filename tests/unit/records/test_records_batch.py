"""A batch's header: read, checked, patched; and that damage to a batch is always detected."""

from __future__ import annotations

import re
import struct
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kdist.errors import CorruptRecords
from kdist.records import codec as record_codec
from kdist.records.batch import (
    HEADER,
    HEADER_SIZE,
    Attribute,
    BatchHeader,
    TimestampType,
    crc_fault,
    header_fault,
    is_partial,
    iter_headers,
    producer_fault,
    read_header,
    seal,
    stamp_append_time,
)
from kdist.records.build import build_batch, read_batch
from kdist.records.compression import Codec
from kdist.records.control import ControlType, EndTransactionMarker, read_control_type, read_marker
from tests.written_records import patch, write_marker

NOW_MS = 1_700_000_000_000


def batch(count: int = 3, **fields: object) -> bytearray:
    values = [b"value-%d" % i for i in range(count)]
    return build_batch(values, timestamp_ms=NOW_MS, **fields)  # type: ignore[arg-type]


def header(**changes: int) -> BatchHeader:
    return read_header(batch())._replace(**changes)


def fault(data: bytes | bytearray) -> str | None:
    """What all checks together find in a batch that should fill `data`."""
    try:
        found = read_header(data)
        wrong = header_fault(found, len(data)) or crc_fault(data, 0, found)
        if wrong or found.size != len(data):
            return wrong or "another size"
        read_batch(data)
    except CorruptRecords as error:
        return str(error)
    return None


def test_each_field_stands_where_the_format_says() -> None:
    data = struct.pack(
        ">qiibIhiqqqhii", 10, 61, 3, 2, 0xDEAD_BEEF, 0b1101_010, 9, 100, 200, 7, 5, 40, 8
    )
    found = read_header(b"..." + data, 3)
    assert found._asdict() == {
        "base_offset": 10,
        "batch_length": 61,
        "partition_leader_epoch": 3,
        "magic": 2,
        "crc": 0xDEAD_BEEF,
        "attributes": 0b1101_010,
        "last_offset_delta": 9,
        "base_timestamp": 100,
        "max_timestamp": 200,
        "producer_id": 7,
        "producer_epoch": 5,
        "base_sequence": 40,
        "record_count": 8,
    }
    assert (found.size, found.last_offset, found.next_offset, found.last_sequence) == (
        73,
        19,
        20,
        49,
    )


@pytest.mark.parametrize("codec", Codec)
@pytest.mark.parametrize("bit", range(3, 7))
def test_attributes_are_read_bit_by_bit(codec: Codec, bit: int) -> None:
    found = header(attributes=codec | 1 << bit)
    assert found.codec == codec
    flags = (
        found.is_log_append_time,
        found.is_transactional,
        found.is_control,
        found.has_delete_horizon,
    )
    assert flags == tuple(bit == at for at in range(3, 7))
    assert found.timestamp_type == TimestampType(bit == 3)


def test_sequences_wrap_to_zero_and_are_none_without_a_producer() -> None:
    assert header(base_sequence=(1 << 31) - 2, last_offset_delta=3).last_sequence == 1
    assert header(base_sequence=(1 << 31) - 1, last_offset_delta=0).last_sequence == (1 << 31) - 1
    assert header(base_sequence=-1, last_offset_delta=3).last_sequence == -1


def test_a_header_cut_short_is_corrupt() -> None:
    for size in range(HEADER_SIZE):
        with pytest.raises(CorruptRecords, match=f"{size} bytes are too few"):
            read_header(batch()[:size])


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"magic": 1}, "magic is 1"),
        ({"magic": -1}, "magic is -1"),
        ({"batch_length": 48}, "smaller than its header"),
        ({"batch_length": -1}, "smaller than its header"),
        ({"batch_length": -(1 << 31)}, "smaller than its header"),
        ({"batch_length": (1 << 31) - 1}, "larger than the"),
        ({"attributes": 5}, "codec 5 is unknown"),
        ({"attributes": 7}, "codec 7 is unknown"),
        ({"base_offset": -1}, "base offset -1 is negative"),
        ({"last_offset_delta": -1}, "last offset delta -1 is negative"),
        ({"record_count": -1}, "-1 records do not fit"),
        ({"record_count": 4}, "4 records do not fit a last offset delta of 2"),
        ({"record_count": 100, "last_offset_delta": 99}, "100 records do not fit in"),
    ],
)
def test_an_impossible_header_is_reported_by_its_field(
    changes: dict[str, int], sentence: str
) -> None:
    found = header_fault(header(**changes), len(batch()))
    assert found is not None
    assert sentence in found


def test_a_compacted_batch_is_valid_but_cannot_be_produced() -> None:
    thinned = header(last_offset_delta=50)
    assert header_fault(thinned, len(batch())) is None
    assert "leaves no gaps" in (producer_fault(thinned) or "")
    emptied = header(last_offset_delta=50, record_count=0, batch_length=HEADER_SIZE - 12)
    assert header_fault(emptied, HEADER_SIZE) is None
    assert "holds no records" in (producer_fault(emptied) or "")


def test_batches_that_only_brokers_write_cannot_be_produced() -> None:
    assert producer_fault(header()) is None
    assert "control batch" in (producer_fault(read_header(batch(is_control=True))) or "")
    assert "sequence -1" in (producer_fault(header(producer_id=5)) or "")
    assert producer_fault(header(producer_id=5, base_sequence=0)) is None


@given(
    st.integers(0, (1 << 63) - 1), st.integers(-(1 << 31), (1 << 31) - 1), st.binary(max_size=20)
)
def test_patching_writes_offset_and_epoch_only(
    base_offset: int, leader_epoch: int, before: bytes
) -> None:
    plain = batch()
    buffer = bytearray(before) + plain + before
    patch(buffer, len(before), base_offset=base_offset, leader_epoch=leader_epoch)
    found = read_header(buffer, len(before))
    assert found == read_header(plain)._replace(
        base_offset=base_offset, partition_leader_epoch=leader_epoch
    )
    assert crc_fault(buffer, len(before), found) is None
    assert buffer[: len(before)] == buffer[len(before) + len(plain) :] == before


@pytest.mark.parametrize("codec", Codec)
def test_a_batch_stamped_with_append_time_gives_it_to_all_records(codec: Codec) -> None:
    buffer = bytearray(5) + batch(codec=codec)
    stamp_append_time(memoryview(buffer), 5, NOW_MS + 77)
    found = read_header(buffer, 5)
    assert found.timestamp_type is TimestampType.LOG_APPEND_TIME
    assert (found.base_timestamp, found.max_timestamp) == (NOW_MS, NOW_MS + 77)
    assert found.codec == codec
    assert [record.timestamp for record in read_batch(buffer, 5)] == [NOW_MS + 77] * 3
    assert [record.timestamp for record in read_batch(batch(codec=codec))] == [NOW_MS] * 3


def test_successive_headers_are_found() -> None:
    batches = [batch(1, base_offset=4), batch(2, base_offset=5), batch(3, base_offset=7)]
    found = list(iter_headers(b"".join(batches)))
    assert [position for position, _ in found] == [0, len(batches[0]), len(batches[0] + batches[1])]
    assert [(h.base_offset, h.next_offset) for _, h in found] == [(4, 5), (5, 7), (7, 10)]
    assert list(iter_headers(b"")) == []


def test_a_last_batch_cut_at_any_length_is_corrupt_or_if_allowed_left_out() -> None:
    first, second = batch(1), batch(2)
    for size in range(1, len(second)):
        cut = bytes(first + second[:size])
        assert is_partial(cut, len(first))
        with pytest.raises(CorruptRecords):
            list(iter_headers(cut))
        assert [p for p, _ in iter_headers(cut, may_end_partial=True)] == [0]
    assert not is_partial(first + second, len(first))


def test_a_wrong_header_between_others_is_corrupt_even_where_the_end_may_be_partial() -> None:
    first, second = batch(1), batch(2)
    second[16] = 1
    with pytest.raises(CorruptRecords, match=f"byte {len(first)}: magic is 1"):
        list(iter_headers(first + second + first, may_end_partial=True))


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.LZ4])
def test_every_flipped_bit_is_detected_except_in_fields_that_the_leader_writes(
    codec: Codec,
) -> None:
    sound = batch(codec=codec, producer_id=9, producer_epoch=1, base_sequence=5)
    expected = read_batch(sound)
    unseen = set()
    for bit in range(len(sound) * 8):
        flipped = bytearray(sound)
        flipped[bit // 8] ^= 1 << bit % 8
        if fault(flipped) is None:
            unseen.add(bit // 8)
            moved = read_header(flipped).base_offset
            assert [r._replace(offset=r.offset - moved) for r in read_batch(flipped)] == expected
    assert unseen == set(range(8)) | set(range(12, 16))  # base offset and leader epoch: no CRC


@pytest.mark.parametrize("codec", Codec)
def test_a_batch_cut_at_any_length_is_corrupt(codec: Codec) -> None:
    sound = batch(codec=codec)
    assert fault(sound) is None
    for size in range(len(sound)):
        assert fault(sound[:size])


def test_a_compacted_batch_keeps_its_offsets() -> None:
    full = batch(base_offset=100)
    record_size = (len(full) - HEADER_SIZE) // 3
    thinned = full[: HEADER_SIZE + record_size] + full[HEADER_SIZE + 2 * record_size :]
    thinned[8:12] = (len(thinned) - 12).to_bytes(4, "big")
    thinned[57:61] = (2).to_bytes(4, "big")
    seal(thinned, 0, len(thinned))
    assert read_header(thinned).next_offset == 103
    assert [(r.offset, r.value) for r in read_batch(thinned)] == [
        (100, b"value-0"),
        (102, b"value-2"),
    ]


def test_timestamps_count_from_the_delete_horizon_where_the_batch_has_one() -> None:
    horizon = NOW_MS + 86_400_000
    stamps = [NOW_MS, NOW_MS + 5, NOW_MS - 5]
    data = bytearray(HEADER_SIZE)
    data += record_codec.encode_records([None] * 3, [b"k"] * 3, None, stamps, horizon)
    fields = read_header(batch())._replace(
        batch_length=len(data) - 12,
        attributes=int(Attribute.DELETE_HORIZON),
        base_timestamp=horizon,
        max_timestamp=max(stamps),
    )
    HEADER.pack_into(data, 0, *fields)
    seal(data, 0, len(data))
    assert read_header(data).has_delete_horizon
    assert [record.timestamp for record in read_batch(data)] == stamps


def test_the_format_pages_example_is_what_the_encoder_writes() -> None:
    page = Path(__file__).parents[3] / "docs" / "formats" / "record-batch.md"
    (example,) = re.findall(r"^## An example\n\n```\n(.*?)```", page.read_text(), re.M | re.S)
    described = "".join(line.partition("  ")[0] for line in example.splitlines())
    batch = build_batch([b"hi"], timestamp_ms=1_700_000_000_000, base_offset=7, leader_epoch=0)
    assert bytes.fromhex(described) == batch


def test_a_new_batch_takes_its_time_from_its_records_where_they_have_one() -> None:
    data = build_batch([b""] * 3, timestamps=[50, 70, 60], timestamp_ms=NOW_MS)
    assert (read_header(data).base_timestamp, read_header(data).max_timestamp) == (50, 70)
    data = build_batch([b""] * 3, timestamp_ms=NOW_MS)
    assert (read_header(data).base_timestamp, read_header(data).max_timestamp) == (NOW_MS, NOW_MS)


def test_a_batch_that_cannot_be_built_is_refused_in_a_sentence() -> None:
    with pytest.raises(ValueError, match="at least one record"):
        build_batch([], timestamp_ms=NOW_MS)
    with pytest.raises(ValueError, match="0 timestamps for 1 values"):
        build_batch([b""], timestamps=[], timestamp_ms=NOW_MS)
    with pytest.raises(TypeError, match="timestamp 0 is of type str"):
        build_batch([b""], timestamps=["now"], timestamp_ms=NOW_MS)  # type: ignore[list-item]


@pytest.mark.parametrize("codec", [codec for codec in Codec if codec != Codec.NONE])
def test_a_batch_that_decompresses_to_more_than_allowed_is_corrupt(codec: Codec) -> None:
    data = build_batch([bytes(100_000)], timestamp_ms=NOW_MS, codec=codec)
    assert len(data) < 10_000
    assert len(read_batch(data, body_bytes_max=101_000)) == 1
    with pytest.raises(CorruptRecords):
        read_batch(data, body_bytes_max=99_000)


def test_a_body_that_contradicts_its_headers_count_is_corrupt() -> None:
    for count, delta in [(2, 2), (0, 2), (4, 3)]:
        data = batch()
        data[23:27] = delta.to_bytes(4, "big")
        data[57:61] = count.to_bytes(4, "big")
        seal(data, 0, len(data))
        with pytest.raises(CorruptRecords):
            read_batch(data)


@pytest.mark.parametrize("control_type", [ControlType.ABORT, ControlType.COMMIT])
def test_a_marker_in_a_control_batch_comes_back(control_type: ControlType) -> None:
    key, value = write_marker(EndTransactionMarker(control_type, coordinator_epoch=12))
    assert (key.hex(), value.hex()) == (f"0000000{control_type}", "00000000000c")
    data = build_batch(
        [value],
        [key],
        timestamp_ms=NOW_MS,
        producer_id=5,
        producer_epoch=1,
        is_transactional=True,
        is_control=True,
    )
    assert read_header(data).is_control
    assert read_header(data).is_transactional
    (record,) = read_batch(data)
    assert read_marker(record.key, record.value) == EndTransactionMarker(control_type, 12)


def test_control_records_of_later_versions_and_types_can_be_told_apart() -> None:
    assert read_control_type(bytes.fromhex("0007 0001 99")) is ControlType.COMMIT
    assert read_control_type(bytes.fromhex("0000 0002")) is ControlType.UNKNOWN
    assert read_marker(bytes.fromhex("00010000"), bytes.fromhex("0001000000ff77")) == (
        EndTransactionMarker(ControlType.ABORT, 255)
    )


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (None, "0000 00000001"),
        ("000000", "0000 00000001"),
        ("ffff 0001", "0000 00000001"),
        ("0000 0002", "0000 00000001"),
        ("0000 0001", None),
        ("0000 0001", "0000 000000"),
        ("0000 0001", "ffff 00000001"),
    ],
)
def test_an_invalid_marker_is_corrupt(key: str | None, value: str | None) -> None:
    with pytest.raises(CorruptRecords):
        read_marker(key and bytes.fromhex(key), value and bytes.fromhex(value))
