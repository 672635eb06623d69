"""Rare states that only the code itself can see, counted where they come up."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from kdist.storage import log
from kdist.storage.append import Append
from kdist.storage.segment import Segment
from tests.simulator.planted import Bug, patched


@contextmanager
def counting(count: Callable[[str], None]) -> Iterator[None]:
    """Within the block `count` is called with each."""

    def counted(of_duplicate: Any) -> Any:
        def find(*given: Any) -> Any:
            count("retry was a duplicate")
            return of_duplicate(*given)

        return staticmethod(find)

    with (
        patched(Bug(Append, "of_duplicate", counted)),
        patched(Bug(log, "undo", partial(_counted_undo, count))),
    ):
        yield


def _counted_undo(count: Callable[[str], None], undo: Callable[..., None]) -> Callable[..., None]:
    def undo_counted(segment: Segment) -> None:
        file = segment._file
        if file is not None and file.size() > segment.size:
            count("write in part")
        undo(segment)

    return undo_counted
