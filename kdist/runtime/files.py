"""Files behind a small interface: what storage may ask of a disk, and how a disk may fail.

`disk.py` is the real one; `simulated_disk.py` is a disk in memory that loses what was not synced,
fills up and fails on request. Both pass `tests/unit/runtime/test_files_contract.py`. Paths are
strings; sizes and positions are bytes.

A full disk (ENOSPC, EDQUOT) raises `DiskFull`; a lack of descriptors its subclass
`OutOfDescriptors`; a failed disk (EIO, EROFS, a filesystem that shut down) `DiskFailed`, by the
table below. Every other error (a missing file) is a mistake, and stays the `OSError` it was.

What a caller may rely on after a power loss, and no more:
- bytes that a `sync` covered are there, and so is a file size that covers them;
- bytes written since may be there, be missing, or be zeros, page by page, in any order;
- a file may have any length that it had, or passed through, since its last `sync`;
- a name is there (created, renamed) or gone (renamed, removed) for sure only after a
  `sync_directory` of its directory; a rename happens whole or not at all.

After a failed `sync` nothing in the file can be trusted: Linux marks the pages that it could not
write as clean, so that a second `sync` may succeed though they are lost.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from types import TracebackType
from typing import Protocol

from kdist.errors import DiskFailed, DiskFull, KdistError, OutOfDescriptors

Buffer = bytes | bytearray | memoryview


class File(Protocol):
    """One open file. Whoever opened it owns it, and closes it."""

    @property
    def path(self) -> str:
        """Where the file was when it was opened."""
        ...

    def size(self) -> int:
        """Its length in bytes."""
        ...

    def read(self, position: int, size: int) -> bytes:
        """Up to `size` bytes from `position`; fewer only at the end of the file."""
        ...

    def read_cached(self, position: int, size: int) -> bytes | None:
        """As `read`, but None if it would have to wait for the disk (`RWF_NOWAIT`)."""
        ...

    def write(self, buffers: Sequence[Buffer], position: int) -> int:
        """Write all of `buffers` one after another from `position`; the number of bytes written.

        Memoryviews must be of bytes. After an exception any part of the data may be in the file:
        the caller truncates.
        """
        ...

    def truncate(self, size: int) -> None:
        """Cut (or extend with zeros) to `size` bytes; frees what was preallocated beyond."""
        ...

    def sync(self) -> None:
        """Return once all written bytes and the size are on the disk (`fdatasync`). Blocks."""
        ...

    def preallocate(self, position: int, size: int) -> None:
        """Reserve disk space without changing the file's size.

        Does nothing if the filesystem cannot, or lacks the space: the write will then fail.
        """
        ...

    def start_writeback(self, position: int, size: int) -> None:
        """Ask the kernel to begin writing these bytes out (`sync_file_range`). May block."""
        ...

    def drop_cached(self, position: int, size: int) -> None:
        """Tell the kernel these bytes will not be read again soon (`posix_fadvise` DONTNEED)."""
        ...

    def fileno(self) -> int | None:
        """A descriptor for `sendfile`, or None where there is none and bytes must be copied."""
        ...

    def close(self) -> None:
        """Close the descriptor. A second close does nothing."""
        ...


class Lock(Protocol):
    """A held lock on a file; released by `release`, and by the kernel when its process dies."""

    def release(self) -> None: ...


class Files(Protocol):
    """A filesystem."""

    lacks_descriptors: bool
    """Set when descriptors ran out at an open; reset by the code that then closes some files."""

    def open(self, path: str) -> File:
        """Open for reading and writing; `FileNotFoundError` if it is not there."""
        ...

    def open_readonly(self, path: str) -> File:
        """Open for reading only, as a tool that inspects a broker's directory does."""
        ...

    def create(self, path: str, *, is_secret: bool = False) -> File:
        """Create and open; `FileExistsError` if it is there. Its name needs `sync_directory`.

        A secret one is its owner's alone to read.
        """
        ...

    def list(self, path: str) -> list[str]:
        """The names in a directory, sorted."""
        ...

    def is_directory(self, path: str) -> bool: ...

    def is_link(self, path: str) -> bool:
        """Whether it is a symbolic link, which all other calls follow, perhaps to nowhere."""
        ...

    def exists(self, path: str) -> bool: ...

    def size(self, path: str) -> int:
        """A file's length without opening it."""
        ...

    def modified_ms(self, path: str) -> int:
        """When a file's content last changed, milliseconds since the epoch."""
        ...

    def set_modified_ms(self, path: str, modified_ms: int) -> None:
        """Have `modified_ms` be another; as durable as what is written of the file."""
        ...

    def read(self, path: str) -> bytes:
        """A small file's whole content."""
        ...

    def replace(
        self, path: str, content: bytes, *, durable: bool = True, is_secret: bool = False
    ) -> None:
        """Replace a small file atomically: readers see its old content or the new.

        Writes `<path>.tmp`, syncs it, renames it over `path`, syncs the directory: so after a power
        loss, too, it has the old content or the new. Not `durable` leaves out the two syncs, for
        many files followed by one `sync_filesystem`; a power loss before that may leave a file
        truncated or empty. After an exception the `.tmp` is removed, if the disk allows, and the
        file has the old content, or the new one unsynced.
        """
        ...

    def make_directory(self, path: str) -> None:
        """Make a directory; `FileExistsError` if it is there. Its parent needs `sync_directory`."""
        ...

    def rename(self, old: str, new: str) -> None:
        """Rename a file or directory, replacing a file that is there."""
        ...

    def link(self, old: str, new: str) -> None:
        """Give a file another name; `OSError` where the filesystem has no hard links."""
        ...

    def exchange(self, one: str, other: str) -> bool:
        """Exchange two files or directories atomically; False where that is not supported."""
        ...

    def remove(self, path: str) -> None:
        """Unlink a file. May block for long on a large one: never on the loop."""
        ...

    def remove_tree(self, path: str) -> None:
        """Remove a directory with all that is in it. Blocks."""
        ...

    def sync_directory(self, path: str) -> None:
        """Make the names in a directory durable: files created, renamed and removed there."""
        ...

    def sync_filesystem(self, path: str) -> None:
        """Return once all that was written to the filesystem of `path` is on disk (`syncfs`)."""
        ...

    def free_bytes(self, path: str) -> int:
        """How much an unprivileged process may still write to the filesystem of `path`."""
        ...

    def total_bytes(self, path: str) -> int:
        """The size of the filesystem of `path`."""
        ...

    def lock(self, path: str) -> Lock:
        """Create the file if need be and lock it; `BlockingIOError` if it is locked already."""
        ...


