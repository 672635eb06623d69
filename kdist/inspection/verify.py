"""Verifying a place: every partition in it, and the other files of a log directory.

The result is a `Report`. Verification goes on after a fault, and changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable

from kdist.inspection.indexes import OffsetIndexCheck, TimeIndexCheck
from kdist.inspection.partition import GONE, PartitionCheck, Progress
from kdist.inspection.place import CHECKPOINTS, Kind, Place, load_saved
from kdist.inspection.report import Report
from kdist.inspection.sidecars import note_corrupt
from kdist.model import TopicPartition
from kdist.runtime.files import Files
from kdist.storage import names
from kdist.storage.checkpoints import decode_offsets
from kdist.storage.epochs import decode_epochs
from kdist.storage.faults import CorruptFile
from kdist.storage.meta import decode_meta, decode_partition_metadata
from kdist.storage.names import DirectoryState, parse_directory_name
from kdist.storage.producer_snapshot import decode_snapshot

_KNOWN_NAMES = {
    *CHECKPOINTS,
    names.META_PROPERTIES,
    names.CLEAN_SHUTDOWN,
    names.BOOT,
    names.LOCK,
    names.ZOOKEEPER_SESSION,
    "bootstrap.checkpoint",  # Kafka's, without ZooKeeper
    "lost+found",  # ext4's, where a log directory is a whole filesystem
}

_DECODE: dict[Kind, Callable[[bytes, str], object]] = {
    Kind.CHECKPOINT: decode_offsets,
    Kind.EPOCHS: decode_epochs,
    Kind.SNAPSHOT: decode_snapshot,
    Kind.META: decode_meta,
    Kind.PARTITION_METADATA: decode_partition_metadata,
}
_INDEX_CHECKS = {Kind.INDEX: OffsetIndexCheck, Kind.TIME_INDEX: TimeIndexCheck}


def verify(
    files: Files, place: Place, *, is_deep: bool = False, progress: Progress = lambda _: None
) -> Report:
    """Check everything in `place`. `is_deep`: decompress and decode every record.

    `progress` is called with the size of each batch read. Raises only `OSError`, `DiskFailed`.
    """
    report = Report(place.path, place.kind)
    if place.kind in _DECODE:
        report.bytes = files.size(place.path)
        _check_small_file(files, report, place.path, _DECODE[place.kind])
    elif place.kind in _INDEX_CHECKS:
        _check_order(files, report, place)
    saved = load_saved(files, place.log_directory)  # before the logs, which may grow meanwhile
    if place.kind is Kind.LOG_DIRECTORY:
        _check_log_directory(files, report, place, saved.is_closed)
    for partition in place.partitions:
        try:
            PartitionCheck(files, partition, saved, report, progress, is_deep=is_deep).run()
        except FileNotFoundError:
            if files.exists(partition.directory):
                raise
            report.note(partition.directory, GONE)
    return report


def total_bytes(files: Files, place: Place) -> int:
    """How many bytes `verify` will read, for a progress bar, without segments just deleted."""
    total = 0
    for partition in place.partitions:
        for base_offset in partition.bases:
            path = partition.path(base_offset)
            if files.exists(path):
                total += files.size(path)
    return total


def _check_small_file(
    files: Files, report: Report, path: str, decode: Callable[[bytes, str], object]
) -> None:
    try:
        decode(files.read(path), path)
    except CorruptFile as fault:
        note_corrupt(fault, report)


def _check_order(files: Files, report: Report, place: Place) -> None:
    """Check a single index: without its log, only its size and order."""
    report.bytes = files.size(place.path)
    check = _INDEX_CHECKS[place.kind](files, place.path, 0)
    check.skip_all()
    if check.fault:
        report.damage(place.path, check.fault)


def _check_log_directory(files: Files, report: Report, place: Place, is_closed: bool) -> None:
    present = {partition.partition for partition in place.partitions}
    found = files.list(place.path)
    for name in found:
        _check_name(files, report, f"{place.path}/{name}", name)
    if names.META_PROPERTIES in found:
        path = f"{place.path}/{names.META_PROPERTIES}"
        _check_small_file(files, report, path, decode_meta)
    elif place.partitions:
        path = f"{place.path}/{names.META_PROPERTIES}"
        report.damage(path, "is missing: no broker starts on partitions without it")
    if not is_closed:
        reason = "is not closed: a broker runs on it, or the next start will recover it"
        report.note(place.path, reason)
    for name in CHECKPOINTS:
        path = f"{place.path}/{name}"
        if name in found:
            _check_small_file(files, report, path, decode_offsets)
            _check_partitions(files, report, path, present)


def _check_name(files: Files, report: Report, path: str, name: str) -> None:
    parsed = parse_directory_name(name)
    if parsed is not None and files.is_directory(path):
        if parsed.state is DirectoryState.DELETED:
            report.note(path, "is being deleted: not looked at")
        elif parsed.state is not DirectoryState.LIVE:
            report.note(path, "is not in use: not looked at")
    elif name not in _KNOWN_NAMES:
        report.note(path, "does not belong in a log directory")


def _check_partitions(
    files: Files, report: Report, path: str, present: set[TopicPartition | None]
) -> None:
    try:
        partitions = decode_offsets(files.read(path), path)
    except CorruptFile:
        return  # already reported
    for partition in sorted(partitions.keys() - present):
        report.stale(path, f"contains {partition}, which is not here")
