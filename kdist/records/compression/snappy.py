"""Snappy as used in Kafka: raw blocks in the framing of xerial's snappy-java, or one raw block.

Snappy's own framing format is never used. Java, kafka-python and aiokafka write xerial framing,
librdkafka and sarama one raw block; all of these read both.

    offset  size  field
    0       8     magic 82 53 4e 41 50 50 59 00 (0x82 "SNAPPY" 0)
    8       4     int32 version (1)
    12      4     int32 oldest version that can read it (1)
    16      4+n   blocks to the end: int32 n, then n bytes of raw snappy
                  (streams may be concatenated: a header again where a block could begin)

A raw block begins with its uncompressed length as a varint, and ends where the bytes end.
"""

from __future__ import annotations

import cramjam

from kdist.errors import CorruptRecords
from kdist.records.compression.limits import check_part_count
from kdist.wire.primitives import Buffer

MAGIC = b"\x82SNAPPY\x00"
HEADER = MAGIC + (1).to_bytes(4, "big") + (1).to_bytes(4, "big")
BLOCK_SIZE = 32_768  # before compression; snappy-java's default
RATIO_MAX = 22  # what a compressed byte holds at most: a copy of 64 bytes takes three


def compress(data: Buffer) -> bytes:
    """`data` in xerial framing."""
    view = memoryview(data)
    parts: list[bytes] = [HEADER]
    for start in range(0, len(view), BLOCK_SIZE):
        block = bytes(cramjam.snappy.compress_raw(view[start : start + BLOCK_SIZE]))
        parts += (len(block).to_bytes(4, "big"), block)
    return b"".join(parts)


def decompress(data: Buffer, size_max: int) -> bytes:
    """The data decompressed from either form; `CorruptRecords` as in `compression.decompress`."""
    view = memoryview(data)
    if view[: len(MAGIC)] != MAGIC:
        return _read_block(view, size_max)
    blocks = []
    part_count = size = position = 0
    while position < len(view):
        part_count += 1
        check_part_count(part_count, size)
        if view[position : position + len(MAGIC)] == MAGIC:
            position = _skip_header(view, position)
            continue
        start = position + 4
        end = start + int.from_bytes(view[position:start], "big")
        if start > len(view) or end > len(view):
            raise CorruptRecords("the snappy data is cut short")
        block = _read_block(view[start:end], size_max - size)
        blocks.append(block)
        size += len(block)
        position = end
    return b"".join(blocks)


def _skip_header(view: memoryview, position: int) -> int:
    end = position + len(HEADER)
    if end > len(view):
        raise CorruptRecords("the snappy data is cut short")
    readable_from = int.from_bytes(view[end - 4 : end], "big")
    if readable_from > 1:
        raise CorruptRecords(f"the snappy framing needs a reader of version {readable_from}")
    return end


def _read_block(block: memoryview, size_max: int) -> bytes:
    try:
        size = cramjam.snappy.decompress_raw_len(block)
        if size > size_max:
            raise CorruptRecords(f"the snappy data holds more than {size_max} bytes")
        if size > RATIO_MAX * len(block):  # refused before memory is allocated for it
            raise CorruptRecords(f"{len(block)} bytes of snappy data claim to hold {size}")
        room = bytearray(size)
        cramjam.snappy.decompress_raw_into(block, room)
    except cramjam.DecompressionError as cause:
        raise CorruptRecords(f"the snappy data is damaged: {cause}") from cause
    return bytes(room)
