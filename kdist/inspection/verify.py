"""Verifying a place: every partition in it, and the other files of a log directory.

The result is a `Report`. Verification goes on after a fault, and changes nothing. Of a partition it
checks the batches, the order of segments, and all that is derived from them. A fault that recovery
would repair is `stale` where it can occur without damage: after the last sound batch of the last
segment, in a log directory that was not closed. Elsewhere it is damage.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

from kdist.errors import CorruptFile, CorruptRecords
from kdist.inspection.indexes import OffsetIndexCheck, TimeIndexCheck
from kdist.inspection.place import (
    CHECKPOINTS,
    Kind,
    PartitionFiles,
    Place,
    Saved,
    load_saved,
    read_partition,
)
from kdist.inspection.reading import Damage, OldMessage, Scanned, survey
from kdist.inspection.report import Report, Severity
from kdist.inspection.sidecars import (
    EpochAgreement,
    SnapshotAgreement,
    check_names,
    check_saved,
    load_epochs,
    load_snapshots,
    note_corrupt,
)
from kdist.model import NO_TIMESTAMP, TopicPartition, counted
from kdist.records.batch import BatchHeader
from kdist.records.build import read_records
from kdist.runtime.files import Files
from kdist.storage import names
from kdist.storage.checkpoints import decode_offsets
from kdist.storage.epochs import decode_epochs
from kdist.storage.meta import decode_meta, decode_partition_metadata
from kdist.storage.names import DirectoryState, Suffix, parse_directory_name
from kdist.storage.producers import decode_snapshot
from kdist.storage.scan import ScannedBatch

Progress = Callable[[int], None]

_GONE = "was removed while this was being done"
_OLD_FORMAT = (
    "from here on messages of the old format, magic {}, which kdist does not serve: have the broker"
    " that wrote them convert the topic"
)
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
            _PartitionCheck(files, partition, saved, report, progress, is_deep=is_deep).run()
        except FileNotFoundError:
            if files.exists(partition.directory):
                raise
            report.note(partition.directory, _GONE)
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


# --- one partition ------------------------------------------------------------------------------


class _PartitionCheck:
    """One partition's verification. Findings go to `report`, bytes passed to `progress`."""

    def __init__(
        self,
        files: Files,
        partition: PartitionFiles,
        saved: Saved,
        report: Report,
        progress: Progress,
        *,
        is_deep: bool,
    ) -> None:
        self._files = files
        self._partition = partition
        self._saved = saved
        self._report = report
        self._progress = progress
        self._is_deep = is_deep
        # Of all segments in the directory, even if only one is verified.
        self._last_base = max(read_partition(files, partition.directory).bases, default=0)
        self._end_offset: int | None = None
        self._gaps: list[tuple[str, int, str]] = []  # path, position, reason
        self._is_sparse = saved.offset(names.CLEANER_OFFSETS, partition.partition) is not None
        self._has_damage = False

    def run(self) -> None:
        self._report.partitions += 1
        if self._partition.is_whole:
            is_closed = self._saved.is_closed
            check_names(self._files, self._partition, self._report, is_closed=is_closed)
        self._epochs = EpochAgreement(load_epochs(self._files, self._partition, self._report))
        self._snapshots = SnapshotAgreement(
            load_snapshots(self._files, self._partition, self._report)
        )
        self._is_first_disagreement = True
        for base_offset in self._partition.bases:
            self._check_segment(base_offset)
        self._report_gaps()
        if self._partition.is_whole:
            self._check_ends()

    # Batches

    def _may_grow(self, base_offset: int) -> bool:
        """Whether a broker may still append to this segment, or have to recover it."""
        return not self._saved.is_closed and base_offset == self._last_base

    def _check_segment(self, base_offset: int) -> None:
        path = self._partition.path(base_offset)
        # Open the indexes first: in a growing log, what they point to exists when it is read.
        offsets = OffsetIndexCheck(
            self._files, self._partition.path(base_offset, Suffix.INDEX), base_offset
        )
        times = TimeIndexCheck(
            self._files, self._partition.path(base_offset, Suffix.TIME_INDEX), base_offset
        )
        try:
            file = self._files.open_readonly(path)
        except FileNotFoundError:
            self._report.note(path, _GONE)
            return
        with contextlib.closing(file):
            size = file.size()
            self._report.segments += 1
            self._report.bytes += size
            self._begin_segment(path, base_offset)
            seen = self._walk(survey(file, 0, size, base_offset), path, offsets, times, base_offset)
        self._check_indexes(base_offset, size, offsets, times, is_sound=seen)

    def _begin_segment(self, path: str, base_offset: int) -> None:
        end = self._end_offset
        if end is not None and base_offset < end:
            reason = f"begins at offset {base_offset}, but the segment before ends at {end}"
            self._report.damage(path, reason, 0)
        elif end is not None and base_offset > end and not self._has_damage:
            self._gaps.append((path, 0, f"offsets {end} to {base_offset - 1} are missing"))
        self._end_offset = base_offset

    def _walk(
        self,
        found: Iterator[Scanned],
        path: str,
        offsets: OffsetIndexCheck,
        times: TimeIndexCheck,
        base_offset: int,
    ) -> bool:
        """Take all of a segment; return whether it was sound."""
        is_whole, old_messages, progress = True, 0, self._progress
        for item in found:
            if isinstance(item, ScannedBatch):
                header = item.header
                self._take(item, path)
                if item.position >= offsets.next_position:
                    offsets.take(item.position, header)
                times.take(header)
                progress(header.size)
            elif isinstance(item, OldMessage):
                is_whole = False
                if not old_messages:
                    self._report.damage(path, _OLD_FORMAT.format(item.message.magic), item.position)
                old_messages += 1
                self._end_offset = item.message.offset + 1
                offsets.skip(item.position + item.size)
                progress(item.size)
            else:
                is_whole = False
                self._take_damage(item, path, base_offset)
                offsets.skip(item.end)
                progress(item.end - item.start)
        return is_whole

    def _take(self, batch: ScannedBatch, path: str) -> None:
        header, report = batch.header, self._report
        report.batches += 1
        report.records += header.record_count
        if header.base_offset != self._end_offset:
            self._note_gap(header, path, batch.position)
        self._end_offset = header.next_offset
        if not header.is_dense:
            self._is_sparse = True
        if fault := self._epochs.fault(header):
            report.damage(path, fault, batch.position)
        elif fault := self._epochs.disagreement(header):
            self._note_disagreement(fault, header, path, batch.position)
        if self._is_complete:
            self._report_snapshots(self._snapshots.take(header))
        if self._is_deep and (fault := _deep_fault(batch)):
            report.damage(path, fault, batch.position)

    @property
    def _is_complete(self) -> bool:
        """Whether no batch is missing so far; otherwise snapshots may know of more."""
        return not (self._has_damage or self._is_sparse or self._gaps)

    def _note_gap(self, header: BatchHeader, path: str, position: int) -> None:
        end = self._end_offset
        if end is not None and header.base_offset > end and not self._has_damage:
            reason = f"offsets {end} to {header.base_offset - 1} are missing"
            self._gaps.append((path, position, reason))

    def _note_disagreement(self, fault: str, header: BatchHeader, path: str, position: int) -> None:
        """Report once per partition: if one epoch is wrong, all its batches disagree."""
        if self._is_first_disagreement:
            self._is_first_disagreement = False
            is_synced = header.base_offset < self._recovery_point()
            severity = Severity.DAMAGE if self._saved.is_closed or is_synced else Severity.STALE
            self._report.add(severity, path, fault, position)

    def _recovery_point(self) -> int:
        return self._saved.offset(names.RECOVERY_POINTS, self._partition.partition) or 0

    def _take_damage(self, damage: Damage, path: str, base_offset: int) -> None:
        self._has_damage = True
        reason, severity = damage.reason, Severity.DAMAGE
        is_unsynced = self._end_offset is None or self._end_offset >= self._recovery_point()
        if damage.is_torn and self._may_grow(base_offset) and is_unsynced:
            severity = Severity.STALE
            reason += ": an append in progress, or one that the next start will cut off"
        if damage.end > damage.start:
            reason += f" ({counted(damage.end - damage.start, 'byte')} of no sound batch)"
        self._report.add(severity, path, reason, damage.start)

    # What is derived from the batches

    def _check_indexes(
        self,
        base_offset: int,
        size: int,
        offsets: OffsetIndexCheck,
        times: TimeIndexCheck,
        *,
        is_sound: bool,
    ) -> None:
        severity = Severity.STALE if self._may_grow(base_offset) else Severity.DAMAGE
        if is_sound:
            offsets.finish(size)
            times.finish()
        for check in (offsets, times):
            if check.is_missing:
                if size:
                    self._report.stale(check.path, "is missing")
            elif check.fault and (is_sound or check is offsets):
                self._report.add(severity, check.path, check.fault)
        is_complete = times.last_timestamp == times.largest or times.largest == NO_TIMESTAMP
        is_complete |= bool(times.fault) or times.is_missing or self._may_grow(base_offset)
        if is_sound and not is_complete:
            reason = f"ends with {times.last_timestamp}; the newest record has {times.largest}"
            self._report.stale(times.path, reason)

    def _report_snapshots(self, found: list[tuple[int, str]]) -> None:
        for offset, fault in found:
            self._report.damage(self._partition.path(offset, Suffix.SNAPSHOT), fault)

    def _report_gaps(self) -> None:
        """Report gaps as damage, unless the partition shows signs of compaction."""
        for path, position, reason in () if self._is_sparse else self._gaps:
            self._report.damage(path, reason, position)

    def _check_ends(self) -> None:
        """Check this partition's offsets in the checkpoints, and for files beyond its end."""
        end, partition = self._end_offset, self._partition
        if end is not None:
            self._check_beyond(end)
        check_saved(partition, self._saved, end, self._report, has_damage=self._has_damage)

    def _check_beyond(self, end: int) -> None:
        """Check the snapshots up to the log's end and beyond it, and that epochs are saved."""
        partition = self._partition
        if self._is_complete:
            self._report_snapshots(self._snapshots.pass_to(end))
        for offset in self._snapshots.beyond:
            if offset > end and not self._has_damage:
                path = partition.path(offset, Suffix.SNAPSHOT)
                self._report.stale(path, f"the log ends at offset {end} before it")
        if self._epochs.has_seen_epochs and not self._files.exists(
            path := f"{partition.directory}/{names.LEADER_EPOCHS}"
        ):
            self._report.stale(path, "is missing")


def _deep_fault(batch: ScannedBatch) -> str | None:
    """What is wrong with the records of a sound batch; None if nothing is."""
    header = batch.header
    try:
        records = read_records(batch.data, 0, header)
    except CorruptRecords as fault:
        return str(fault).partition(": ")[2]
    if records and records[-1].offset > header.last_offset:
        return (
            f"a record has offset {records[-1].offset}, but the batch ends at {header.last_offset}"
        )
    if header.is_control and not records and header.record_count:
        return "a control batch holds no record"
    largest = max((record.timestamp for record in records), default=NO_TIMESTAMP)
    if largest > header.max_timestamp:
        return f"a record has timestamp {largest}, but the batch says {header.max_timestamp}"
    return None
