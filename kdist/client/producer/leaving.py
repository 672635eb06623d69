"""Producers that their program left open: what they still owe is sent as it ends, or it is said.

At exit, all of them together have `FLUSH_S` for what is not acknowledged. That wait has an end
whatever their threads do, and a process that was forked does not send what its parent will. A
producer whose loop ended before it, as with asyncio, can send nothing any more.
"""

from __future__ import annotations

import asyncio
import atexit
import logging
from concurrent.futures import Future, wait
from os import getpid
from typing import TYPE_CHECKING
from weakref import WeakSet

if TYPE_CHECKING:
    from kdist.client.producer.core import Core

logger = logging.getLogger(__name__)

FLUSH_S = 2.0

_OPEN: WeakSet[Core] = WeakSet()


def note_open(core: Core) -> None:
    """It is the program's to close."""
    _OPEN.add(core)


def note_closed(core: Core) -> None:
    """All of it is settled, or told."""
    _OPEN.discard(core)


def tell(core: Core) -> None:
    """Say how many records of a producer that nobody closed are lost, if there are any."""
    if count := _owed(core):
        logger.warning(
            "%s was not closed: %s of its records were not acknowledged, and may be lost; "
            "use `with`, or close it",
            core.name,
            count,
        )


def _owed(core: Core) -> int:
    """How many records it has to send yet. A copy in a forked process owes none.

    Nor is it asked: its lock may be one that a thread of the parent held.
    """
    return core.count_unsettled() if core.process == getpid() else 0


def _leave() -> None:
    owing = [core for core in list(_OPEN) if _owed(core)]
    flushing = [_begin_flush(core) for core in owing if core.loop.is_running()]
    wait([each for each in flushing if each is not None], timeout=FLUSH_S)
    for core in owing:
        note_closed(core)
        tell(core)


def _begin_flush(core: Core) -> Future[None] | None:
    work = core.flush_last(FLUSH_S)
    try:
        return asyncio.run_coroutine_threadsafe(work, core.loop)
    except RuntimeError:  # it was closed just now
        work.close()
        return None


atexit.register(_leave)
