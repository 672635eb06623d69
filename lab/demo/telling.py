"""The demo's progress output: a line for each step, and a progress bar on a terminal."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

_TELL_EVERY_S = 10.0


class Step:
    """A step in progress: how much of it is done, and the `outcome` to print at its end."""

    def __init__(self, console: Console, bars: Progress | None, name: str) -> None:
        self.outcome = ""
        self._console = console
        self._bars = bars
        self._name = name
        self._row = bars.add_task(name, total=None) if bars is not None else None
        self._told_s = time.monotonic()

    def advance_to(self, done: int, total: int) -> None:
        """Report progress. Without a bar, print a line at most every ten seconds."""
        if self._bars is not None and self._row is not None:
            self._bars.update(self._row, completed=done, total=total)
        elif time.monotonic() - self._told_s > _TELL_EVERY_S:
            self._told_s = time.monotonic()
            self._console.print(f"  {self._name}: {done:,} of {total:,}", highlight=False)


@contextmanager
def step(console: Console, name: str) -> Iterator[Step]:
    """Show a step's progress while the body runs, then its outcome and duration."""
    start_s = time.monotonic()
    if console.is_terminal:
        columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(30))
        with Progress(*columns, TimeElapsedColumn(), console=console, transient=True) as bars:
            now = Step(console, bars, name)
            yield now
    else:
        now = Step(console, None, name)
        yield now
    taken_s = time.monotonic() - start_s
    console.print(
        f"  {name:<42} {now.outcome:<44} {taken_s:6.1f} s", highlight=False, soft_wrap=True
    )
