"""Which `OSError` means that the disk is full or has failed: the one place that decides it.

A lack of descriptors is treated like a full disk: the call had no effect, and may succeed later.

Everything not listed here is a mistake (a missing file, no permission) and stays an `OSError`. A
failed writeback reports the block layer's own error at the next `fdatasync`, so EIO is not the only
number for a failed disk.
"""

from __future__ import annotations

import errno
from types import TracebackType

from kdist.errors import DiskFailed, DiskFull, OutOfDescriptors

FULL = frozenset({errno.ENOSPC, errno.EDQUOT})

NO_DESCRIPTORS = frozenset({errno.EMFILE, errno.ENFILE})

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
