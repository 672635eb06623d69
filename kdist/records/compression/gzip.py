"""gzip: RFC 1952, one or more members."""

from __future__ import annotations

import zlib

from kdist.errors import CorruptRecords
from kdist.records.compression.limits import check_part_count, too_large
from kdist.wire.primitives import Buffer

RATIO_MAX = 1032  # what a compressed byte holds at most: a copy of 258 bytes takes two bits

_WINDOW_BITS = 31  # 15 bits of window, plus 16 for the gzip header and trailer
_PIECE_BYTES = 4 << 10  # what a member is given at first
_PIECE_BYTES_MAX = 256 << 10
_PART_BYTES = 1 << 20  # what it gives at a time


def compress(data: Buffer) -> bytes:
    """`data` as one member."""
    stream = zlib.compressobj(wbits=_WINDOW_BITS)
    return stream.compress(data) + stream.flush()


def decompress(data: Buffer, size_max: int) -> Buffer:
    """The data of all members; `CorruptRecords` as in `compression.decompress`."""
    view = memoryview(data)
    # It grows in place, without a second copy, as pages are moved; and no piece is so large that
    # other threads wait while it is copied.
    whole = bytearray()
    member_count = at = 0
    while at < len(view) or not member_count:
        member_count += 1
        check_part_count(member_count, len(whole))
        stream = zlib.decompressobj(wbits=_WINDOW_BITS)
        # What is behind the end of a member is copied. So pieces grow with what it has taken: else
        # all that is left would be copied for each member.
        piece_bytes = _PIECE_BYTES
        while not stream.eof:
            piece: Buffer = stream.unconsumed_tail
            if not piece:
                piece = view[at : at + piece_bytes]
                at += len(piece)
                piece_bytes = min(2 * piece_bytes, _PIECE_BYTES_MAX)
            try:
                # One byte more than allowed: 0 would mean "no limit", and the end of a stream that
                # fills the limit exactly is detected only with some room left.
                room = min(size_max - len(whole) + 1, _PART_BYTES)
                part = stream.decompress(piece, room)
            except zlib.error as cause:
                raise CorruptRecords(f"the gzip data is damaged: {cause}") from cause
            if not piece and not part and not stream.eof:
                raise CorruptRecords("the gzip data is cut short")
            whole += part
            if len(whole) > size_max:
                raise too_large(size_max)
        at -= len(stream.unused_data)
    return whole
