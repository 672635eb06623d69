"""Receive buffers, used again and again: making one of a megabyte costs more than filling it.

A buffer is handed out as a memoryview of its full length. Few lengths are made, so that what one
connection gives back fits the next; what is free is bounded.
"""

from __future__ import annotations

from collections import defaultdict

_SMALLEST = 1 << 9
_STEP = 1 << 16  # above it lengths are multiples of it, since doubling would waste a megabyte
_FREE_BYTES_MAX = 16 << 20


def _length(size: int) -> int:
    if size > _STEP:
        return (size + _STEP - 1) // _STEP * _STEP
    return max(_SMALLEST, 1 << (size - 1).bit_length())


class Buffers:
    """The pool. `taken_bytes` are in connections' hands, `free_bytes` wait for the next."""

    __slots__ = ("_free", "free_bytes", "taken_bytes")

    def __init__(self) -> None:
        self._free: defaultdict[int, list[memoryview]] = defaultdict(list)
        self.taken_bytes = 0
        self.free_bytes = 0

    def take(self, size: int) -> memoryview:
        """A buffer of `size` bytes or somewhat more, with anything in it."""
        length = _length(size)
        self.taken_bytes += length
        free = self._free[length]
        if not free:
            return memoryview(bytearray(length))
        self.free_bytes -= length
        return free.pop()

    def give_back(self, buffer: memoryview) -> None:
        """Nothing reads `buffer`, or a part of it, any more."""
        length = len(buffer)
        self.taken_bytes -= length
        if self.free_bytes + length <= _FREE_BYTES_MAX:
            self.free_bytes += length
            self._free[length].append(buffer)
