"""Verifying what goes with a partition's segments: small files, and its checkpointed offsets."""

from __future__ import annotations

from kdist.inspection.inspection import PartitionFiles, Saved
from kdist.inspection.report import Report, Severity
from kdist.runtime.files import Files
from kdist.storage import names
from kdist.storage.epochs import LeaderEpochs, decode_epochs
from kdist.storage.faults import CorruptFile
from kdist.storage.meta import load_partition_metadata
from kdist.storage.names import FileState, Suffix, parse_segment_name
from kdist.storage.producer_snapshot import load_snapshot
from kdist.storage.producers import ProducerStates

_LOST_BELOW = {names.RECOVERY_POINTS, names.LOG_START_OFFSETS}
_WORDS = {
    names.RECOVERY_POINTS: "recovery point",
    names.LOG_START_OFFSETS: "log start offset",
    names.HIGH_WATERMARKS: "high watermark",
    names.CLEANER_OFFSETS: "first dirty offset",
}


def load_epochs(files: Files, partition: PartitionFiles, report: Report) -> LeaderEpochs | None:
    """The leader epochs, None if their file is missing or damaged. Checks the topic id too."""
    path = f"{partition.directory}/{names.LEADER_EPOCHS}"
    try:
        load_partition_metadata(files, f"{partition.directory}/{names.PARTITION_METADATA}")
    except CorruptFile as fault:
        note_corrupt(fault, report)
    try:
        return decode_epochs(files.read(path), path)
    except FileNotFoundError:
        return None
    except CorruptFile as fault:
        note_corrupt(fault, report)
        return None


def load_snapshots(
    files: Files, partition: PartitionFiles, report: Report
) -> dict[int, ProducerStates]:
    """The sound producer snapshots by their offsets."""
    found = {}
    for name in files.list(partition.directory):
        parsed = parse_segment_name(name)
        if parsed is None or parsed[1:] != (Suffix.SNAPSHOT, FileState.LIVE):
            continue
        try:
            found[parsed.base_offset] = load_snapshot(files, f"{partition.directory}/{name}")
        except FileNotFoundError:
            continue  # a running broker has just removed it
        except CorruptFile as fault:
            note_corrupt(fault, report)
    return found


def note_corrupt(fault: CorruptFile, report: Report) -> None:
    """Report a small file that cannot be decoded as damage."""
    line = "" if fault.line is None else f"line {fault.line}: "
    report.damage(fault.path, f"{line}{fault.reason}")


def check_saved(
    partition: PartitionFiles,
    saved: Saved,
    end_offset: int | None,
    report: Report,
    *,
    has_damage: bool,
) -> None:
    """Check that a log's checkpointed offsets lie in it; `end_offset` is None without a segment."""
    start = saved.offset(names.LOG_START_OFFSETS, partition.partition)
    if end_offset is None:
        end_offset = start or 0  # where the next start creates an empty segment
    for name, what in _WORDS.items():
        offset = saved.offset(name, partition.partition)
        if offset is not None and offset > end_offset:
            # Everything below these two was on the disk once.
            is_lost = name in _LOST_BELOW and not has_damage
            severity = Severity.DAMAGE if is_lost else Severity.STALE
            reason = f"the {what} is {offset}, but the log ends at {end_offset}"
            report.add(severity, partition.directory, None, reason)
    if start is not None and partition.bases and start < partition.bases[0]:
        reason = f"the log start offset is {start}, but the log begins at {partition.bases[0]}"
        report.add(Severity.STALE, partition.directory, None, reason)
