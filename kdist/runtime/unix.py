"""What this process asks of the operating system for itself: descriptors, memory, forks, its end.

Cheap to import: commands do so first, lest ^C find nobody at home. `linux.py` has what the `os`
module lacks.
"""

from __future__ import annotations

import os
import resource
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol
from weakref import WeakSet

INTERRUPTED = 130  # the exit status that shells use: 128 + SIGINT
UNREAD = 141  # 128 + SIGPIPE
_BLOCK_BYTES = 8 << 20  # larger blocks are rare here, and still go back to the kernel


def raise_limit() -> int:
    """Raise the soft limit on open descriptors to the hard one, and return it."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    return most


def fill_standard_streams() -> None:
    """Open the standard streams that the process was started without on /dev/null.

    The next file or connection opened would get the missing stream's descriptor number, and writes
    to "standard output" would go there: into a segment, at worst.
    """
    descriptor = os.open(os.devnull, os.O_RDWR)
    while descriptor <= 2:  # `open` returns the lowest free number
        os.set_inheritable(descriptor, True)
        descriptor = os.open(os.devnull, os.O_RDWR)
    os.close(descriptor)
    # Python sets them to None, which users of `sys.stdin.buffer` do not expect.
    if sys.stdin is None:
        sys.stdin = os.fdopen(0, closefd=False)
    if sys.stdout is None:
        sys.stdout = os.fdopen(1, "w", closefd=False)
    if sys.stderr is None:
        sys.stderr = os.fdopen(2, "w", closefd=False)


def discard_output() -> None:
    """Send standard output to /dev/null, whose reader is gone: its buffer is flushed at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def send_file(socket_descriptor: int, file_descriptor: int, position: int, size: int) -> int:
    """Send from a file's page cache to a socket without passing through the process.

    How many of `size` bytes from `position` the socket took; 0 only at the end of the file.
    `BlockingIOError` if it can take none now; other `OSError`s as the kernel gives them.
    """
    return os.sendfile(socket_descriptor, file_descriptor, position, size)


@contextmanager
def nameless_file(content: bytes) -> Iterator[str]:
    """A path, valid within this process, of a file on no disk: for code that reads only files."""
    descriptor = os.memfd_create("kdist", os.MFD_CLOEXEC)
    with open(descriptor, "wb", buffering=0) as file:
        file.write(content)
        yield f"/proc/self/fd/{descriptor}"


def keep_freed_blocks() -> None:
    """Keep freed blocks of up to 8 MiB in this process from now on. No effect without glibc.

    By default glibc returns a megabyte to the kernel when it is freed, and maps fresh pages for the
    next one: 250 page faults, which take longer than receiving or decompressing a megabyte. Once a
    large mapped block is freed, glibc raises its threshold: it keeps blocks of up to that size, and
    twice as much at the top of its heap (mallopt(3), M_MMAP_THRESHOLD).
    """
    bytes(_BLOCK_BYTES)  # allocated by calloc and freed at once: no page is touched


class Forked(Protocol):
    """An object that must know when it is a copy in a forked process.

    That has its parent's memory but only one of its threads. So whatever waits there for another
    thread, or for a lock that one held, would wait forever.
    """

    def forked(self) -> None:
        """Called in the new process before any other code runs there. Must not take a lock."""


_watchers: WeakSet[Forked] = WeakSet()


def tell_when_forked(watcher: Forked) -> None:
    """Call `watcher.forked` in every process forked from now on, as long as `watcher` lives."""
    _watchers.add(watcher)


def _tell() -> None:
    for watcher in list(_watchers):
        watcher.forked()


os.register_at_fork(after_in_child=_tell)


def end_interrupted(*_: object) -> None:
    """Exit at once, without a message. Also usable as a signal handler."""
    os.write(2, b"\n")  # the terminal has shown ^C
    os._exit(INTERRUPTED)
