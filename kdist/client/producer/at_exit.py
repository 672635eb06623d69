"""Producers that a program left open: at exit they are flushed, and a loss is logged.

At exit, all of them together get `FLUSH_S` to deliver what is not acknowledged. The wait is bounded
whatever their threads do, and a forked process does not send the records of its parent. A producer
whose event loop has already ended, as with asyncio, can send nothing more.
"""

from __future__ import annotations

import asyncio
import atexit
import logging
from concurrent.futures import Future, wait
from os import getpid
from typing import Protocol
from weakref import WeakSet

logger = logging.getLogger(__name__)

FLUSH_S = 2.0


class OpenProducer(Protocol):
    """What a producer's core is asked at exit."""

    name: str
    process: int  # the id of the one that opened it
    loop: asyncio.AbstractEventLoop

    def count_unsettled(self) -> int:
        """How many records are neither acknowledged nor failed."""

    async def flush_last(self, timeout_s: float | None) -> None:
        """Send what is there; returns when time is up."""


_OPEN: WeakSet[OpenProducer] = WeakSet()


def note_open(core: OpenProducer) -> None:
    """Register an open producer."""
    _OPEN.add(core)


def note_closed(core: OpenProducer) -> None:
    """Forget a producer: it was closed, or its losses were logged."""
    _OPEN.discard(core)


def warn_of_loss(core: OpenProducer) -> None:
    """Log how many records of an unclosed producer may be lost, if there are any."""
    if count := _count_owed(core):
        logger.warning(
            "%s was not closed: %s of its records were not acknowledged, and may be lost; "
            "use `with`, or close it",
            core.name,
            count,
        )


def _count_owed(core: OpenProducer) -> int:
    """How many records the producer has yet to deliver; none for a copy in a forked process.

    Such a copy is not even asked: a thread of the parent may have held its lock.
    """
    return core.count_unsettled() if core.process == getpid() else 0


def _leave() -> None:
    owing = [core for core in list(_OPEN) if _count_owed(core)]
    flushing = [_begin_flush(core) for core in owing if core.loop.is_running()]
    wait([each for each in flushing if each is not None], timeout=FLUSH_S)
    for core in owing:
        note_closed(core)
        warn_of_loss(core)


def _begin_flush(core: OpenProducer) -> Future[None] | None:
    work = core.flush_last(FLUSH_S)
    try:
        return asyncio.run_coroutine_threadsafe(work, core.loop)
    except RuntimeError:  # the loop was closed just now
        work.close()
        return None


atexit.register(_leave)
