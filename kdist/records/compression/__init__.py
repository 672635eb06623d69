"""Compression of record sets: the four codecs behind two functions, with the output bounded.

A codec's number is the low three bits of a batch's or message's attributes. Each codec is a module
here, with what its bytes can hold at most. Not here: where compressed bytes begin and end (`codec`,
`message_set`).

Invariant: no length that the data claims is trusted. Whatever its input, `decompress` touches at
most `size_max` bytes of memory and a copy of a small result. See docs/formats/compression.md.
"""

from __future__ import annotations

import enum
from collections.abc import Callable

from kdist.errors import CorruptRecords
from kdist.records.compression import gzip, lz4, snappy, zstd
from kdist.records.compression.limits import too_large
from kdist.wire.primitives import Buffer

CODEC_MASK = 0x07  # of a batch's or message's attributes

RATIO_MAX = (1, gzip.RATIO_MAX, snappy.RATIO_MAX, lz4.RATIO_MAX, zstd.RATIO_MAX)  # by codec
_LOOKED_AT_BYTES = 1 << 14  # of zstd: its blocks can be thousands at most


class Codec(enum.IntEnum):
    """What a record set is compressed with; its name in lower case is a `compression.type`."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4


CODEC_MAX = int(max(Codec))


def codec_of(attributes: int) -> Codec:
    """The codec in a batch's or message's attributes; `CorruptRecords` if it is unknown."""
    number = attributes & CODEC_MASK
    if number > Codec.ZSTD:
        raise CorruptRecords(f"unknown compression codec {number}")
    return Codec(number)


def compress(codec: Codec, data: Buffer) -> bytes:
    """`data` compressed with `codec`, in the framing that Java clients write."""
    return _COMPRESS[codec](data)


def decompress(codec: Codec, data: Buffer, size_max: int) -> Buffer:
    """The inverse of `compress`: at most `size_max` bytes, from all of `data`.

    `CorruptRecords` if `data` is damaged, truncated, followed by other bytes, or holds more than
    `size_max` bytes. (Java ignores bytes after the end of an LZ4 frame or a gzip member; no writer
    puts any there, and here they are refused for all codecs alike.)
    """
    return _DECOMPRESS[codec](data, size_max)


def content_bound(codec: int, packed_bytes: int, packed: Buffer | None = None) -> int:
    """How much `packed_bytes` of a known codec hold at most; more precisely if the bytes are given.

    Of data that is damaged it may be anything, as it cannot be read.
    """
    bound = RATIO_MAX[codec] * packed_bytes
    if codec == Codec.ZSTD and packed is not None and packed_bytes <= _LOOKED_AT_BYTES:
        return max(bound, zstd.bound(packed) or 0)
    return bound


def _copy_bounded(data: Buffer, size_max: int) -> bytes:
    if len(data) > size_max:
        raise too_large(size_max)
    return bytes(data)


_COMPRESS: dict[Codec, Callable[[Buffer], bytes]] = {
    Codec.NONE: bytes,
    Codec.GZIP: gzip.compress,
    Codec.SNAPPY: snappy.compress,
    Codec.LZ4: lz4.compress,
    Codec.ZSTD: zstd.compress,
}
_DECOMPRESS: dict[Codec, Callable[[Buffer, int], Buffer]] = {
    Codec.NONE: _copy_bounded,
    Codec.GZIP: gzip.decompress,
    Codec.SNAPPY: snappy.decompress,
    Codec.LZ4: lz4.decompress,
    Codec.ZSTD: zstd.decompress,
}
