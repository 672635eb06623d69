"""Bare file descriptors: how many this process may have, the three standard ones, `sendfile`."""

from __future__ import annotations

import os
import resource
import sys


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


def send_file(socket_descriptor: int, file_descriptor: int, position: int, size: int) -> int:
    """Send from a file's page cache to a socket without passing through the process.

    How many of `size` bytes from `position` the socket took; 0 only at the end of the file.
    `BlockingIOError` if it can take none now; other `OSError`s as the kernel gives them.
    """
    return os.sendfile(socket_descriptor, file_descriptor, position, size)
