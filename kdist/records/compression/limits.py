"""What data of any codec may take when it is unpacked: memory within a limit, and time.

Output buffers are reused. No length that the data claims is trusted: each codec knows itself how
much a compressed byte can hold at most (`RATIO_MAX`), and some its blocks (`bound`).
"""

from __future__ import annotations

import contextlib
import mmap
from typing import Protocol

import cramjam

from kdist.errors import CorruptRecords
from kdist.wire.primitives import Buffer

BLOCKS_MAX = 1 << 14  # that a bound is counted from: a GiB in blocks of 64 KiB

# Gzip members and xerial blocks, each of which takes some microseconds: so many, and one more for
# each KiB that they hold, which is the smallest block that writers of either make.
_PARTS_MAX = 1 << 10
_PART_BYTES = 1 << 10
_BUFFER_BYTES = 8 << 20  # size of the output buffers kept for reuse; most batches are smaller


def check_part_count(count: int, size_bytes: int) -> None:
    """`CorruptRecords` if there are too many parts in data of which `size_bytes` are unpacked."""
    if count > _PARTS_MAX + size_bytes // _PART_BYTES:
        raise CorruptRecords(f"the data has {count} parts for {size_bytes} bytes")


def too_large(size_max: int) -> CorruptRecords:
    """The error for data that holds more than it may."""
    return CorruptRecords(f"the compressed data holds more than {size_max} bytes")


def little_endian(view: memoryview, at: int, size: int) -> int:
    """The number of `size` bytes at `at`; -1 past the end."""
    return int.from_bytes(view[at : at + size], "little") if at + size <= len(view) else -1


class _DecompressInto(Protocol):
    def __call__(self, data: Buffer, output: memoryview, /) -> int: ...


# Output buffers to use again; pop and append are atomic between threads.
_free_buffers: list[mmap.mmap] = []


def decompress_bounded(
    decompress_into: _DecompressInto, data: Buffer, bound: int | None, size_max: int
) -> Buffer:
    """Decompress data of at most `bound` bytes; None: the bound is not known.

    Mapped pages take memory only once they are written: so a decompression bomb costs no more than
    `size_max`, and damaged data nothing.
    """
    size = size_max if bound is None else min(bound, size_max)
    buffer = take_buffer(size)
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
        return_buffer(buffer)


def take_buffer(size: int) -> mmap.mmap:
    """A buffer of `size` bytes or more, with arbitrary content.

    Buffers of the usual size are reused: fresh pages, or a bytearray, which is zeroed whole, would
    cost more than the decompression.
    """
    try:
        return _free_buffers.pop() if size <= _BUFFER_BYTES else _pages(size)
    except IndexError:
        return _pages(_BUFFER_BYTES)


def return_buffer(buffer: mmap.mmap) -> None:
    """Keep it for reuse, or free it."""
    if len(buffer) == _BUFFER_BYTES:
        _free_buffers.append(buffer)
    else:
        with contextlib.suppress(BufferError):  # the result is a view of it, and so its owner
            buffer.close()


def _pages(size: int) -> mmap.mmap:
    return mmap.mmap(-1, max(size, 1), mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
