"""Message sets as Apache Kafka 3.9.1 writes them, byte for byte."""

from __future__ import annotations

import pytest

from kdist.records.compression import Codec
from kdist.records.message_set import iter_messages, write_message_set
from kdist.records.record import Record
from tests.written_records import iter_records

RECORDS = [
    Record(100, 1_700_000_000_000, b"k", b"one one one one one one one"),
    Record(103, 1_700_000_000_009, b"k", None),
    Record(104, 1_700_000_000_001, None, b"three"),
]
SETS = [  # magic, codec, append time, bytes
    (
        0,
        Codec.NONE,
        None,
        bytes.fromhex(
            "00000000000000640000002a93943a170000000000016b0000001b6f6e65206f6e65206f6e65206f"
            "6e65206f6e65206f6e65206f6e6500000000000000670000000f908204f60000000000016bffffff"
            "ff000000000000006800000013f77204c10000ffffffff000000057468726565"
        ),
    ),
    (
        0,
        Codec.GZIP,
        None,
        bytes.fromhex(
            "00000000000000680000005c0e52aad20001ffffffff0000004e1f8b08000000000000ff63600083"
            "1420d69a3cc54a1ccc63cc0612d2f979a90a38304413433a10f34f6862f906d5f51f08a05219402c"
            "fcbd88e52003035494b524a3283515002a4ee58970000000"
        ),
    ),
    (
        0,
        Codec.SNAPPY,
        None,
        bytes.fromhex(
            "000000000000006800000078d66571820002ffffffff0000006a82534e4150505900000000010000"
            "000100000056700000090124640000002a93943a1700010124016b0000001b6f6e65205a04000125"
            "2c000000670000000f908204f6010d1800016bffffffff050b6400006800000013f77204c10000ff"
            "ffffff000000057468726565"
        ),
    ),
    (
        0,
        Codec.LZ4,
        None,
        bytes.fromhex(
            "00000000000000680000006d61addb230003ffffffff0000005f04224d1860401a50000000120001"
            "0091640000002a93943a170f00af016b0000001b6f6e6520040004012600b00000670000000f9082"
            "04f60d007100016bffffffff0b00d300006800000013f77204c10000160060057468726565000000"
            "00"
        ),
    ),
    (
        1,
        Codec.NONE,
        None,
        bytes.fromhex(
            "0000000000000064000000327187420a01000000018bcfe56800000000016b0000001b6f6e65206f"
            "6e65206f6e65206f6e65206f6e65206f6e65206f6e650000000000000067000000177ffcba0c0100"
            "0000018bcfe56809000000016bffffffff00000000000000680000001b633994bf01000000018bcf"
            "e56801ffffffff000000057468726565"
        ),
    ),
    (
        1,
        Codec.GZIP,
        None,
        bytes.fromhex(
            "00000000000000680000006cf21bce5101010000018bcfe56809ffffffff000000561f8b08000000"
            "000000ff63608003a3c276272e462083b1fbfcd30c900863369090cecf4b55c081a13a998158bcfe"
            "cf2e1eb86e4eb0eeff400055c2023229d972ca7eb81246a82c6b4946516a2a003d023c1e88000000"
        ),
    ),
    (
        1,
        Codec.GZIP,
        777,
        bytes.fromhex(
            "00000000000000680000006631abbd3301090000000000000309ffffffff000000501f8b08000000"
            "000000ff63608003a3aae69bb58c1c100e33279060cc0612d2f979a90a3830542733108bb778cabf"
            "42d3fd1f08a04a5840269d97aaea472881cab2966414a5a60200fd8c103288000000"
        ),
    ),
    (
        1,
        Codec.SNAPPY,
        None,
        bytes.fromhex(
            "00000000000000680000008a824bcf1701020000018bcfe56809ffffffff0000007482534e415050"
            "590000000001000000010000006088010000190134327187420a01000000018bcfe568011824016b"
            "0000001b6f6e65205a040001252c00000003000000177ffcba0c153e00090147106bffffffff0120"
            "2c000000040000001b633994bf15233401ffffffff000000057468726565"
        ),
    ),
    (
        1,
        Codec.LZ4,
        None,
        bytes.fromhex(
            "00000000000000680000007e75d3931e01030000018bcfe56809ffffffff0000006804224d186040"
            "825900000016000100e0327187420a01000000018bcfe5681800af016b0000001b6f6e6520040004"
            "002500c500000003000000177ffcba0c3e0010094700516bffffffff2100300000044a0045633994"
            "bf230013011e006005746872656500000000"
        ),
    ),
]
every_set = pytest.mark.parametrize(("magic", "codec", "append_time_ms", "data"), SETS)


@every_set
def test_what_apache_kafka_wrote_is_read(
    magic: int, codec: Codec, append_time_ms: int | None, data: bytes
) -> None:
    timestamps = [record.timestamp if magic else -1 for record in RECORDS]
    if append_time_ms is not None:
        timestamps = [append_time_ms] * len(RECORDS)
    expected = [
        record._replace(timestamp=timestamp)
        for record, timestamp in zip(RECORDS, timestamps, strict=True)
    ]
    assert list(iter_records(data, 10_000)) == expected
    assert {message.attributes & 7 for message in iter_messages(data)} == {codec}


@pytest.mark.parametrize(
    ("magic", "codec", "append_time_ms", "data"),
    [row for row in SETS if row[1] in (Codec.NONE, Codec.LZ4)],
)
def test_what_is_written_has_the_bytes_of_apache_kafka_where_the_compressor_leaves_no_choice(
    magic: int, codec: Codec, append_time_ms: int | None, data: bytes
) -> None:
    assert write_message_set(RECORDS, magic, codec, append_time_ms=append_time_ms) == data
