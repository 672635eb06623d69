"""What a path given to an inspecting tool is: a log directory, a partition, or a file of one.

Nothing here trusts what it finds, takes a lock, or changes a byte; it works on Apache Kafka's
directories as on kdist's own. `reading` walks batches and finds records, `verify` checks, `indexes`
and `trim` repair.
"""

from __future__ import annotations

import enum
import os.path
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from kdist.errors import CorruptFile, UserError
from kdist.model import TopicPartition
from kdist.runtime.files import Files
from kdist.storage import names
from kdist.storage.checkpoints import load_offsets
from kdist.storage.names import (
    DirectoryState,
    FileState,
    Suffix,
    log_base_offset,
    parse_directory_name,
    parse_segment_name,
    segment_name,
)

CHECKPOINTS = (
    names.RECOVERY_POINTS,
    names.LOG_START_OFFSETS,
    names.HIGH_WATERMARKS,
    names.CLEANER_OFFSETS,
)


class Kind(enum.StrEnum):
    """What a path is."""

    LOG_DIRECTORY = "log directory"
    PARTITION = "partition"
    SEGMENT = "segment"
    INDEX = "index"
    TIME_INDEX = "time index"
    SNAPSHOT = "producer snapshot"
    EPOCHS = "leader epochs"
    CHECKPOINT = "checkpoint"
    META = "meta.properties"
    PARTITION_METADATA = "partition.metadata"


_SMALL_FILES = {
    names.LEADER_EPOCHS: Kind.EPOCHS,
    names.META_PROPERTIES: Kind.META,
    names.PARTITION_METADATA: Kind.PARTITION_METADATA,
    **dict.fromkeys(CHECKPOINTS, Kind.CHECKPOINT),
}
BY_SUFFIX = {
    Suffix.LOG: Kind.SEGMENT,
    Suffix.INDEX: Kind.INDEX,
    Suffix.TIME_INDEX: Kind.TIME_INDEX,
    Suffix.SNAPSHOT: Kind.SNAPSHOT,
}


class PartitionFiles(NamedTuple):
    """A partition's directory, and the segments to look at."""

    directory: str
    partition: TopicPartition | None
    """None if the directory's name does not say."""
    bases: tuple[int, ...]
    """Base offsets, in order."""
    is_whole: bool = True
    """All segments; False if the path named a single one."""

    def path(self, base_offset: int, suffix: Suffix = Suffix.LOG) -> str:
        """The path of one of a segment's files."""
        return f"{self.directory}/{segment_name(base_offset, suffix)}"


class Place(NamedTuple):
    """What a path is, with the partitions in it to look at."""

    path: str
    kind: Kind
    partitions: tuple[PartitionFiles, ...] = ()
    log_directory: str | None = None
    """The log directory that contains it, if any."""


class Saved(NamedTuple):
    """The contents of a log directory's small files, without those missing or damaged."""

    is_closed: bool
    """The last stop was clean, and no broker has started on it since."""
    offsets: Mapping[str, Mapping[TopicPartition, int]]
    """By checkpoint name, of those that exist and are sound."""

    def offset(self, checkpoint: str, partition: TopicPartition | None) -> int | None:
        """A partition's offset in a checkpoint; None if it is not in it."""
        return None if partition is None else self.offsets.get(checkpoint, {}).get(partition)


def locate(files: Files, path: str) -> Place:
    """What `path` is; `UserError` if it is no part of a log, `OSError` if it cannot be read."""
    path = os.path.abspath(path)
    if not files.exists(path):
        raise UserError(f"{path} is not there")
    if not files.is_directory(path):
        return _locate_file(files, path)
    found = files.list(path)
    if _is_partition(path, found):
        return Place(
            path, Kind.PARTITION, (read_partition(files, path),), _log_directory_of(files, path)
        )
    if not is_log_directory(found):
        what = "is empty" if not found else "is neither a log directory nor a partition's"
        raise UserError(f"{path} {what}: there is no log in it")
    partitions = tuple(_read_partitions(files, path, found))
    inner = [] if partitions or names.META_PROPERTIES in found else _log_directories(files, path)
    if inner:
        raise UserError(f"{path} is no log directory itself: give {' or '.join(inner)}")
    return Place(path, Kind.LOG_DIRECTORY, partitions, path)


