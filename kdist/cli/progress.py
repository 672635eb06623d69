"""A bar for what takes long: on a terminal, on standard error, gone when it is done.

rich is loaded only where a bar is drawn: it takes 50 ms, and more to be shown.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator

Advance = Callable[[int], None]


@contextlib.contextmanager
def progress(what: str, total: int, *, is_wanted: bool) -> Iterator[Advance]:
    """Call what it gives with how many more of `total` are done.

    Does nothing where there is no terminal, or it is not wanted.
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
    """Nobody looks."""
