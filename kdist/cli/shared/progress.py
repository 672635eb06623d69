"""A progress bar on standard error, for terminals only; it disappears when the work is done.

rich is imported only where a bar is drawn, as the import takes 50 ms.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator

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


def _ignore(count: int) -> None:
    """There is no bar to advance."""
