"""A command that waits for records, and whose output nobody reads any more, as behind `| head`."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import sys
from collections.abc import Iterator


@contextlib.contextmanager
def ended_when_unread() -> Iterator[None]:
    """Inside, BrokenPipeError is raised once the pipe that is written to has no reader.

    A write would find out too, but only with the next record, which may never come.
    """
    if sys.stdout.isatty():
        yield  # `end` would be called for what is typed, too
        return
    loop, task, is_unread = asyncio.get_running_loop(), asyncio.current_task(), False
    assert task is not None

    def end() -> None:
        nonlocal is_unread
        is_unread = True
        loop.remove_reader(descriptor)
        task.cancel()

    try:
        descriptor = sys.stdout.fileno()
        loop.add_reader(descriptor, end)  # called only once the pipe has no reader
    except OSError:
        yield  # a file, or nothing that the system knows
        return
    try:
        yield
    except asyncio.CancelledError:
        if not is_unread:
            raise
        raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE)) from None
    finally:
        loop.remove_reader(descriptor)
