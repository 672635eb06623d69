"""A pool of receive buffers: allocating a megabyte costs more than filling it.

A buffer is handed out as a memoryview of its full length. Lengths are rounded up to a few sizes, so
that a buffer that one connection gives back fits another; the free bytes are bounded. Buffers above
`MAPPED_FROM` are anonymous mappings, whose pages the kernel provides only when they are written to:
a bytearray would be zeroed whole.
"""

from __future__ import annotations

import mmap
from collections import defaultdict, deque
from sys import getrefcount
from typing import Any

MAPPED_FROM = 4 << 20
_SMALLEST = 1 << 9
_STEP = 1 << 16  # larger lengths are multiples of it: powers of two would waste up to half
_FREE_BYTES_MAX = 16 << 20
_LENT_BYTES_MAX = 16 << 20


def _length(size: int) -> int:
    if size > _STEP:
        return (size + _STEP - 1) // _STEP * _STEP
    return max(_SMALLEST, 1 << (size - 1).bit_length())


def _pages(length: int) -> mmap.mmap:
    return mmap.mmap(-1, length, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)


def _references_unseen() -> int:
    """`getrefcount` of an object that only one local name refers to: one less in Python 3.14."""
    buffer = bytearray()
    return getrefcount(buffer)


_REFERENCES_UNSEEN = _references_unseen()  # each view of a buffer adds one


class Buffers:
    """The pool. Connections hold `taken_bytes`; `free_bytes` are ready to be taken."""

    __slots__ = ("_free", "_lent", "_lent_bytes", "free_bytes", "taken_bytes")

    def __init__(self) -> None:
        self._free: defaultdict[int, list[memoryview]] = defaultdict(list)
        self.taken_bytes = 0
        self.free_bytes = 0
        self._lent: deque[Any] = deque()  # the objects behind the views, oldest first
        self._lent_bytes = 0

    def take(self, size: int) -> memoryview:
        """A buffer of `size` bytes or a little more, with arbitrary content."""
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
        """Give `buffer` away to holders of views of it, who will not say when they are done.

        It is reused once no view is left, unless too many bytes were lent since: then it is
        forgotten, and freed with its last view.
        """
        length = len(buffer)
        self.taken_bytes -= length
        self._lent.append(buffer.obj)
        self._lent_bytes += length
        while self._lent_bytes > _LENT_BYTES_MAX:
            self._lent_bytes -= len(self._lent.popleft())

    def _take_back(self) -> None:
        """Move lent buffers that no view refers to any more to the free ones."""
        for _ in range(len(self._lent)):
            buffer = self._lent.popleft()
            if getrefcount(buffer) == _REFERENCES_UNSEEN:
                self._lent_bytes -= len(buffer)
                self.free_bytes += len(buffer)
                self._free[len(buffer)].append(memoryview(buffer))
            else:
                self._lent.append(buffer)

    def give_back(self, buffer: memoryview) -> None:
        """Return `buffer`, of which nothing is read any more."""
        length = len(buffer)
        self.taken_bytes -= length
        if self.free_bytes + length <= _FREE_BYTES_MAX:
            self.free_bytes += length
            self._free[length].append(buffer)
