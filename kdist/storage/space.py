"""Refusing appends before the filesystem is full, so that reads, deletes and starts still work."""

from __future__ import annotations

from kdist.errors import DiskFull
from kdist.runtime.files import Files

# Ask the filesystem again after this many bytes: others may write to it, and deletes free space.
_ASK_AFTER_BYTES = 64 << 20


class DiskSpace:
    """How much may be appended before asking the filesystem again. Owner: the log directory."""

    __slots__ = ("_files", "_left", "_path", "_reserved")

    def __init__(self, files: Files, path: str, reserved_bytes: int) -> None:
        """`reserved_bytes` (`log.dir.reserved.bytes`) stay free on the filesystem under `path`."""
        self._files = files
        self._path = path
        self._reserved = reserved_bytes
        self._left = 0

    def take(self, size: int) -> None:
        """Account for `size` bytes about to be appended; `DiskFull` if there is no room."""
        self._left -= size
        if self._left < 0:
            free = self._free_bytes()
            if free < size:
                self._left = 0
                raise DiskFull(self._path)
            self._left = min(free, _ASK_AFTER_BYTES) - size

    def has_room(self, size: int) -> bool:
        """Whether `size` bytes may be preallocated, with enough left for the appends allowed."""
        return self._free_bytes() >= size + _ASK_AFTER_BYTES

    def _free_bytes(self) -> int:
        return self._files.free_bytes(self._path) - self._reserved
