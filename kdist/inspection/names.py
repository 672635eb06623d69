"""Verifying the names in a partition's directory: foreign and left-over files."""

from __future__ import annotations

import re

from kdist.inspection.inspection import PartitionFiles
from kdist.inspection.report import Report, Severity
from kdist.runtime.files import Files
from kdist.storage import names
from kdist.storage.names import FileState, SegmentName, Suffix, parse_segment_name

_KNOWN_NAMES = {
    names.LEADER_EPOCHS,
    names.PARTITION_METADATA,
    "quorum-state",  # of Kafka's own __cluster_metadata
}
_KNOWN_SUFFIXES = (".checkpoint", ".checkpoint.deleted")  # likewise
_CUT = re.compile(r"\.log\.cut-[0-9]+\Z")  # `inspection_trim.py` makes them


def check_names(
    files: Files, partition: PartitionFiles, report: Report, *, is_closed: bool
) -> None:
    """Report every name that is neither of a live segment's file nor of another file of a log."""
    waiting = 0
    for name in files.list(partition.directory):
        parsed, path = parse_segment_name(name), f"{partition.directory}/{name}"
        if parsed is None:
            _note_other(name, path, report)
        elif parsed.state is FileState.DELETED:
            waiting += 1
        elif parsed.state is not FileState.LIVE:
            reason = "is left from an interrupted compaction"
            report.add(Severity.STALE, path, None, reason)
        elif _is_orphan(parsed, partition):
            _note_orphan(files, path, report, is_closed=is_closed)
    if waiting:
        reason = f"{waiting} files wait to be unlinked"
        report.add(Severity.NOTE, partition.directory, None, reason)
    if not partition.bases:
        report.add(Severity.NOTE, partition.directory, None, "has no segment")


def _note_other(name: str, path: str, report: Report) -> None:
    if _CUT.search(name):
        report.add(Severity.NOTE, path, None, "was kept by a trim: it may be removed")
    elif name not in _KNOWN_NAMES and not name.endswith(_KNOWN_SUFFIXES):
        report.add(Severity.NOTE, path, None, "is not a file of a log")


def _note_orphan(files: Files, path: str, report: Report, *, is_closed: bool) -> None:
    """An orphan may be left by a power loss, or by a roll on a full disk, and then it is empty."""
    if is_closed and files.size(path):
        report.damage(path, "belongs to no segment: its .log is gone")
    else:
        report.add(Severity.STALE, path, None, "belongs to no segment")


def _is_orphan(name: SegmentName, partition: PartitionFiles) -> bool:
    return name.suffix is not Suffix.SNAPSHOT and name.base_offset not in partition.bases
