"""Compression of record sets: the four codecs behind two functions, with the output bounded.

A codec's number is the low three bits of a batch's or message's attributes. Not here: where
compressed bytes begin and end (`codec`, `message_set`), and magic 0's wrong LZ4 checksum
(`lz4_legacy`).

    GZIP    RFC 1952, one or more members
    SNAPPY  xerial framing (`xerial`), or one raw block
    LZ4     LZ4 frame 1.x; written as Java does: independent blocks, no checksums or sizes
    ZSTD    RFC 8878, one or more frames, with or without the content size

Invariant: no length that the data claims is trusted. Whatever its input, `decompress` touches at
most `size_max` bytes of memory and a copy of a small result. See docs/formats/compression.md.
"""

from __future__ import annotations

import contextlib
import enum
import mmap
import struct
import zlib
from collections.abc import Callable
from typing import Protocol

import cramjam

from kdist.errors import CorruptRecords
from kdist.records import xerial
from kdist.records.frames import check_part_count, lz4_bound, zstd_bound
from kdist.wire.varint import Buffer

CODEC_MASK = 0x07  # of a batch's or message's attributes

_GZIP_WINDOW_BITS = 31  # 15 bits of window, plus 16 for the gzip header and trailer
_GZIP_PIECE_BYTES = 4 << 10  # what a member is given at first
_GZIP_PIECE_BYTES_MAX = 256 << 10
_GZIP_PART_BYTES = 1 << 20  # what it gives at a time
_ZSTD_LEVEL = 3  # Java's default

# Block sizes. In blocks of up to 64 KiB the library looks for matches of four bytes, in larger ones
# of five: that takes half the time, and the output is larger by a twentieth. Readers allocate whole
# blocks, so a small batch has small ones.
_LZ4_SMALL, _LZ4_LARGE = 1 << 16, 1 << 18
# Headers of the usual frames (librdkafka's, Java's and ours) by block size: magic, FLG (independent
# blocks), BD (the block size), checksum.
_LZ4_HEADERS = {
    size: bytes.fromhex(f"04224d18 60 {code}")
    for size, code in (
        (_LZ4_SMALL, "40 82"),
        (_LZ4_LARGE, "50 fb"),
        (1 << 20, "60 51"),
        (1 << 22, "70 73"),
    )
}
_LZ4_USUAL = {header: size for size, header in _LZ4_HEADERS.items()}
_LZ4_HEADER_SIZE = 7
_LZ4_SIZE = struct.Struct("<I")  # before each block
_LZ4_END = 0  # the size that ends the frame
_LZ4_STORED = 0x8000_0000  # bit of a block's size: it is stored uncompressed, as it did not shrink

_BUFFER_BYTES = 8 << 20  # size of the output buffers kept for reuse; most batches are smaller


class Codec(enum.IntEnum):
    """What a record set is compressed with; its name in lower case is a `compression.type`."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4


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


# --- none ---------------------------------------------------------------------------------------


def _copy_bounded(data: Buffer, size_max: int) -> bytes:
    if len(data) > size_max:
        raise _too_large(size_max)
    return bytes(data)


# --- gzip ---------------------------------------------------------------------------------------


def _compress_gzip(data: Buffer) -> bytes:
    stream = zlib.compressobj(wbits=_GZIP_WINDOW_BITS)
    return stream.compress(data) + stream.flush()


def _decompress_gzip(data: Buffer, size_max: int) -> Buffer:
    view = memoryview(data)
    # It grows in place, without a second copy, as pages are moved; and no piece is so large that
    # other threads wait while it is copied.
    whole = bytearray()
    member_count = at = 0
    while at < len(view) or not member_count:
        member_count += 1
        check_part_count(member_count, len(whole))
        stream = zlib.decompressobj(wbits=_GZIP_WINDOW_BITS)
        # What is behind the end of a member is copied. So pieces grow with what it has taken: else
        # all that is left would be copied for each member.
        piece_bytes = _GZIP_PIECE_BYTES
        while not stream.eof:
            piece: Buffer = stream.unconsumed_tail
            if not piece:
                piece = view[at : at + piece_bytes]
                at += len(piece)
                piece_bytes = min(2 * piece_bytes, _GZIP_PIECE_BYTES_MAX)
            try:
                # One byte more than allowed: 0 would mean "no limit", and the end of a stream that
                # fills the limit exactly is detected only with some room left.
                room = min(size_max - len(whole) + 1, _GZIP_PART_BYTES)
                part = stream.decompress(piece, room)
            except zlib.error as cause:
                raise CorruptRecords(f"the gzip data is damaged: {cause}") from cause
            if not piece and not part and not stream.eof:
                raise CorruptRecords("the gzip data is cut short")
            whole += part
            if len(whole) > size_max:
                raise _too_large(size_max)
        at -= len(stream.unused_data)
    return whole


# --- lz4 ----------------------------------------------------------------------------------------


def _compress_lz4(data: Buffer) -> bytes:
    # Framed here and not by the library, whose frames have linked blocks, which Java refuses.
    view = memoryview(data)
    size = _LZ4_SMALL if len(view) <= _LZ4_SMALL else _LZ4_LARGE
    header = _LZ4_HEADERS[size]
    compress_into = cramjam.lz4.compress_block_into
    buffer = _take_buffer(len(view) + len(view) // 128 + 64)  # data that does not shrink may grow
    end = len(header)
    try:
        with memoryview(buffer) as packed:
            packed[:end] = header
            for start in range(0, len(view), size):
                block = view[start : start + size]
                first = end + _LZ4_SIZE.size
                block_bytes = size_field = compress_into(block, packed[first:], store_size=False)
                if block_bytes >= len(block):
                    block_bytes, size_field = len(block), len(block) | _LZ4_STORED
                    packed[first : first + block_bytes] = block
                _LZ4_SIZE.pack_into(packed, end, size_field)
                end = first + block_bytes
            _LZ4_SIZE.pack_into(packed, end, _LZ4_END)
        return buffer[: end + _LZ4_SIZE.size]
    finally:
        _return_buffer(buffer)


def _decompress_lz4(data: Buffer, size_max: int) -> Buffer:
    # cramjam before 2.14 ignores what follows the first frame: hence pyproject.toml's minimum.
    bound = lz4_bound(data)
    if bound is not None and bytes(data[:_LZ4_HEADER_SIZE]) in _LZ4_USUAL:
        return _decompress_bounded(_lz4_blocks_into, data, bound, size_max)
    return _decompress_bounded(cramjam.lz4.decompress_into, data, bound, size_max)


def _lz4_blocks_into(data: Buffer, output: memoryview) -> int:
    """As the library's, for a whole frame of a usual kind, without its extra copy of each block."""
    view = memoryview(data)
    block_bytes_max = _LZ4_USUAL[bytes(view[:_LZ4_HEADER_SIZE])]
    at, end = _LZ4_HEADER_SIZE, 0
    while size_field := _LZ4_SIZE.unpack_from(view, at)[0]:
        block_bytes = size_field & ~_LZ4_STORED
        at += _LZ4_SIZE.size
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


