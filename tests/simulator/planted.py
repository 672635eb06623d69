"""Known bugs, planted to see how many seeds it takes to find each."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from kdist.storage.log import Log


def _begin_epoch_at_end(begin: Callable[..., None]) -> Callable[..., None]:
    """The epoch begins at the log's end, though an append may be under way behind it."""

    def begin_epoch(log: Log, leader_epoch: int) -> None:
        reserved, log.reserved_offset = log.reserved_offset, log.end_offset
        try:
            begin(log, leader_epoch)
        finally:
            log.reserved_offset = reserved

    return begin_epoch


PLANTED: dict[str, tuple[Any, str, Callable[..., Any]]] = {
    "an epoch begins at the log's end": (Log, "begin_epoch", _begin_epoch_at_end),
}


@contextmanager
def planted(bug: str) -> Iterator[None]:
    """Within the block the bug is in the code; none if it is empty."""
    if not bug:
        yield
        return
    owner, name, make = PLANTED[bug]
    sound = getattr(owner, name)
    setattr(owner, name, make(sound))
    try:
        yield
    finally:
        setattr(owner, name, sound)
