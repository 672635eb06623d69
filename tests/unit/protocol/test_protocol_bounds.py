"""Lengths and counts that promise gigabytes: refused, and nothing is allocated for them."""

import contextlib
import tracemalloc

import pytest
from protocol_samples import ALL_CASES, every_version_of

from kdist.errors import ProtocolError
from kdist.protocol.compiler import codec_for
from kdist.protocol.envelope import decode_request

HUGE = [
    b"\x7f\xff\xff\xff",
    b"\xff\xff\xff\xff\x07",
    b"\xff\xff\xff\xff\x0f",
    b"\x80\x80\x80\x80\x08",
]
FEW_BYTES = 60_000  # a traceback, a message of the size of the frame and its objects


@every_version_of(ALL_CASES)
def test_a_huge_length_anywhere_allocates_nothing(case):
    decode = codec_for(*case).decode
    frames = [bytes(at) + huge + bytes(60 - at) for at in range(0, 60, 4) for huge in HUGE]
    frames += [b"\x01" * at + huge + bytes(60 - at) for at in range(0, 60, 5) for huge in HUGE]
    tracemalloc.start()
    for frame in frames:
        with contextlib.suppress(ProtocolError):  # some promise nothing, at some versions
            decode(memoryview(frame), 0)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < FEW_BYTES


@pytest.mark.parametrize(
    "body",
    [
        pytest.param("ffff 0001 00000000 7fffffff", id="topics"),
        pytest.param("ffff 0001 00000000 00000001 7fff", id="name"),
        pytest.param("ffff 0001 00000000 00000001 0000 7fffffff", id="partitions"),
        pytest.param("ffff 0001 00000000 00000001 0000 00000001 00000000 7fffffff", id="records"),
    ],
)
def test_a_produce_request_of_2_gb_that_is_not_there_is_refused(body):
    frame = bytes.fromhex("0000 0003 00000001 ffff" + body) + bytes(8)
    with contextlib.suppress(ProtocolError):
        decode_request(frame)  # what is compiled at the first use is not counted
    tracemalloc.start()
    with pytest.raises(ProtocolError, match="remain"):
        decode_request(frame)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < FEW_BYTES


def test_a_count_is_held_against_the_smallest_size_of_its_items():
    # 20 topics of at least 8 bytes each cannot be in 100 bytes; nothing is made for any of them.
    frame = bytes.fromhex("0000 0003 00000001 ffff ffff 0001 00000000 00000014") + bytes(100)
    with pytest.raises(ProtocolError, match="a count of 20 where 100 bytes remain"):
        decode_request(frame)


def test_a_compact_string_longer_than_a_plain_one_can_be_is_refused():
    # What it names would have to be written to records and older answers, which have no room.
    frame = (
        bytes.fromhex("0008 0008 00000001 ffff 00") + b"\xc1\xb8\x02" + b"g" * 40_000 + bytes(20)
    )
    with pytest.raises(ProtocolError, match="a string of 40000 bytes"):
        decode_request(frame)