# Replacing a small file, atomically


def replace(files: Files, path: str, content: bytes, *, durable: bool, is_secret: bool) -> None:
    """Implements `Files.replace` with the other methods of `files`.

    The real and the simulated disk both take it from here, so that tests that lose power between
    two of its steps test the steps that production takes:

        create <path>.tmp, write, sync     the new content is on the disk under a name nobody reads
        rename over <path>                 readers see the old or the new content
        sync the directory                 and so they do after a power loss

    Without `durable` there is no sync: the caller follows with one `sync_filesystem`.
    """
    temporary = f"{path}.tmp"
    file = _create_anew(files, temporary, is_secret)
    try:
        try:
            file.write((content,), 0)
            if durable:
                file.sync()
        finally:
            file.close()
        files.rename(temporary, path)
    except Exception:
        _remove_leftover(files, temporary)
        raise
    if durable:
        files.sync_directory(os.path.dirname(path))


def _create_anew(files: Files, path: str, is_secret: bool) -> File:
    try:
        return files.create(path, is_secret=is_secret)
    except FileExistsError:  # a crash left it behind
        files.remove(path)
        return files.create(path, is_secret=is_secret)


def _remove_leftover(files: Files, path: str) -> None:
    try:
        files.remove(path)
    except (OSError, KdistError):
        pass  # the error being raised matters more, and the next `replace` removes the leftover


# Which `OSError` means that the disk is full or has failed: the one place that decides it

FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
# The call had no effect, and may succeed later.
NO_DESCRIPTORS = frozenset({errno.EMFILE, errno.ENFILE})
# A failed writeback reports the block layer's own error at the next `fdatasync`, so EIO is not the
# only number for a failed disk.
FAILED = frozenset(
    {
        errno.EIO,
        errno.EROFS,  # ext4 remounts itself read-only after an error
        errno.ENXIO,  # the device went away
        errno.ENODEV,
        errno.ESHUTDOWN,  # XFS shut the filesystem down
        errno.EUCLEAN,  # EFSCORRUPTED: metadata that makes no sense
        errno.EBADMSG,  # EFSBADCRC: metadata whose checksum is wrong
        # What drivers report, as the kernel's block/blk-core.c turns it into error numbers:
        errno.ENODATA,  # a medium error: an unreadable sector
        errno.EREMOTEIO,  # the target failed
        errno.ENOLINK,  # the transport failed
        errno.ETIMEDOUT,
        errno.EILSEQ,  # a protection check failed
        errno.EBADE,  # a reservation conflict
    }
)


def raise_if_disk(error: OSError, path: str) -> None:
    """Raise `DiskFull` or `DiskFailed` if `error` means that; return if it means neither."""
    if error.errno in FULL:
        raise DiskFull(path) from error
    if error.errno in NO_DESCRIPTORS:
        raise OutOfDescriptors(path) from error
    if error.errno in FAILED:
        raise DiskFailed(path, error) from error


def raise_if_lost(error: OSError, path: str) -> None:
    """As `raise_if_disk`, for a sync: ENOSPC means lost writes there, so the disk has failed."""
    if error.errno in FULL:
        raise DiskFailed(path, error) from error
    raise_if_disk(error, path)


class translated:  # noqa: N801 - reads as a verb: `with translated(path):`
    """Pass a block's `OSError` to `raise_if_disk`. Costs 0.3 µs: not for hot paths."""

    __slots__ = ("_path",)

    def __init__(self, path: str) -> None:
        self._path = path

    def __enter__(self) -> None:
        return None

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        error: BaseException | None,
        _where: TracebackType | None,
    ) -> None:
        if isinstance(error, OSError):
            raise_if_disk(error, self._path)
