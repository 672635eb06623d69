"""A read-only view of a filesystem: for tools that inspect.

A tool that reads a running broker's directory must not change anything in it, whatever code it
calls. So every call that would change something fails an assertion, and files are opened for
reading only. This is no sandbox: it finds mistakes in our own code.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NoReturn

from kdist.runtime.files import Buffer, File, Files


class ReadOnlyFile:
    """An open file that can only be read and closed."""

    __slots__ = ("_file",)

    def __init__(self, file: File) -> None:
        self._file = file

    @property
    def path(self) -> str:
        return self._file.path

    def size(self) -> int:
        return self._file.size()

    def read(self, position: int, size: int) -> bytes:
        return self._file.read(position, size)

    def read_cached(self, position: int, size: int) -> bytes | None:
        return self._file.read_cached(position, size)

    def write(self, buffers: Sequence[Buffer], position: int) -> NoReturn:  # noqa: ARG002
        _refuse("write", self.path)

    def truncate(self, size: int) -> NoReturn:  # noqa: ARG002
        _refuse("truncate", self.path)

    def sync(self) -> NoReturn:
        _refuse("sync", self.path)

    def preallocate(self, position: int, size: int) -> NoReturn:  # noqa: ARG002
        _refuse("preallocate", self.path)

    def start_writeback(self, position: int, size: int) -> NoReturn:  # noqa: ARG002
        _refuse("start_writeback", self.path)

    def drop_cached(self, position: int, size: int) -> None:
        self._file.drop_cached(position, size)

    def fileno(self) -> int | None:
        return self._file.fileno()

    def close(self) -> None:
        self._file.close()


class ReadOnlyFiles:
    """`Files` whose changing calls fail an assertion. Even `open` opens for reading only."""

    lacks_descriptors = False

    def __init__(self, files: Files) -> None:
        self._files = files

    def open(self, path: str) -> ReadOnlyFile:
        return self.open_readonly(path)

    def open_readonly(self, path: str) -> ReadOnlyFile:
        return ReadOnlyFile(self._files.open_readonly(path))

    def create(self, path: str, *, is_secret: bool = False) -> NoReturn:  # noqa: ARG002
        _refuse("create", path)

    def list(self, path: str) -> list[str]:
        return self._files.list(path)

    def is_directory(self, path: str) -> bool:
        return self._files.is_directory(path)

    def is_link(self, path: str) -> bool:
        return self._files.is_link(path)

    def exists(self, path: str) -> bool:
        return self._files.exists(path)

    def size(self, path: str) -> int:
        return self._files.size(path)

    def modified_ms(self, path: str) -> int:
        return self._files.modified_ms(path)

    def set_modified_ms(self, path: str, modified_ms: int) -> NoReturn:  # noqa: ARG002
        _refuse("set_modified_ms", path)

    def read(self, path: str) -> bytes:
        return self._files.read(path)

    def replace(
        self,
        path: str,
        content: bytes,  # noqa: ARG002
        *,
        durable: bool = True,  # noqa: ARG002
        is_secret: bool = False,  # noqa: ARG002
    ) -> NoReturn:
        _refuse("replace", path)

    def make_directory(self, path: str) -> NoReturn:
        _refuse("make_directory", path)

    def rename(self, old: str, new: str) -> NoReturn:  # noqa: ARG002
        _refuse("rename", old)

    def link(self, old: str, new: str) -> NoReturn:  # noqa: ARG002
        _refuse("link", old)

    def exchange(self, one: str, other: str) -> NoReturn:  # noqa: ARG002
        _refuse("exchange", one)

    def remove(self, path: str) -> NoReturn:
        _refuse("remove", path)

    def remove_tree(self, path: str) -> NoReturn:
        _refuse("remove_tree", path)

    def sync_directory(self, path: str) -> NoReturn:
        _refuse("sync_directory", path)

    def sync_filesystem(self, path: str) -> NoReturn:
        _refuse("sync_filesystem", path)

    def free_bytes(self, path: str) -> int:
        return self._files.free_bytes(path)

    def total_bytes(self, path: str) -> int:
        return self._files.total_bytes(path)

    def lock(self, path: str) -> NoReturn:
        _refuse("lock", path)


def _refuse(call: str, path: str) -> NoReturn:
    raise AssertionError(f"{call} of {path}, which is open for inspection only")
