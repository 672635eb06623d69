"""LZ4 frames 1.x; written as Java does: independent blocks, no checksums or sizes.

    at    bytes  field
    0     4      magic 04 22 4d 18
    4     1      FLG: version (2 bits, 01), blocks independent, block checksums, content size,
                 content checksum, reserved, dictionary id
    5     1      BD: block size (bits 4 to 6)
    6     0|8    content size, if FLG says so: not used, as few writers set it, and it may be false
    ...   0|4    dictionary id, if FLG says so
    ...   1      checksum: second byte of xxHash-32 over FLG up to here
    ...   4+n|4  blocks: size (high bit: stored; 0: the end), data, [checksum 4]
    ...   0|4    content checksum, if FLG says so

Little-endian. Kafka's first LZ4 writers also hashed the magic number for the header's checksum
(KAFKA-3160), and readers of magic 0 expect that wrong byte to this day. Magic 1 and 2 have the
right one. Source: the LZ4 frame format 1.6, and KIP-57.
"""

from __future__ import annotations

import struct

import cramjam

from kdist.errors import CorruptRecords
from kdist.records.compression.limits import (
    BLOCKS_MAX,
    decompress_bounded,
    little_endian,
    return_buffer,
    take_buffer,
)
from kdist.wire.primitives import Buffer

RATIO_MAX = 255  # what a compressed byte holds at most: it is added to a length

_MAGIC = bytes.fromhex("04224d18")
_HAS_DICTIONARY_ID = 0x01
_HAS_CONTENT_CHECKSUM = 0x04
_HAS_CONTENT_SIZE = 0x08
_HAS_BLOCK_CHECKSUMS = 0x10
_BLOCK_BYTES = {4: 1 << 16, 5: 1 << 18, 6: 1 << 20, 7: 1 << 22}  # by BD
_SEQUENCE_BYTES_MAX = 64  # what a sequence may add to the ratio: it matters in a small block

# Block sizes. In blocks of up to 64 KiB the library looks for matches of four bytes, in larger ones
# of five: that takes half the time, and the output is larger by a twentieth. Readers allocate whole
# blocks, so a small batch has small ones.
_SMALL, _LARGE = 1 << 16, 1 << 18
# Headers of the usual frames (librdkafka's, Java's and ours) by block size: magic, FLG (independent
# blocks), BD (the block size), checksum.
_HEADERS = {
    size: _MAGIC + bytes.fromhex(f"60 {code}")
    for size, code in ((_SMALL, "40 82"), (_LARGE, "50 fb"), (1 << 20, "60 51"), (1 << 22, "70 73"))
}
_USUAL = {header: size for size, header in _HEADERS.items()}
_HEADER_SIZE = 7
_SIZE = struct.Struct("<I")  # before each block
_END = 0  # the size that ends the frame
_STORED = 0x8000_0000  # bit of a block's size: it is stored uncompressed, as it did not shrink

_PRIME_1 = 0x9E3779B1
_PRIME_2 = 0x85EBCA77
_PRIME_3 = 0xC2B2AE3D
_PRIME_4 = 0x27D4EB2F
_PRIME_5 = 0x165667B1
_MASK = 0xFFFF_FFFF


