"""The names of everything in a log directory, written here once (pure).

    <log.dir>/meta.properties  *-checkpoint  .kafka_cleanshutdown  .lock  boot.json
              zookeeper-session
    <log.dir>/<topic>-<partition>/00000000000000000042.log  .index  .timeindex  .txnindex  .snapshot
                                  leader-epoch-checkpoint  partition.metadata
                                  flushed-since-<content id>.deleted
    <log.dir>/<topic>-<partition>.<32 hex digits>-delete     a partition being deleted
    <log.dir>/<topic>-<partition>.<32 hex digits>-stray      of an earlier topic of this name

A segment's files carry its base offset in 20 digits, so that `ls` sorts them. `.deleted`,
`.cleaned` and `.swap` follow the suffix: `00000000000000000042.log.deleted`. The names are
Apache Kafka's, but for `boot.json`, `zookeeper-session` and the flush mark: its ending has Apache
Kafka, which does not keep to it, remove it when it opens the log.
"""

from __future__ import annotations

import enum
import re
import uuid
from collections.abc import Sequence
from typing import NamedTuple

from kdist.config.kinds import INT32_MAX, INT64_MAX
from kdist.model import TopicPartition, topic_name_fault

META_PROPERTIES = "meta.properties"
RECOVERY_POINTS = "recovery-point-offset-checkpoint"
HIGH_WATERMARKS = "replication-offset-checkpoint"
LOG_START_OFFSETS = "log-start-offset-checkpoint"
CLEANER_OFFSETS = "cleaner-offset-checkpoint"
CLEAN_SHUTDOWN = ".kafka_cleanshutdown"
BOOT = "boot.json"
LOCK = ".lock"
ZOOKEEPER_SESSION = "zookeeper-session"
LOST_AND_FOUND = "lost+found"  # ext4's own

LEADER_EPOCHS = "leader-epoch-checkpoint"
PARTITION_METADATA = "partition.metadata"

DIRECTORY_NAME_MAX = 255  # bytes, what Linux filesystems allow a name
_SOME = 5


class Suffix(enum.StrEnum):
    """What a segment's file holds."""

    LOG = ".log"
    INDEX = ".index"
    TIME_INDEX = ".timeindex"
    TXN_INDEX = ".txnindex"
    SNAPSHOT = ".snapshot"


class FileState(enum.StrEnum):
    """The state of a segment's file: the second suffix of its name."""

    LIVE = ""
    DELETED = ".deleted"  # renamed, and unlinked a little later
    CLEANED = ".cleaned"  # a compaction's output, not whole yet: removed at start
    SWAP = ".swap"  # a compaction's whole output: put in place at start


class DirectoryState(enum.StrEnum):
    """The state of a partition's directory: the end of its name."""

    LIVE = ""
    DELETED = "-delete"
    FUTURE = "-future"  # Kafka's copy towards another log.dir; kdist has one and makes none
    STRAY = "-stray"  # a partition that the cluster does not know, kept for a person to look at


class SegmentName(NamedTuple):
    """The name of one of a segment's files, taken apart."""

    base_offset: int
    suffix: Suffix
    state: FileState = FileState.LIVE


class DirectoryName(NamedTuple):
    """The name of a partition's directory, taken apart.

    The topic of a deleted or stray one may be cut short (`retired_directory_name`).
    """

    partition: TopicPartition
    state: DirectoryState = DirectoryState.LIVE


def segment_name(base_offset: int, suffix: Suffix, state: FileState = FileState.LIVE) -> str:
    """`00000000000000000042.log`, `00000000000000000042.index.swap`."""
    assert 0 <= base_offset <= INT64_MAX
    return f"{base_offset:020d}{suffix}{state}"


# Invariant: these patterns name every member of Suffix, FileState and DirectoryState.
_SEGMENT = re.compile(
    rf"([0-9]{{20}})({'|'.join(map(re.escape, Suffix))})({'|'.join(map(re.escape, FileState))})\Z"
)
_FLUSH_MARK = re.compile(r"flushed-since-([\w-]{22})\.deleted\Z", re.ASCII)
_DIRECTORY = re.compile(r"(.+)-(0|[1-9][0-9]{0,9})(?:\.[^.\s]+(-delete|-future|-stray))?\Z")


def parse_segment_name(name: str) -> SegmentName | None:
    """The parts of a file's name; None if it is not the name of a segment's file."""
    match = _SEGMENT.match(name)
    if match is None:
        return None
    base_offset = int(match[1])
    if base_offset > INT64_MAX:
        return None
    return SegmentName(base_offset, Suffix(match[2]), FileState(match[3]))


def log_base_offset(name: str) -> int | None:
    """The base offset in the name of a live segment's `.log`; None for other names."""
    parsed = parse_segment_name(name)
    is_log = parsed and (parsed.suffix, parsed.state) == (Suffix.LOG, FileState.LIVE)
    return parsed.base_offset if parsed and is_log else None


def snapshot_offset(name: str) -> int | None:
    """The offset of a producer snapshot, in any state, by its name; None for other names."""
    parsed = parse_segment_name(name)
    return parsed.base_offset if parsed and parsed.suffix is Suffix.SNAPSHOT else None


def flush_mark_name(content_id: str) -> str:
    """`flushed-since-<content id>.deleted`: the name of a log's flush mark (`flushing.py`)."""
    return f"flushed-since-{content_id}.deleted"


def flush_mark_in(name: str) -> str | None:
    """The content id in the name of a flush mark; None for other names."""
    match = _FLUSH_MARK.match(name)
    return match[1] if match else None


def directory_name(partition: TopicPartition) -> str:
    """`<topic>-<partition>`."""
    return f"{partition.topic}-{partition.partition}"


def retired_directory_name(
    partition: TopicPartition, state: DirectoryState, unique: uuid.UUID
) -> str:
    """`<topic>-<partition>.<unique>-delete` or `-stray`: the name of a retired directory.

    The topic is cut short if the name would exceed 255 bytes. `unique` keeps names distinct if a
    topic is deleted repeatedly, or two long names are cut to the same.
    """
    assert state in (DirectoryState.DELETED, DirectoryState.STRAY)
    end = f"-{partition.partition}.{unique.hex}{state}"
    return partition.topic[: DIRECTORY_NAME_MAX - len(end)] + end


def parse_directory_name(name: str) -> DirectoryName | None:
    """The parts of a directory's name; None if it is not the name of a partition's directory.

    Unambiguous, though topics may contain dashes, dots and digits: a live name ends in its
    partition's digits, any other ends in a state, and there nothing after the last dot belongs to
    the topic. A number that `directory_name` would not write (`t-007`) is refused: otherwise two
    directories would be one partition.
    """
    match = _DIRECTORY.match(name)
    if match is None:
        return None
    topic, number = match[1], int(match[2])
    if number > INT32_MAX or topic_name_fault(topic) is not None:
        return None
    return DirectoryName(TopicPartition(topic, number), DirectoryState(match[3] or ""))


def some_of(found: Sequence[object]) -> str:
    """The first few of these, for a log line, and how many more there are."""
    left = len(found) - _SOME
    return ", ".join(map(str, found[:_SOME])) + (f" and {left} more" if left > 0 else "")
