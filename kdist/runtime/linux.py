"""What Linux has and `os` lacks: fallocate, sync_file_range, syncfs, renameat2, ioprio_set, prctl.

The calls go through ctypes, which releases the GIL during the call. Each returns False where the
filesystem does not support the call, and raises `OSError` for all other errors.
"""

from __future__ import annotations

import ctypes
import errno
import os
import signal
from contextlib import suppress

_FALLOC_FL_KEEP_SIZE = 1
_SYNC_FILE_RANGE_WRITE = 2
_PR_SET_PDEATHSIG = 1
_IOPRIO_WHO_PROCESS = 1
_IOPRIO_IDLE = 3 << 13  # the class, in the high bits
_NICE_MAX = 19
_IOPRIO_SET = {"x86_64": 251, "aarch64": 30}  # it has no function in the C library
_AT_FDCWD = -100
_RENAME_EXCHANGE = 2
# Filesystems without it, layers of an overlay, mount points.
_NO_EXCHANGE = frozenset({errno.EINVAL, errno.EXDEV, errno.EBUSY})
_UNSUPPORTED = frozenset({errno.EOPNOTSUPP, errno.ENOSYS})

_libc = ctypes.CDLL(None, use_errno=True)
_fallocate = _libc.fallocate
_fallocate.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64)
_sync_file_range = _libc.sync_file_range
_sync_file_range.argtypes = (ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint)
_syncfs = _libc.syncfs
_syncfs.argtypes = (ctypes.c_int,)
_renameat2 = _libc.renameat2
_renameat2.argtypes = (ctypes.c_int, ctypes.c_char_p, ctypes.c_int, ctypes.c_char_p, ctypes.c_uint)


def reserve(descriptor: int, position: int, size: int) -> bool:
    """Allocate disk blocks for these bytes without changing the file's size."""
    return _call(_fallocate, descriptor, _FALLOC_FL_KEEP_SIZE, position, size)


def start_writeback(descriptor: int, position: int, size: int) -> bool:
    """Start writing these dirty bytes to disk; waits only for room in the device's queue."""
    return _call(_sync_file_range, descriptor, position, size, _SYNC_FILE_RANGE_WRITE)


def sync_filesystem(descriptor: int) -> bool:
    """Return once all dirty data of the descriptor's filesystem is on disk."""
    return _call(_syncfs, descriptor)


def exchange(one: str, other: str) -> bool:
    """Exchange what two names refer to, atomically."""
    paths = os.fsencode(one), os.fsencode(other)
    try:
        return _call(_renameat2, _AT_FDCWD, paths[0], _AT_FDCWD, paths[1], _RENAME_EXCHANGE)
    except OSError as error:
        if error.errno in _NO_EXCHANGE:
            return False
        raise


def run_idle() -> None:
    """Take only the CPU time and the disk time that nobody else wants, where the kernel can.

    If memory ends, this process goes before others, not with its parent's protection.
    """
    os.setpriority(os.PRIO_PROCESS, 0, _NICE_MAX)
    with suppress(OSError):  # a container may forbid it
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    with suppress(OSError), open("/proc/self/oom_score_adj", "w", encoding="ascii") as file:
        file.write("500")
    number = _IOPRIO_SET.get(os.uname().machine)
    if number is not None:
        _libc.syscall(number, _IOPRIO_WHO_PROCESS, 0, _IOPRIO_IDLE)


def die_with_parent(parent: int) -> None:
    """Have the kernel kill this process once the process `parent` ends, or at once if it has."""
    _libc.prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)


def _call(function: ctypes._FuncPointer, *arguments: int | bytes) -> bool:
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
