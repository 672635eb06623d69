"""A progress bar on standard error, for terminals only; it disappears when the work is done.

rich is imported only where a bar is drawn, as the import takes 50 ms.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator

_STEP_BYTES = 4 << 20  # a step of the bar costs 20 µs

Advance = Callable[[int], None]


@contextlib.contextmanager
def progress(what: str, total: int, *, is_wanted: bool) -> Iterator[Advance]:
    """Yields a function to call with how many more of `total` are done.

    Draws nothing if it is not wanted, or standard error is not a terminal.
    """
    if not is_wanted or not sys.stderr.isatty():
        yield _ignore
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[rate]}"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as bars:
        task = bars.add_task(what, total=total, rate="")

        def advance(count: int) -> None:
            bars.advance(task, count)
            speed = bars.tasks[0].speed
            if speed:
                bars.update(task, rate=f"{speed:,.0f}/s")

        yield advance


@contextlib.contextmanager
def byte_progress(total: Callable[[], int]) -> Iterator[Advance]:
    """As `progress`, for bytes; `total` is called only if a bar is drawn."""
    if not sys.stderr.isatty():
        yield _ignore
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        Progress,
        TimeRemainingColumn,
        TransferSpeedColumn,
    )

    columns = (BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bars:
        task, behind = bars.add_task("", total=total()), 0

        def advance(size: int) -> None:
            nonlocal behind
            behind += size
            if behind >= _STEP_BYTES:
                bars.advance(task, behind)
                behind = 0

        yield advance


def _ignore(count: int) -> None:
    """There is no bar to advance."""
