"""Frames are found whole, late and byte by byte; sizes that cannot be are refused at once."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kdist.errors import ProtocolError
from kdist.protocol.framing import FrameRange, bytes_wanted, find_frame


def framed(content: bytes) -> bytes:
    return len(content).to_bytes(4, "big") + content


@settings(deadline=None)
@given(st.lists(st.binary(max_size=20), max_size=5))
def test_frames_that_arrive_byte_by_byte_are_found_in_order(contents):
    buffer = b"".join(framed(content) for content in contents)
    found, start = [], 0
    for end in range(len(buffer) + 1):
        frame = find_frame(buffer, start, end, 100)
        if frame:
            found.append(buffer[frame.start : frame.end])
            start = frame.end
    assert found == contents
    assert start == len(buffer)


def test_the_buffer_behind_the_received_bytes_is_not_read():
    buffer = framed(b"abc") + b"stale bytes of an earlier turn"
    assert find_frame(buffer, 0, 6, 100) is None
    assert find_frame(buffer, 0, 7, 100) == FrameRange(4, 7)


def test_an_empty_frame_is_a_frame():
    assert find_frame(framed(b""), 0, 4, 100) == FrameRange(4, 4)


@pytest.mark.parametrize("size", [-1, -(2**31), 101, 2**31 - 1])
def test_a_size_outside_the_limit_is_refused_before_its_content_arrives(size):
    buffer = size.to_bytes(4, "big", signed=True)
    assert find_frame(buffer, 0, 3, 100) is None
    with pytest.raises(ProtocolError, match=str(size)):
        find_frame(buffer, 0, 4, 100)


def test_the_largest_frame_is_within_the_limit():
    assert find_frame(framed(bytes(100)), 0, 104, 100) == FrameRange(4, 104)


def test_the_bytes_wanted_are_the_size_until_it_is_known_then_the_frame():
    buffer = b"__" + framed(b"abcdef")
    assert bytes_wanted(buffer, 2, 5) == 4
    assert bytes_wanted(buffer, 2, 6) == 10
