"""A simulated file's content, and what of it survives a power loss.

A file has two contents: the one that reads see (the page cache) and the one on the disk. They
differ in the pages written or truncated since the last sync; for those `Content` keeps what the
disk may hold instead. Invariant: a page in neither `_dirty` nor `_lost` is on the disk as reads see
it (bytes beyond the end of either count as zeros).
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from kdist.runtime.files import Buffer

PAGE_BYTES = 4096
SECTOR_BYTES = 512  # a disk writes each sector whole or not at all

Versions = list[bytes]  # of a page: the one at the last sync, then those truncated since


class Content:
    """One file's bytes. Owner: the simulated disk. All open handles share it."""

    def __init__(self, data: bytearray, modified_ms: int) -> None:
        self.data = data
        self.modified_ms = modified_ms
        self.reserved_end = 0
        self.is_locked = False
        self.cold: set[int] = set()  # pages that are not in the page cache
        self._dirty: dict[int, Versions] = {}
        self._lost: dict[int, Versions] = {}  # writeback failed, but the page cache has them clean
        self._size_lowest = self._size_highest = len(data)  # since the last sync

    def allocated_bytes(self) -> int:
        """How much of the disk's capacity the file takes."""
        return max(len(self.data), self.reserved_end)

    def write(self, buffers: Sequence[Buffer], position: int, size: int) -> None:
        """Write the first `size` bytes of `buffers` at `position`."""
        if not size:
            return
        end = position + size
        for page in range(position // PAGE_BYTES, (end - 1) // PAGE_BYTES + 1):
            if page not in self._dirty:
                self._soil(page)
        if position > len(self.data):
            self.data.extend(bytes(position - len(self.data)))
        self.data[position:end] = memoryview(b"".join(buffers))[:size]
        self._size_highest = max(self._size_highest, len(self.data))

    def truncate(self, size: int) -> None:
        """Truncate or extend. Truncated bytes may come back by a power loss until the next sync."""
        self.reserved_end = 0
        if size > len(self.data):  # with zeros, as on the disk
            self.data.extend(bytes(size - len(self.data)))
        for page in range(size // PAGE_BYTES, -(-len(self.data) // PAGE_BYTES)):
            if page in self._dirty:
                self._dirty[page].append(self._page(page))
            else:
                self._soil(page)
        del self.data[size:]
        self._size_lowest = min(self._size_lowest, size)
        self._size_highest = max(self._size_highest, size)

    def sync(self) -> None:
        """Write dirty pages and the size to the disk, but not the pages that a failed sync lost."""
        self._dirty.clear()
        self._size_lowest = self._size_highest = len(self.data)

    def fail_sync(self) -> None:
        """Lose the dirty pages as Linux does: reads still see them, no later sync writes them."""
        self._lost.update(self._dirty)
        self._dirty.clear()

    def survivor(self, rng: random.Random) -> Content:
        """A possible content after a power loss now. This one stays as it is."""
        share = rng.choice((0.0, 1.0, rng.random()))  # of dirty pages that reached the disk
        size = len(self.data) if share == 1.0 else self._surviving_size(rng)
        data = self.data[:size] + bytes(max(0, size - len(self.data)))
        for page, versions in self._dirty.items():
            _put_page(data, page, self._surviving_page(page, versions, share, rng))
        for page, versions in self._lost.items():
            _put_page(data, page, versions[0])
        found = Content(data, self.modified_ms)
        found.cold.update(range(-(-size // PAGE_BYTES)))
        return found

    def _surviving_size(self, rng: random.Random) -> int:
        lowest, highest = self._size_lowest, self._size_highest
        return rng.choice((lowest, highest, rng.randint(lowest, highest)))

    def _surviving_page(
        self, page: int, versions: Versions, share: float, rng: random.Random
    ) -> bytes:
        """One of the page's versions, or the sectors of two for a torn write."""
        now = self._page(page)
        first = now if rng.random() < share else rng.choice(versions)
        if share == 1.0 or rng.random() < 0.75:
            return first
        second = rng.choice((now, *versions))
        cut = SECTOR_BYTES * rng.randrange(1, PAGE_BYTES // SECTOR_BYTES)
        return first[:cut].ljust(cut, b"\0") + second[cut:]

    def _soil(self, page: int) -> None:
        """Note what the disk holds of a page that is about to change."""
        self._dirty[page] = self._lost.pop(page, []) or [self._page(page)]

    def _page(self, page: int) -> bytes:
        return bytes(self.data[page * PAGE_BYTES : (page + 1) * PAGE_BYTES])


def _put_page(data: bytearray, page: int, content: bytes) -> None:
    """Overwrite a page of `data` without changing its length; short content is zero-padded."""
    start = page * PAGE_BYTES
    end = min(start + PAGE_BYTES, len(data))
    if start < end:
        data[start:end] = content[: end - start].ljust(end - start, b"\0")
