"""Receive buffers, reused: allocating a megabyte costs more than filling it.

A buffer is handed out as a memoryview of its full length. Few lengths are made, so that what one
connection gives back fits the next; what is free is bounded. Those above `MAPPED_FROM` are the
kernel's pages, and none of them is there before something comes into it: a bytearray would be
cleared whole.
"""

from __future__ import annotations

import mmap
from collections import defaultdict, deque
from sys import getrefcount
from typing import Any

MAPPED_FROM = 4 << 20
_SMALLEST = 1 << 9
_STEP = 1 << 16  # above it lengths are multiples of it, since doubling would waste a megabyte
_FREE_BYTES_MAX = 16 << 20
_LENT_BYTES_MAX = 16 << 20


def _length(size: int) -> int:
    if size > _STEP:
        return (size + _STEP - 1) // _STEP * _STEP
    return max(_SMALLEST, 1 << (size - 1).bit_length())


def _pages(length: int) -> mmap.mmap:
    return mmap.mmap(-1, length, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)


def _references_unseen() -> int:
    """What `getrefcount` says of what only a local name is of: Python 3.14 counts one less."""
    buffer = bytearray()
    return getrefcount(buffer)


_REFERENCES_UNSEEN = _references_unseen()  # every view of a buffer is one more


class Buffers:
    """The pool. `taken_bytes` are in connections' hands, `free_bytes` wait for the next."""

    __slots__ = ("_free", "_lent", "_lent_bytes", "free_bytes", "taken_bytes")

    def __init__(self) -> None:
        self._free: defaultdict[int, list[memoryview]] = defaultdict(list)
        self.taken_bytes = 0
        self.free_bytes = 0
        self._lent: deque[Any] = deque()  # what buffers are views of, the oldest first
        self._lent_bytes = 0

    def take(self, size: int) -> memoryview:
        """A buffer of `size` bytes or somewhat more, with anything in it."""
        length = _length(size)
        free = self._free[length]
        if not free and self._lent:
            self._take_back()
        if free:
            self.free_bytes -= length
            buffer = free.pop()
        else:
            buffer = memoryview(bytearray(length) if length <= MAPPED_FROM else _pages(length))
        self.taken_bytes += length
        return buffer

    def lend(self, buffer: memoryview) -> None:
        """Somebody keeps parts of `buffer`, and will not say when they are done.

        Once nobody has a view of it any more it is taken again, unless too many were lent since.
        """
        length = len(buffer)
        self.taken_bytes -= length
        self._lent.append(buffer.obj)
        self._lent_bytes += length
        while self._lent_bytes > _LENT_BYTES_MAX:
            self._lent_bytes -= len(self._lent.popleft())

    def _take_back(self) -> None:
        """Have those that were lent and are seen by nobody now among the free."""
        for _ in range(len(self._lent)):
            buffer = self._lent.popleft()
            if getrefcount(buffer) == _REFERENCES_UNSEEN:
                self._lent_bytes -= len(buffer)
                self.free_bytes += len(buffer)
                self._free[len(buffer)].append(memoryview(buffer))
            else:
                self._lent.append(buffer)

    def give_back(self, buffer: memoryview) -> None:
        """Nothing reads `buffer`, or a part of it, any more."""
        length = len(buffer)
        self.taken_bytes -= length
        if self.free_bytes + length <= _FREE_BYTES_MAX:
            self.free_bytes += length
            self._free[length].append(buffer)
