"""`sendfile`: bytes from a file's page cache to a socket without passing through the process."""

from __future__ import annotations

import os


def send_file(socket_descriptor: int, file_descriptor: int, position: int, size: int) -> int:
    """How many of `size` bytes from `position` the socket took; 0 only at the end of the file.

    `BlockingIOError` if it can take none now; other `OSError`s as the kernel gives them.
    """
    return os.sendfile(socket_descriptor, file_descriptor, position, size)
