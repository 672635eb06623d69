"""How a load's output is laid out: names of directories and files (pure).

    <output>/topic=flights/_lock
                           load=000001/_manifest.json
                                       date=2013-01-01/part-00000-….parquet
                           _staging-000002-1795197086726-4711/
                           _superseded-000002-1795197086726-4711/

What begins with `_` no reader of Spark's sees; `topic`, `load` and `date` are columns to it.
"""

from __future__ import annotations

import re
from typing import NamedTuple

LOCK = "_lock"
MANIFEST = "_manifest.json"
DATE = "date="
FILE_SUFFIX = ".parquet"

_STAGING = "_staging-"
_SUPERSEDED = "_superseded-"
_LOAD = re.compile(r"load=([0-9]+)\Z")
_SUPERSEDED_LOAD = re.compile(rf"{_SUPERSEDED}([0-9]+)-")


class Run(NamedTuple):
    """What tells one run from another: when it began, and its process."""

    started_ms: int
    process: int


def topic_directory(output: str, topic: str) -> str:
    """Where a topic's loads are."""
    return f"{output.rstrip('/')}/topic={topic}"


def load_name(number: int) -> str:
    """The directory of a committed load."""
    return f"load={number:06}"


def load_number(name: str) -> int | None:
    """Which load a directory is; None for what is none."""
    found = _LOAD.match(name)
    return int(found[1]) if found else None


def staging_name(number: int, run: Run) -> str:
    """Where a run puts a load together. No two runs share it, for one may outlive its driver."""
    return f"{_STAGING}{number:06}-{run.started_ms}-{run.process}"


def superseded_name(number: int, run: Run) -> str:
    """Where a run puts a load that its own stands for."""
    return f"{_SUPERSEDED}{number:06}-{run.started_ms}-{run.process}"


def superseded_number(name: str) -> int | None:
    """Which load a directory was, before a run put its own in the place of it; None for others."""
    found = _SUPERSEDED_LOAD.match(name)
    return int(found[1]) if found else None


def is_leftover(name: str) -> bool:
    """Whether a directory is of a run that has ended, if no run is under way."""
    return name.startswith((_STAGING, _SUPERSEDED))
