"""The layout of a load's output: names of directories and files (pure).

    <output>/_replay=flights=1795197086726-4711-gate1/
    <output>/topic=flights/_lock
                           load=000001/_manifest.json
                                       date=2013-01-01/part-00000-….parquet
                           _staging-000003-1795197086726-4711-gate1/
                           _superseded-000002-1795197086726-4711-gate1/

Spark's readers ignore names that begin with `_`, and see `topic`, `load` and `date` as columns.
"""

from __future__ import annotations

import re
from typing import NamedTuple

LOCK = "_lock"
MANIFEST = "_manifest.json"
COUNTS = "_counts"
DATE = "date="
FILE_SUFFIX = ".parquet"

_STAGING = "_staging-"
_SUPERSEDED = "_superseded-"
_REPLAY = "_replay="
_REPLAY_RUN = re.compile(r"([0-9]+)-([0-9]+)(?:-(.+))?")
_REMOVED = "_removed-"
_LOAD = re.compile(r"load=([0-9]+)\Z")
_SUPERSEDED_LOAD = re.compile(rf"{_SUPERSEDED}([0-9]+)-")
_LEFTOVER = re.compile(r"_(?:staging|superseded)-[0-9]+-([0-9]+)-([0-9]+)(?:-(.+))?")


class Run(NamedTuple):
    """Identifies a run: when it began, its process id, and its host if that is known."""

    started_ms: int
    process: int
    host: str = ""

    @property
    def name(self) -> str:
        """How directories name it."""
        return "-".join(filter(None, (str(self.started_ms), str(self.process), self.host)))


def topic_directory(output: str, topic: str) -> str:
    """The directory of a topic's loads."""
    return f"{output.rstrip('/')}/topic={topic}"


def load_name(number: int) -> str:
    """The directory of a committed load."""
    return f"load={number:06}"


def load_number(name: str) -> int | None:
    """The number of the load with this directory name; None if it is not a load's."""
    found = _LOAD.match(name)
    return int(found[1]) if found else None


def staging_name(number: int, run: Run) -> str:
    """Where a run stages a load. Each run has its own, as executors may outlive a driver."""
    return f"{_STAGING}{number:06}-{run.name}"


def replay_name(topic: str, run: Run) -> str:
    """The directory beside a topic's that a replay makes, to exchange the two."""
    return f"{_REPLAY}{topic}={run.name}"


def run_of_replay(topic: str, name: str) -> Run | None:
    """The run of a replay of the topic that made this directory; None if it is not one."""
    found = _REPLAY_RUN.fullmatch(name.removeprefix(f"{_REPLAY}{topic}="))
    return Run(int(found[1]), int(found[2]), found[3] or "") if found else None


def probe_name(run: Run) -> str:
    """A directory that is made and removed at once, to see whether that can be done."""
    return f"_probe-{run.name}"


def superseded_name(number: int, run: Run) -> str:
    """Where a replay hides a load that it is about to replace."""
    return f"{_SUPERSEDED}{number:06}-{run.name}"


def superseded_number(name: str) -> int | None:
    """The number of the hidden load with this directory name; None if it is not one."""
    found = _SUPERSEDED_LOAD.match(name)
    return int(found[1]) if found else None


def is_leftover(name: str) -> bool:
    """Whether a directory is a staged or hidden load; a leftover, if no run is in progress."""
    return name.startswith((_STAGING, _SUPERSEDED, _REMOVED))


def run_of(name: str) -> Run | None:
    """The run that made a staged or hidden load; None if it is about to be removed."""
    found = _LEFTOVER.fullmatch(name)
    return Run(int(found[1]), int(found[2]), found[3] or "") if found else None


def removed_name(name: str) -> str:
    """The name that a leftover has while it is removed, so that its run cannot commit it."""
    return name if name.startswith(_REMOVED) else f"{_REMOVED}{name[1:]}"
