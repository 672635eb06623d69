"""Zstandard: RFC 8878, one or more frames, with or without the content size.

    frame   magic 4, descriptor 1, [window 1], [dictionary], [content size], blocks, [checksum 4]
    block   3 bytes (bit 0: the last; 2 bits: raw, repeated, compressed; 21 bits: size), data

Little-endian. Source: RFC 8878 section 3.1.1.
"""

from __future__ import annotations

import cramjam

from kdist.records.compression.limits import BLOCKS_MAX, decompress_bounded, little_endian
from kdist.wire.primitives import Buffer

# What a compressed byte holds at most, as long as nobody looks at the blocks, which know better: a
# block of four bytes may stand for 128 KiB.
RATIO_MAX = 1032

_LEVEL = 3  # Java's default
_MAGIC = 0xFD2FB528
_BLOCK_BYTES_MAX = 1 << 17
_RAW, _REPEATED = 0, 1
_DICTIONARY_ID_BYTES = (0, 1, 2, 4)
_CONTENT_SIZE_BYTES = (0, 2, 4, 8)


def compress(data: Buffer) -> bytes:
    """`data` in one frame."""
    return bytes(cramjam.zstd.compress(data, _LEVEL))


def decompress(data: Buffer, size_max: int) -> Buffer:
    """The data of all frames; `CorruptRecords` as in `compression.decompress`."""
    return decompress_bounded(cramjam.zstd.decompress_into, data, bound(data), size_max)


def bound(data: Buffer) -> int | None:
    """How much successive frames hold at most, by their blocks; None if one is not whole."""
    view = memoryview(data)
    total = at = 0
    is_last, descriptor = True, 0
    for _ in range(BLOCKS_MAX):
        if is_last:
            if at == len(view):
                return total
            if little_endian(view, at, 4) != _MAGIC:
                return None
            descriptor = little_endian(view, at + 4, 1)
            at = _blocks_position(at, descriptor)
        header = little_endian(view, at, 3)
        if header < 0:
            return None
        is_last, kind, size = bool(header & 1), header >> 1 & 3, header >> 3
        total += size if kind in (_RAW, _REPEATED) else _BLOCK_BYTES_MAX
        at += 3 + (1 if kind == _REPEATED else size)
        if is_last and descriptor & 0x04:
            at += 4
    return None


def _blocks_position(at: int, descriptor: int) -> int:
    """Where the blocks of the frame at `at` begin."""
    is_single_segment = descriptor & 0x20
    content_size_bytes = _CONTENT_SIZE_BYTES[descriptor >> 6 & 3]
    if is_single_segment:
        content_size_bytes = max(1, content_size_bytes)
    return (
        at + 5 + (not is_single_segment) + _DICTIONARY_ID_BYTES[descriptor & 3] + content_size_bytes
    )