# --- zstd ---------------------------------------------------------------------------------------


def _compress_zstd(data: Buffer) -> bytes:
    return bytes(cramjam.zstd.compress(data, _ZSTD_LEVEL))


def _decompress_zstd(data: Buffer, size_max: int) -> Buffer:
    return _decompress_bounded(cramjam.zstd.decompress_into, data, zstd_bound(data), size_max)


# --- shared -------------------------------------------------------------------------------------


class _DecompressInto(Protocol):
    def __call__(self, data: Buffer, output: memoryview, /) -> int: ...


# Output buffers to use again; pop and append are atomic between threads.
_free_buffers: list[mmap.mmap] = []


def _decompress_bounded(
    decompress_into: _DecompressInto, data: Buffer, bound: int | None, size_max: int
) -> Buffer:
    """Decompress data of at most `bound` bytes; None: the bound is not known.

    Mapped pages take memory only once they are written: so a decompression bomb costs no more than
    `size_max`, and damaged data nothing.
    """
    size = size_max if bound is None else min(bound, size_max)
    buffer = _take_buffer(size)
    try:
        with memoryview(buffer) as whole, whole[:size] as output:
            end = decompress_into(data, output)
            if end <= _BUFFER_BYTES:
                return bytes(output[:end])
        # To copy this would keep other threads from the interpreter for as long as decompression.
        return memoryview(buffer)[:end].toreadonly()
    except cramjam.DecompressionError as cause:
        reason = f"the data is damaged or holds more than {size_max} bytes: {cause}"
        raise CorruptRecords(reason) from cause
    finally:
        _return_buffer(buffer)


def _take_buffer(size: int) -> mmap.mmap:
    """A buffer of `size` bytes or more, with arbitrary content.

    Buffers of the usual size are reused: fresh pages, or a bytearray, which is zeroed whole, would
    cost more than the decompression.
    """
    try:
        return _free_buffers.pop() if size <= _BUFFER_BYTES else _pages(size)
    except IndexError:
        return _pages(_BUFFER_BYTES)


def _return_buffer(buffer: mmap.mmap) -> None:
    if len(buffer) == _BUFFER_BYTES:
        _free_buffers.append(buffer)
    else:
        with contextlib.suppress(BufferError):  # the result is a view of it, and so its owner
            buffer.close()


def _pages(size: int) -> mmap.mmap:
    return mmap.mmap(-1, max(size, 1), mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)


def _too_large(size_max: int) -> CorruptRecords:
    return CorruptRecords(f"the compressed data holds more than {size_max} bytes")


_COMPRESS: dict[Codec, Callable[[Buffer], bytes]] = {
    Codec.NONE: bytes,
    Codec.GZIP: _compress_gzip,
    Codec.SNAPPY: xerial.write,
    Codec.LZ4: _compress_lz4,
    Codec.ZSTD: _compress_zstd,
}
_DECOMPRESS: dict[Codec, Callable[[Buffer, int], Buffer]] = {
    Codec.NONE: _copy_bounded,
    Codec.GZIP: _decompress_gzip,
    Codec.SNAPPY: xerial.read,
    Codec.LZ4: _decompress_lz4,
    Codec.ZSTD: _decompress_zstd,
}
