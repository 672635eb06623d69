"""How many records the tasks of a load have read: a small file of each, beside what Spark stages.

Offsets do not tell how many records there were: some have none, such as those of transaction
markers. So each task notes what it has read, and a load must have as many rows. Files are looked up
by name, since a directory's list may be old where other hosts have written into it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from kdist.errors import KdistError
from kdist.runtime.files import Files
from kdist.spark.ranges import Range


class CountMissing(KdistError):
    """A task has left no count, so nobody knows whether all of its records are there."""


def _file(directory: str, wanted: Range) -> str:
    return f"{directory}/{wanted.partition.partition}-{wanted.start}-{wanted.end}"


def note_count(files: Files, directory: str, read: Range, count: int) -> None:
    """Note how many records a range had; a task that is done twice notes the same."""
    files.replace(_file(directory, read), str(count).encode(), durable=False)


def count_records(files: Files, directory: str, wanted: Iterable[Range]) -> dict[int, int]:
    """The records of each partition, from the ranges of all tasks; `CountMissing`."""
    found: Counter[int] = Counter()
    for each in wanted:
        try:
            found[each.partition.partition] += int(files.read(_file(directory, each)))
        except FileNotFoundError:
            raise CountMissing(
                f"{each.partition} was read from {each.start} to {each.end}, but how many records"
                " that were is not in the output: do all of Spark's hosts share it?"
            ) from None
    return dict(found)
