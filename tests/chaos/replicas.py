"""What stopped brokers' logs say: that replicas are equal, and which producer wrote what."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from kdist.records.batch import BatchHeader, read_header
from kdist.storage.names import DirectoryState, parse_directory_name

_SEQUENCES = 1 << 31

Writer = tuple[int, int]  # producer id and epoch


class Writers:
    """Who wrote each record of a log."""

    def __init__(self, headers: Sequence[BatchHeader]) -> None:
        self._starts = [each.base_offset for each in headers]
        self._headers = headers

    def at(self, offset: int) -> Writer | None:
        """The producer of a record; None below the first."""
        position = bisect_right(self._starts, offset) - 1
        if position < 0:
            return None
        header = self._headers[position]
        return header.producer_id, header.producer_epoch


class Logs(NamedTuple):
    """What was found wrong in logs, and who wrote the partitions of the topic."""

    faults: list[str]
    writers: Mapping[int, Writers]


def read_logs(directories: Sequence[Path], topic: str) -> Logs:
    """Compare the replicas of all partitions, and look into those of the topic."""
    faults: list[str] = []
    writers: dict[int, Writers] = {}
    names = {name for each in directories for name in live_replicas(each)}
    for name in sorted(names):
        replicas = [_content(each / name) for each in directories if (each / name).is_dir()]
        if len(replicas) < len(directories):
            faults.append(f"{name} is in {len(replicas)} of {len(directories)} log directories")
        if len(set(replicas)) > 1:
            sizes = ", ".join(str(len(content)) for content in replicas)
            faults.append(f"{name}: its replicas differ ({sizes} bytes)")
        if name.startswith(f"{topic}-"):
            headers = list(_headers(replicas[0]))
            writers[int(name.rpartition("-")[2])] = Writers(headers)
            faults += [f"{name}: {text}" for text in broken_sequences(headers)]
    return Logs(faults, writers)


def live_replicas(directory: Path) -> list[str]:
    """The names of the replicas in a log directory that are neither deleted nor strays."""
    found = ((each.name, parse_directory_name(each.name)) for each in directory.iterdir())
    return [name for name, parsed in found if parsed and parsed.state is DirectoryState.LIVE]


def _content(directory: Path) -> bytes:
    """The records of a log whose start was never moved: all segments, one after another."""
    return b"".join(path.read_bytes() for path in sorted(directory.glob("*.log")))


def _headers(content: bytes) -> Iterator[BatchHeader]:
    position = 0
    while position < len(content):
        header = read_header(content, position)
        yield header
        position += header.size


def broken_sequences(headers: Sequence[BatchHeader]) -> Iterator[str]:
    """Where the batches of a producer's epoch do not follow one another from 0 on."""
    expected: dict[Writer, int] = {}
    for header in headers:
        writer = (header.producer_id, header.producer_epoch)
        if header.producer_id < 0:
            continue
        due = expected.get(writer, 0)
        if header.base_sequence != due:
            yield f"{writer} has sequence {header.base_sequence} at {header.base_offset}, not {due}"
        expected[writer] = (header.last_sequence + 1) % _SEQUENCES
