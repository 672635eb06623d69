"""Frames: where in a receive buffer the next request or response is.

    size int32 | that many bytes

Nothing is copied; the caller slices its own buffer at the range, and moves its `start` to `end`.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from kdist.errors import ProtocolError
from kdist.wire.varint import Buffer

SIZE_BYTES = 4
_SIZE = struct.Struct(">i")


class FrameRange(NamedTuple):
    """A frame's content, without its size, is `buffer[start:end]`."""

    start: int
    end: int


def find_frame(buffer: Buffer, start: int, end: int, frame_bytes_max: int) -> FrameRange | None:
    """The frame at `start` of the bytes received, which go to `end`; None if it is incomplete.

    Raises `ProtocolError` for a size below 0 or above `frame_bytes_max` as soon as the size is
    there: a peer with another protocol is detected before a buffer is allocated for its "size".
    """
    content = start + SIZE_BYTES
    if content > end:
        return None
    (size,) = _SIZE.unpack_from(buffer, start)
    if not 0 <= size <= frame_bytes_max:
        raise ProtocolError(f"a frame of {size} bytes; {frame_bytes_max} is the limit")
    frame_end = content + size
    return FrameRange(content, frame_end) if frame_end <= end else None


def bytes_wanted(buffer: Buffer, start: int, end: int) -> int:
    """How many bytes from `start` the frame takes, size included; 4 while that is unknown.

    `find_frame` must have checked the frame's size before.
    """
    if start + SIZE_BYTES > end:
        return SIZE_BYTES
    size: int = _SIZE.unpack_from(buffer, start)[0]
    return SIZE_BYTES + size
