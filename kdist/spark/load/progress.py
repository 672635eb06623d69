"""How far a load is, told at intervals, for those who see no progress bar.

A task notes what it has read once it is done; until then only the size of what is written grows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from threading import Event, Thread
from typing import NamedTuple

from kdist.runtime.clock import Clock
from kdist.runtime.files import Files
from kdist.spark.load.commit import Commit
from kdist.spark.load.counts import offsets_noted
from kdist.spark.load.layout import FILE_SUFFIX
from kdist.spark.ranges import Range

EVERY_S = 30.0


class Progress(NamedTuple):
    """How far a load is: what it does, for how long, and how many offsets tasks have done."""

    topic: str
    load: int
    doing: str
    elapsed_ms: int
    read: int
    offsets: int
    written_bytes: int


class Watch:
    """A load under way. The run's thread sets `doing`; `look` is called by another, and only reads.

    Numbers do not fall, though the files that they are from go away when the load is committed.
    """

    def __init__(
        self, topic: str, tasks: Sequence[Range], commit: Commit, files: Files, clock: Clock
    ) -> None:
        self.doing = "starting Spark"
        self._topic = topic
        self._tasks = tasks
        self._commit = commit
        self._files = files
        self._clock = clock
        self._began_ns = clock.monotonic_ns()
        self._read = self._written_bytes = 0

    def look(self) -> Progress:
        """How far the load is now."""
        commit = self._commit
        self._read = max(self._read, offsets_noted(self._files, commit.counts, self._tasks))
        self._written_bytes = max(self._written_bytes, self._staged_bytes())
        return Progress(
            self._topic,
            commit.number,
            self.doing,
            (self._clock.monotonic_ns() - self._began_ns) // 1_000_000,
            self._read,
            sum(each.size for each in self._tasks),
            self._written_bytes,
        )

    def _staged_bytes(self) -> int:
        try:
            staged = self._commit.staged()
            return sum(size_bytes for path, size_bytes in staged if path.endswith(FILE_SUFFIX))
        except FileNotFoundError:  # not begun, committed, or Spark is moving a file: the last holds
            return 0


@contextmanager
def told_at_intervals(
    look: Callable[[], Progress],
    tell: Callable[[Progress], object] | None,
    every_s: float = EVERY_S,
) -> Iterator[None]:
    """Call `tell`, if there is one, with what `look` gives, in a thread of its own."""
    if tell is None:
        yield
        return
    ended = Event()

    def run() -> None:
        while not ended.wait(every_s):
            tell(look())

    thread = Thread(target=run, name="load-progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
