"""What Linux has and the `os` module lacks: fallocate, sync_file_range, syncfs; the boot id.

The calls go through ctypes, which releases the GIL during the call. Each returns False where the
filesystem does not support the call, and raises `OSError` for all other errors.
"""

from __future__ import annotations

import ctypes
import errno
import os

_FALLOC_FL_KEEP_SIZE = 1
_SYNC_FILE_RANGE_WRITE = 2
_UNSUPPORTED = frozenset({errno.EOPNOTSUPP, errno.ENOSYS})

_libc = ctypes.CDLL(None, use_errno=True)
_fallocate = _libc.fallocate
_fallocate.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64)
_sync_file_range = _libc.sync_file_range
_sync_file_range.argtypes = (ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint)
_syncfs = _libc.syncfs
_syncfs.argtypes = (ctypes.c_int,)


def reserve(descriptor: int, position: int, size: int) -> bool:
    """Allocate disk blocks for these bytes without changing the file's size."""
    return _call(_fallocate, descriptor, _FALLOC_FL_KEEP_SIZE, position, size)


def start_writeback(descriptor: int, position: int, size: int) -> bool:
    """Start writing these dirty bytes to disk; waits only for room in the device's queue."""
    return _call(_sync_file_range, descriptor, position, size, _SYNC_FILE_RANGE_WRITE)


def sync_filesystem(descriptor: int) -> bool:
    """Return once all dirty data of the descriptor's filesystem is on disk."""
    return _call(_syncfs, descriptor)


def _call(function: ctypes._FuncPointer, *arguments: int) -> bool:
    while function(*arguments) == -1:
        code = ctypes.get_errno()
        if code in _UNSUPPORTED:
            return False
        if code != errno.EINTR:  # retried after a signal, as the `os` module does (PEP 475)
            raise OSError(code, os.strerror(code))
    return True


def boot_id() -> str:
    """A text that is another one after each boot of the machine, or of the container."""
    with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
        return file.read().strip()