def compress(data: Buffer) -> bytes:
    """`data` in one frame."""
    # Framed here and not by the library, whose frames have linked blocks, which Java refuses.
    view = memoryview(data)
    size = _SMALL if len(view) <= _SMALL else _LARGE
    header = _HEADERS[size]
    compress_into = cramjam.lz4.compress_block_into
    buffer = take_buffer(len(view) + len(view) // 128 + 64)  # data that does not shrink may grow
    end = len(header)
    try:
        with memoryview(buffer) as packed:
            packed[:end] = header
            for start in range(0, len(view), size):
                block = view[start : start + size]
                first = end + _SIZE.size
                block_bytes = size_field = compress_into(block, packed[first:], store_size=False)
                if block_bytes >= len(block):
                    block_bytes, size_field = len(block), len(block) | _STORED
                    packed[first : first + block_bytes] = block
                _SIZE.pack_into(packed, end, size_field)
                end = first + block_bytes
            _SIZE.pack_into(packed, end, _END)
        return buffer[: end + _SIZE.size]
    finally:
        return_buffer(buffer)


def decompress(data: Buffer, size_max: int) -> Buffer:
    """The data of any frames; `CorruptRecords` as in `compression.decompress`."""
    # cramjam before 2.14 ignores what follows the first frame: hence pyproject.toml's minimum.
    held_max = bound(data)
    if held_max is not None and bytes(data[:_HEADER_SIZE]) in _USUAL:
        return decompress_bounded(_blocks_into, data, held_max, size_max)
    return decompress_bounded(cramjam.lz4.decompress_into, data, held_max, size_max)


def _blocks_into(data: Buffer, output: memoryview) -> int:
    """As the library's, for a whole frame of a usual kind, without its extra copy of each block."""
    view = memoryview(data)
    block_bytes_max = _USUAL[bytes(view[:_HEADER_SIZE])]
    at, end = _HEADER_SIZE, 0
    while size_field := _SIZE.unpack_from(view, at)[0]:
        block_bytes = size_field & ~_STORED
        at += _SIZE.size
        block = view[at : at + block_bytes]
        with output[end : end + block_bytes_max] as room:  # released even after an error
            if size_field == block_bytes:
                end += cramjam.lz4.decompress_block_into(block, room, output_len=len(room))
            elif block_bytes <= len(room):
                room[:block_bytes] = block
                end += block_bytes
            else:
                raise cramjam.DecompressionError("a stored block is too large")
        at += block_bytes
    return end


def bound(data: Buffer) -> int | None:
    """How much a frame holds at most, by its blocks; None if it is not one whole frame."""
    view = memoryview(data)
    if view[:4] != _MAGIC or len(view) < _HEADER_SIZE:
        return None
    flags = view[4]
    block_bytes_max = _BLOCK_BYTES.get(view[5] >> 4 & 7)
    if block_bytes_max is None:
        return None
    at = _checksum_position(flags) + 1
    checksum_bytes = 4 if flags & _HAS_BLOCK_CHECKSUMS else 0
    total = 0
    for _ in range(BLOCKS_MAX):
        size = little_endian(view, at, 4)
        if size <= 0:
            end = at + 4 + (4 if flags & _HAS_CONTENT_CHECKSUM else 0)
            return total if not size and end == len(view) else None
        stored = size & ~_STORED
        if size == stored:
            total += min(block_bytes_max, stored * RATIO_MAX + _SEQUENCE_BYTES_MAX)
        else:
            total += stored
        at += 4 + stored + checksum_bytes
    return None


def _checksum_position(flags: int) -> int:
    return 6 + (8 if flags & _HAS_CONTENT_SIZE else 0) + (4 if flags & _HAS_DICTIONARY_ID else 0)


# --- the header's checksum ----------------------------------------------------------------------


def break_checksum(frame: Buffer) -> bytes:
    """The frame with the wrong checksum that magic 0 needs."""
    return _with_checksum(frame, hashed_from=0)


def mend_checksum(frame: Buffer) -> bytes:
    """The frame with the right checksum, whatever it had: Java's reader ignores it too."""
    return _with_checksum(frame, hashed_from=len(_MAGIC))


def _with_checksum(frame: Buffer, hashed_from: int) -> bytes:
    view = memoryview(frame)
    if len(view) < _HEADER_SIZE or view[:4] != _MAGIC:
        raise CorruptRecords("the LZ4 data does not begin with a frame")
    at = _checksum_position(view[4])
    checksum = xxhash32(bytes(view[hashed_from:at])) >> 8 & 0xFF
    return b"".join((view[:at], bytes((checksum,)), view[at + 1 :]))


def xxhash32(data: bytes) -> int:
    """xxHash-32 with seed 0, in plain Python: enough for the 2 to 18 bytes of a header."""
    size = len(data)
    stripes_end = size & ~15
    if stripes_end:
        lanes = [(_PRIME_1 + _PRIME_2) & _MASK, _PRIME_2, 0, -_PRIME_1 & _MASK]
        for at in range(0, stripes_end, 4):
            lane = at // 4 % 4
            mixed = (lanes[lane] + _word(data, at) * _PRIME_2) & _MASK
            lanes[lane] = _rotate(mixed, 13) * _PRIME_1 & _MASK
        turns = (1, 7, 12, 18)
        digest = sum(_rotate(lane, by) for lane, by in zip(lanes, turns, strict=True)) & _MASK
    else:
        digest = _PRIME_5
    digest = (digest + size) & _MASK
    words_end = size & ~3
    for at in range(stripes_end, words_end, 4):
        digest = _rotate((digest + _word(data, at) * _PRIME_3) & _MASK, 17) * _PRIME_4 & _MASK
    for byte in data[words_end:]:
        digest = _rotate((digest + byte * _PRIME_5) & _MASK, 11) * _PRIME_1 & _MASK
    digest = (digest ^ digest >> 15) * _PRIME_2 & _MASK
    digest = (digest ^ digest >> 13) * _PRIME_3 & _MASK
    return digest ^ digest >> 16


def _word(data: bytes, at: int) -> int:
    return int.from_bytes(data[at : at + 4], "little")


def _rotate(word: int, by: int) -> int:
    return (word << by | word >> 32 - by) & _MASK