def _log_directories(files: Files, path: str) -> list[str]:
    """Log directories inside a directory that merely has a lock, as `kdist standalone`'s does."""
    paths = (f"{path}/{name}" for name in sorted(files.list(path)))
    return [
        each
        for each in paths
        if files.is_directory(each) and names.META_PROPERTIES in files.list(each)
    ]


def _read_partitions(files: Files, path: str, found: list[str]) -> Iterator[PartitionFiles]:
    for name in found:
        if is_live_partition(name) and files.is_directory(f"{path}/{name}"):
            try:
                yield read_partition(files, f"{path}/{name}")
            except FileNotFoundError:
                continue  # a running broker has just deleted it


def _locate_file(files: Files, path: str) -> Place:
    directory, name = os.path.split(path)
    segment = parse_segment_name(name)
    kind = _SMALL_FILES.get(name)
    if segment is not None and segment.state is FileState.LIVE:
        kind = BY_SUFFIX.get(segment.suffix)
    if kind is None:
        raise UserError(
            f"{path} is not a log file that kdist knows: give a log directory, a partition's"
            " directory, or a file in one of these under its original name"
        )
    if kind is not Kind.SEGMENT or segment is None:
        return Place(path, kind)
    partition = PartitionFiles(
        directory, _partition_of(directory), (segment.base_offset,), is_whole=False
    )
    return Place(path, kind, (partition,), _log_directory_of(files, directory))


def is_live_partition(name: str) -> bool:
    """Whether a directory of this name holds a partition that a broker would open."""
    parsed = parse_directory_name(name)
    return parsed is not None and parsed.state is DirectoryState.LIVE


def is_log_directory(found: list[str]) -> bool:
    """Whether a directory with these entries is a broker's log directory."""
    marks = {names.META_PROPERTIES, names.LOCK, names.CLEAN_SHUTDOWN, *CHECKPOINTS}
    return not marks.isdisjoint(found) or any(map(parse_directory_name, found))


def _is_partition(path: str, found: list[str]) -> bool:
    if any(parse_segment_name(name) for name in found):
        return True
    return parse_directory_name(os.path.basename(path)) is not None and not is_log_directory(found)


def _partition_of(directory: str) -> TopicPartition | None:
    parsed = parse_directory_name(os.path.basename(directory))
    return parsed.partition if parsed else None


def read_partition(files: Files, directory: str) -> PartitionFiles:
    """A partition's segments, by file names alone."""
    bases = (base for name in files.list(directory) if (base := log_base_offset(name)) is not None)
    return PartitionFiles(directory, _partition_of(directory), tuple(sorted(bases)))


def _log_directory_of(files: Files, directory: str) -> str | None:
    """The log directory that contains a partition's directory; None for a copy elsewhere."""
    parent = os.path.dirname(directory)
    marks = (names.META_PROPERTIES, names.LOCK, names.RECOVERY_POINTS)
    return parent if any(files.exists(f"{parent}/{mark}") for mark in marks) else None


def load_saved(files: Files, log_directory: str | None) -> Saved:
    """The marker and the sound checkpoints of a log directory."""
    if log_directory is None:
        return Saved(is_closed=True, offsets={})  # no broker appends to a copy
    offsets = {}
    for name in CHECKPOINTS:
        try:
            offsets[name] = load_offsets(files, f"{log_directory}/{name}")
        except CorruptFile:
            continue  # reported by `verify`
    is_closed = files.exists(f"{log_directory}/{names.CLEAN_SHUTDOWN}")
    return Saved(is_closed, offsets)
