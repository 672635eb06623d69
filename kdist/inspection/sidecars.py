"""Verifying what lies beside a partition's segments: names, sidecar files, checkpointed offsets.

Sidecar files are the leader epochs, the producer snapshots and the topic's id. The first two must
agree with the batches: `EpochAgreement` and `SnapshotAgreement` are given these in order (pure).
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from kdist.errors import CorruptFile
from kdist.inspection.place import PartitionFiles, Saved
from kdist.inspection.report import Report, Severity
from kdist.model import NO_EPOCH, counted
from kdist.records.batch import BatchHeader
from kdist.runtime.files import Files
from kdist.storage import names
from kdist.storage.epochs import LeaderEpochs, decode_epochs
from kdist.storage.meta import load_partition_metadata
from kdist.storage.names import FileState, SegmentName, Suffix, parse_segment_name
from kdist.storage.producers import ProducerStates, load_snapshot

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
            report.add(severity, partition.directory, reason)
    if start is not None and partition.bases and start < partition.bases[0]:
        reason = f"the log start offset is {start}, but the log begins at {partition.bases[0]}"
        report.stale(partition.directory, reason)


# --- names --------------------------------------------------------------------------------------

_KNOWN_NAMES = {
    names.LEADER_EPOCHS,
    names.PARTITION_METADATA,
    "quorum-state",  # of Kafka's own __cluster_metadata
}
_KNOWN_SUFFIXES = (".checkpoint", ".checkpoint.deleted")  # likewise
_CUT = re.compile(r"\.log\.cut-[0-9]+\Z")  # `trim` makes them


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
            report.stale(path, "is left from an interrupted compaction")
        elif _is_orphan(parsed, partition):
            # It may be left by a power loss, or by a roll on a full disk, and then it is empty.
            if is_closed and files.size(path):
                report.damage(path, "belongs to no segment: its .log is gone")
            else:
                report.stale(path, "belongs to no segment")
    if waiting:
        report.note(partition.directory, f"has {counted(waiting, 'file')} to be unlinked")
    if not partition.bases:
        report.note(partition.directory, "has no segment")


def _note_other(name: str, path: str, report: Report) -> None:
    if _CUT.search(name):
        report.note(path, "was kept by a trim: it may be removed")
    elif not (name in _KNOWN_NAMES or name.endswith(_KNOWN_SUFFIXES) or names.flush_mark_in(name)):
        report.note(path, "is not a file of a log")


def _is_orphan(name: SegmentName, partition: PartitionFiles) -> bool:
    return name.suffix is not Suffix.SNAPSHOT and name.base_offset not in partition.bases


# --- agreement with the batches -----------------------------------------------------------------


class EpochAgreement:
    """Checks that leader epochs never decrease, and match the checkpoint."""

    def __init__(self, epochs: LeaderEpochs | None) -> None:
        """`epochs`: the checkpoint's, None if there is none to compare with."""
        self._epochs = epochs if epochs is not None and epochs.entries else None
        self._last = NO_EPOCH

    @property
    def has_seen_epochs(self) -> bool:
        """Whether a batch had an epoch, so that there should be a checkpoint."""
        return self._last != NO_EPOCH

    def fault(self, header: BatchHeader) -> str | None:
        """Why the next batch's epoch cannot be right, after those before it."""
        epoch = header.partition_leader_epoch
        if epoch < NO_EPOCH:
            return f"leader epoch {epoch} is invalid"
        if epoch < self._last:
            last, self._last = self._last, epoch
            return f"leader epoch {epoch} follows {last}"
        self._last = epoch
        return None

    def disagreement(self, header: BatchHeader) -> str | None:
        """How the checkpoint contradicts the batch."""
        if self._epochs is None:
            return None
        saved = self._epochs.epoch_of(header.base_offset)
        if saved in (NO_EPOCH, header.partition_leader_epoch):
            return None
        return (
            f"leader epoch {header.partition_leader_epoch} at offset {header.base_offset},"
            f" where leader-epoch-checkpoint has {saved}"
        )


class SnapshotAgreement:
    """Checks that each producer's newest sequence and offset match the snapshots.

    Only producers in both the log and the snapshot are compared: a snapshot may have older ones,
    whose batches retention has removed, and lack expired ones.
    """

    def __init__(self, snapshots: Mapping[int, ProducerStates]) -> None:
        """The snapshots by their offsets."""
        self._snapshots = snapshots
        self._pending = sorted(snapshots, reverse=True)
        self._newest: dict[int, tuple[int, int, int]] = {}

    def take(self, header: BatchHeader) -> list[tuple[int, str]]:
        """Take the next batch; return the contradicting snapshots up to its base offset."""
        found = self.pass_to(header.base_offset) if self._pending else []
        if header.producer_id >= 0 and not header.is_control:
            self._newest[header.producer_id] = (
                header.producer_epoch,
                header.last_sequence,
                header.last_offset,
            )
        return found

    @property
    def beyond(self) -> list[int]:
        """The snapshots beyond all batches so far."""
        return self._pending[::-1]

    def pass_to(self, offset: int) -> list[tuple[int, str]]:
        """Check the snapshots up to `offset`: all batches below it have been taken."""
        found = []
        while self._pending and self._pending[-1] <= offset:
            at = self._pending.pop()
            if fault := self._compare(at, self._snapshots[at]):
                found.append((at, fault))
        return found

    def _compare(self, offset: int, states: ProducerStates) -> str | None:
        for producer_id, producer in states.producers.items():
            if not producer.batches:
                continue
            last = producer.batches[-1].last_offset
            if last >= offset:
                return (
                    f"producer {producer_id} has a batch up to offset {last}, beyond the snapshot"
                )
            newest = self._newest.get(producer_id)
            if newest is None or newest[0] != producer.epoch:
                continue
            if newest[1:] != (producer.last_sequence, last):
                return (
                    f"producer {producer_id} is at sequence {producer.last_sequence} and offset"
                    f" {last}, but in the log at {newest[1]} and {newest[2]}"
                )
        return None
