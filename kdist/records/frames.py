"""Upper bounds for what compressed data holds, from its size and block headers alone (pure).

So a batch cannot claim more records than its bytes can hold, and an output buffer that is large
enough can be taken at once. The content size in a frame's header is not used: few writers set it,
and it may be false. A block cannot hold more than its type allows.

    LZ4     magic, FLG, BD, [content size 8], [dictionary 4], checksum 1, blocks, [checksum 4]
            block: size 4 (high bit: stored; 0: the end), data, [checksum 4]
    ZSTD    magic, descriptor, [window 1], [dictionary], [content size], blocks, [checksum 4]
            block: 3 bytes (bit 0: the last; 2 bits: raw, repeated, compressed; 21 bits: size), data

All little-endian. Sources: the LZ4 frame format 1.6, RFC 8878 section 3.1.1.
"""

from __future__ import annotations

from kdist.errors import CorruptRecords
from kdist.wire.varint import Buffer

# By codec: what a compressed byte stands for at most. Deflate copies 258 bytes by two bits, snappy
# 64 by three bytes; in LZ4 a byte is added to a length. A zstd block of four bytes may stand for
# 128 KiB: so beyond this ratio its blocks are looked at, if there can be thousands at most.
RATIO_MAX = (1, 1032, 22, 255, 1032)
_LZ4, _ZSTD = 3, 4  # the codecs' numbers
_LOOKED_AT_BYTES = 1 << 14

# Gzip members and xerial blocks, each of which takes some microseconds: so many, and one more for
# each KiB that they hold, which is the smallest block that writers of either make.
_PARTS_MAX = 1 << 10
_PART_BYTES = 1 << 10
_BLOCKS_MAX = 1 << 14  # a GiB in blocks of 64 KiB: more of them than that is an attack
_LZ4_MAGIC = 0x184D2204
_LZ4_STORED = 0x8000_0000
_LZ4_BLOCK_BYTES = {4: 1 << 16, 5: 1 << 18, 6: 1 << 20, 7: 1 << 22}  # by BD
_LZ4_SEQUENCE_BYTES_MAX = 64  # what a sequence may add to that: it matters in a small block

_ZSTD_MAGIC = 0xFD2FB528
_ZSTD_BLOCK_BYTES_MAX = 1 << 17
_ZSTD_RAW, _ZSTD_REPEATED = 0, 1
_DICTIONARY_ID_BYTES = (0, 1, 2, 4)
_CONTENT_SIZE_BYTES = (0, 2, 4, 8)


def content_bound(codec: int, packed_bytes: int, packed: Buffer | None = None) -> int:
    """How much `packed_bytes` of a known codec hold at most; more precisely if the bytes are given.

    Of data that is damaged it may be anything, as it cannot be read.
    """
    bound = RATIO_MAX[codec] * packed_bytes
    if codec == _ZSTD and packed is not None and packed_bytes <= _LOOKED_AT_BYTES:
        return max(bound, zstd_bound(packed) or 0)
    return bound


def check_part_count(count: int, size_bytes: int) -> None:
    """`CorruptRecords` if there are too many parts in data of which `size_bytes` are unpacked."""
    if count > _PARTS_MAX + size_bytes // _PART_BYTES:
        raise CorruptRecords(f"the data has {count} parts for {size_bytes} bytes")


def lz4_bound(data: Buffer) -> int | None:
    """The bound for one frame; None if it is not a whole frame of the usual kind."""
    view = memoryview(data)
    if _number(view, 0, 4) != _LZ4_MAGIC or len(view) < 7:
        return None
    flags = view[4]
    block_bytes_max = _LZ4_BLOCK_BYTES.get(view[5] >> 4 & 7)
    if block_bytes_max is None:
        return None
    at = 7 + (8 if flags & 0x08 else 0) + (4 if flags & 0x01 else 0)
    checksum_bytes = 4 if flags & 0x10 else 0
    bound = 0
    for _ in range(_BLOCKS_MAX):
        size = _number(view, at, 4)
        if size <= 0:
            is_whole = not size and at + 4 + (4 if flags & 0x04 else 0) == len(view)
            return bound if is_whole else None
        stored = size & ~_LZ4_STORED
        if size == stored:
            expanded = stored * RATIO_MAX[_LZ4] + _LZ4_SEQUENCE_BYTES_MAX
            bound += min(block_bytes_max, expanded)
        else:
            bound += stored
        at += 4 + stored + checksum_bytes
    return None


def zstd_bound(data: Buffer) -> int | None:
    """The bound for successive frames; None if one is not whole, or not of the usual kind."""
    view = memoryview(data)
    bound = at = 0
    is_last, descriptor = True, 0
    for _ in range(_BLOCKS_MAX):
        if is_last:
            if at == len(view):
                return bound
            if _number(view, at, 4) != _ZSTD_MAGIC:
                return None
            descriptor = _number(view, at + 4, 1)
            at = _zstd_blocks_at(at, descriptor)
        header = _number(view, at, 3)
        if header < 0:
            return None
        is_last, kind, size = bool(header & 1), header >> 1 & 3, header >> 3
        bound += size if kind in (_ZSTD_RAW, _ZSTD_REPEATED) else _ZSTD_BLOCK_BYTES_MAX
        at += 3 + (1 if kind == _ZSTD_REPEATED else size)
        if is_last and descriptor & 0x04:
            at += 4
    return None


def _zstd_blocks_at(at: int, descriptor: int) -> int:
    """Where the blocks of the frame at `at` begin."""
    is_single_segment = descriptor & 0x20
    content_size_bytes = _CONTENT_SIZE_BYTES[descriptor >> 6 & 3]
    if is_single_segment:
        content_size_bytes = max(1, content_size_bytes)
    return (
        at + 5 + (not is_single_segment) + _DICTIONARY_ID_BYTES[descriptor & 3] + content_size_bytes
    )


def _number(view: memoryview, at: int, size: int) -> int:
    """The little-endian number at `at`; -1 past the end."""
    return int.from_bytes(view[at : at + size], "little") if at + size <= len(view) else -1
