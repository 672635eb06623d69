"""How many records the tasks of a load have read: a small file of each, beside what Spark stages.

Offsets do not tell how many records there were: some have none, such as those of transaction
markers. So each task notes what it has read, and a load must have as many rows. It also notes how
many of them columns do not hold, and why. Files are looked up by name, since a directory's list may
be old where other hosts have written into it.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from kdist.errors import KdistError
from kdist.runtime.files import Files
from kdist.spark.ranges import Range

_REASONS_MAX = 100  # of one task: fields' names are data
_OTHER = "other reasons"


class CountMissing(KdistError):
    """A task has left no count, so nobody knows whether all of its records are there."""


class Counts(NamedTuple):
    """The records of each partition, and how many of all are undecoded, by reason."""

    records: dict[int, int]
    undecoded: Counter[str]


def _file(directory: str, wanted: Range) -> str:
    return f"{directory}/{wanted.partition.partition}-{wanted.start}-{wanted.end}"


def note_count(
    files: Files, directory: str, read: Range, count: int, undecoded: Mapping[str, int] = {}
) -> None:
    """Note how many records a range had; a task that is done twice notes the same."""
    said = json.dumps([count, _few(Counter(undecoded))])
    files.replace(_file(directory, read), said.encode(), durable=False)


def _few(undecoded: Counter[str]) -> dict[str, int]:
    few = dict(undecoded.most_common(_REASONS_MAX))
    rest = undecoded.total() - sum(few.values())
    return {**few, _OTHER: rest} if rest else few


def offsets_noted(files: Files, directory: str, wanted: Iterable[Range]) -> int:
    """How many offsets the tasks have that are done."""
    return sum(each.size for each in wanted if files.exists(_file(directory, each)))


def count_records(files: Files, directory: str, wanted: Iterable[Range]) -> Counts:
    """The counts of all tasks, from their ranges; `CountMissing`."""
    records: Counter[int] = Counter()
    undecoded: Counter[str] = Counter()
    for each in wanted:
        try:
            count, reasons = json.loads(files.read(_file(directory, each)))
        except FileNotFoundError:
            raise CountMissing(
                f"{each.partition} was read from {each.start} to {each.end}, but how many records"
                " that were is not in the output: do all of Spark's hosts share it?"
            ) from None
        records[each.partition.partition] += count
        undecoded.update(reasons)
    return Counts(dict(records), undecoded)
