"""A file whose ranges are answers, and which knows how many of them were released."""

from __future__ import annotations

import random

from kdist.runtime.disk import Disk

CONTENT = random.Random(6).randbytes(3_000_000)


class File:
    """A real one, whose pages from `cold_from` on have left the cache."""

    def __init__(self, path: str, cold_from: int) -> None:
        self._file = Disk().create(path)
        self._file.write([CONTENT], 0)
        self.path, self.read, self.fileno = path, self._file.read, self._file.fileno
        self.cold_from = cold_from
        self.released = 0
        self.generation = 0  # its segment's

    def read_cached(self, position: int, size: int) -> bytes | None:
        return None if position >= self.cold_from else self._file.read(position, size)


class Part:
    def __init__(self, file: File, position: int, size: int) -> None:
        self.file, self.position, self.size = file, position, size
        self.is_cold = position >= file.cold_from
        self.segment, self.generation = file, file.generation

    def __len__(self) -> int:
        return self.size

    def release(self) -> None:
        self.file.released += 1
