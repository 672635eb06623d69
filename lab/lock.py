"""An exclusive lock on a directory of the lab or the demo: a file in it that names its holder."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from kdist.errors import UserError


@contextmanager
def held(lock: Path, doing: str, waits: bool = False) -> Iterator[None]:
    """Hold the lock while the body runs.

    If another process holds it, wait if `waits`, else raise UserError, which names that process and
    what it is doing. The kernel releases the lock of a process that dies, so no lock is ever stale.
    """
    lock.parent.mkdir(parents=True, exist_ok=True)
    with lock.open("a+", encoding="utf-8") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX if waits else fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            holder = file.read().strip() or "another process"
            raise UserError(f"{lock.parent} is in use by {holder}") from None
        file.truncate(0)
        file.write(f"process {os.getpid()} ({doing})\n")
        file.flush()
        yield
        file.truncate(0)
