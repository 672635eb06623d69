"""Ends a command that waits for records once nobody reads its output, as with `| head`."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import sys
from collections.abc import Iterator


@contextlib.contextmanager
def ended_when_unread() -> Iterator[None]:
    """Raise BrokenPipeError inside the block once standard output is a pipe without a reader.

    A write would fail too, but only with the next record, which may never come.
    """
    if sys.stdout.isatty():
        yield  # a terminal becomes readable by typing, which would call `end`
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
        loop.add_reader(descriptor, end)  # a pipe's write end reports only that the reader is gone
    except OSError:
        yield  # a regular file, or no descriptor at all
        return
    try:
        yield
    except asyncio.CancelledError:
        if not is_unread:
            raise
        raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE)) from None
    finally:
        loop.remove_reader(descriptor)
