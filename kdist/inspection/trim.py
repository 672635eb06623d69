"""Cutting the end of a log that no broker has open: the plan, and carrying it out.

The cut itself is the broker's own (`truncation.truncate`, or recovery if a batch is damaged), so
that indexes, leader epochs and snapshots are as after a broker's. The order of steps is safe for a
power loss between any two: copy what will be cut off, remove the clean-shutdown marker, lower the
checkpoints, cut and flush the log, raise the recovery point to its end, restore the marker.
"""

from __future__ import annotations

import contextlib
import dataclasses
import random
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from kdist.config.storage import StorageSettings
from kdist.config.topic import TopicSettings
from kdist.errors import UserError
from kdist.inspection.place import PartitionFiles, Place, Saved
from kdist.inspection.reading import Damage, OldMessage, Scanned, segment_number, survey
from kdist.metrics.storage import StorageMetrics
from kdist.model import TopicPartition
from kdist.runtime.files import Files
from kdist.runtime.steps import run_steps
from kdist.storage import names
from kdist.storage.append import DiskSpace
from kdist.storage.checkpoints import load_offsets, save_offsets
from kdist.storage.flushing import flush_now
from kdist.storage.loading import SavedOffsets, load_log
from kdist.storage.log import Log, LogContext
from kdist.storage.names import FileState, Suffix, parse_segment_name
from kdist.storage.scan import DamagedSegment, ScannedBatch
from kdist.storage.segment import Segment
from kdist.storage.trimming import truncate

_COPY_BYTES = 1 << 20
_PROMISING = (names.RECOVERY_POINTS, names.HIGH_WATERMARKS, names.CLEANER_OFFSETS)
_UNNAMED = TopicPartition("unnamed", 0)  # a copied directory under another name; shows in no file


class _NoRng(random.Random):
    """Loading and cutting a log must not need random numbers: this asserts it."""

    def random(self) -> float:
        raise AssertionError("loading and cutting a log use no random numbers")


class Cut(NamedTuple):
    """What a trim cuts off: a segment from `position` on, and all segments after it."""

    partition: PartitionFiles
    number: int
    """The index of the segment that is cut, in `partition.bases`."""
    position: int
    end_offset: int
    """Where the log ends afterwards."""
    reason: str
    is_at_damage: bool
    batches: int
    """How many sound batches are cut off, and the records in them."""
    records: int
    bytes: int

    @property
    def path(self) -> str:
        """The segment that is cut."""
        return self.partition.path(self.partition.bases[self.number])

    @property
    def segments_behind(self) -> list[str]:
        """The segments that are removed whole."""
        return [self.partition.path(base) for base in self.partition.bases[self.number + 1 :]]


class Trimmed(NamedTuple):
    """The result of a trim."""

    end_offset: int
    kept: tuple[str, ...]
    """The files with what was cut off."""


# --- the plan -----------------------------------------------------------------------------------


def plan_cut_at_offset(
    files: Files, partition: PartitionFiles, saved: Saved, offset: int
) -> Cut | None:
    """Cut off the batch that holds `offset` and all after it; None if the log ends before."""
    _check_range(partition, saved, offset)
    number = segment_number(partition, offset)
    segment = Segment.load(files, partition.directory, partition.bases[number])
    try:
        if not saved.is_closed:
            _check_sound(files, partition, saved, offset)
        found = segment.find_despite_index(offset)
    except DamagedSegment as damage:
        raise UserError(
            f"{damage.path} is damaged at position {damage.position}, below offset {offset}"
            f" ({damage.reason}): use --at-damage"
        ) from None
    finally:
        segment.close()
    if found is not None:
        position, header = found
        end_offset = min(offset, header.base_offset)
        _check_range(partition, saved, end_offset)
        reason = f"offset {offset}"
        if header.base_offset < offset:
            reason += f", in the middle of a batch that begins at {header.base_offset}"
        return _plan(files, partition, number, position, end_offset, reason, is_at_damage=False)
    if number + 1 == len(partition.bases):
        return None
    reason = f"offset {offset}"
    return _plan(files, partition, number, segment.size, offset, reason, is_at_damage=False)


def plan_cut_at_damage(files: Files, partition: PartitionFiles, saved: Saved) -> Cut | None:
    """Cut at the first damaged batch; None if there is none."""
    for number, base_offset in enumerate(partition.bases):
        path = partition.path(base_offset)
        following = partition.bases[number + 1] if number + 1 < len(partition.bases) else None
        with contextlib.closing(files.open_readonly(path)) as file:
            walk = survey(file, 0, file.size(), base_offset)
            found = _first_unsound(walk, base_offset, following)
        if found is not None:
            position, end_offset, reason = found
            _check_range(partition, saved, end_offset)
            return _plan(files, partition, number, position, end_offset, reason, is_at_damage=True)
    return None


class _Unsound(NamedTuple):
    """A segment's first damaged batch: where it begins, the end offset before it, and the fault."""

    position: int
    end_offset: int
    reason: str


def _first_unsound(
    found: Iterator[Scanned], base_offset: int, following: int | None
) -> _Unsound | None:
    """The first in a segment from `base_offset`, before another segment from `following`.

    The CRC does not cover base offsets. A batch after a gap is taken for damaged if what comes next
    does not follow it: otherwise its wrong offset would become the log end offset.
    """
    end_offset, leap = base_offset, None
    for item in found:
        if not isinstance(item, ScannedBatch):
            back_to = item.header.base_offset if isinstance(item, Damage) and item.header else -1
            if leap is not None and leap.end_offset <= back_to < end_offset:
                return leap
            if isinstance(item, OldMessage):
                return _Unsound(item.position, end_offset, "an old message format")
            return _Unsound(item.start, end_offset, item.reason)
        header, leap = item.header, None
        if header.base_offset > end_offset:
            reason = f"base offset {header.base_offset} where {end_offset} must follow"
            leap = _Unsound(item.position, end_offset, reason)
        end_offset = header.next_offset
    return leap if following is not None and end_offset > following else None


def _check_range(partition: PartitionFiles, saved: Saved, end_offset: int) -> None:
    start = saved.offset(names.LOG_START_OFFSETS, partition.partition) or 0
    first = max(start, partition.bases[0] if partition.bases else 0)
    if end_offset < first:
        raise UserError(
            f"{partition.directory} begins at offset {first}: it cannot be cut at {end_offset}"
        )


def _check_sound(files: Files, partition: PartitionFiles, saved: Saved, offset: int) -> None:
    """Raise `DamagedSegment` if recovery, on its way to `offset`, would already cut before it."""
    recovery_point = saved.offset(names.RECOVERY_POINTS, partition.partition) or 0
    first, last = segment_number(partition, recovery_point), segment_number(partition, offset)
    for base_offset in partition.bases[first : last + 1]:
        path = partition.path(base_offset)
        with contextlib.closing(files.open_readonly(path)) as file:
            for item in survey(file, 0, file.size(), base_offset):
                if isinstance(item, Damage):
                    raise DamagedSegment(path, item.start, item.reason)
                if isinstance(item, OldMessage) or item.header.next_offset > offset:
                    break


def _plan(
    files: Files,
    partition: PartitionFiles,
    number: int,
    position: int,
    end_offset: int,
    reason: str,
    *,
    is_at_damage: bool,
) -> Cut:
    for name in files.list(partition.directory):
        parsed = parse_segment_name(name)
        if parsed is not None and parsed.state is FileState.SWAP:
            raise UserError(f"{partition.directory}/{name} is from an interrupted compaction")
    batches = records = size = 0
    start = position
    for base_offset in partition.bases[number:]:
        with contextlib.closing(files.open_readonly(partition.path(base_offset))) as file:
            size += file.size() - start
            for item in survey(file, start, file.size(), base_offset):
                if not isinstance(item, Damage | OldMessage):
                    batches += 1
                    records += item.header.record_count
        start = 0
    return Cut(
        partition, number, position, end_offset, reason, is_at_damage, batches, records, size
    )


# --- carrying it out ----------------------------------------------------------------------------


def carry_out(files: Files, place: Place, saved: Saved, cut: Cut, *, is_kept: bool) -> Trimmed:
    """Cut. The caller holds the log directory's lock. Raises `DiskFull` before anything is cut.

    A corrupt checkpoint raises before anything is written. `is_kept`: copy what is cut off to
    `<segment>.log.cut-<n>` beside the log, which no broker opens.
    """
    top = place.log_directory
    paths = [] if top is None else [f"{top}/{name}" for name in _PROMISING]
    promised = {path: load_offsets(files, path) for path in paths}  # raises if one is corrupt
    kept = [_copy_tail(files, cut)] if is_kept else []
    marker = _take_marker(files, top)
    for path, offsets in promised.items():
        _lower(files, path, offsets, cut)
    retired: list[str] = []
    log = _load(files, saved, cut, retired)
    if log.end_offset > cut.end_offset:
        truncate(log, cut.end_offset, now_ms=0)  # the time of a new segment; none is created
    log.prepare_stop()
    flush_now(files, cut.partition.directory, [log])
    log.close()
    kept += _put_away(files, retired, is_kept=is_kept)
    files.sync_directory(cut.partition.directory)
    if top is not None:
        _raise_recovery_point(files, f"{top}/{names.RECOVERY_POINTS}", cut, log.recovery_point)
        if marker is not None:
            files.replace(f"{top}/{names.CLEAN_SHUTDOWN}", marker)
    return Trimmed(log.end_offset, tuple(kept))


def _take_marker(files: Files, top: str | None) -> bytes | None:
    path = f"{top}/{names.CLEAN_SHUTDOWN}"
    if top is None or not files.exists(path):
        return None
    marker = files.read(path)
    files.remove(path)
    files.sync_directory(top)
    return marker


def _copy_tail(files: Files, cut: Cut) -> str:
    path = _free_name(files, cut.path)
    with (
        contextlib.closing(files.open_readonly(cut.path)) as source,
        contextlib.closing(files.create(path)) as target,
    ):
        try:
            for start in range(cut.position, source.size(), _COPY_BYTES):
                target.write([source.read(start, _COPY_BYTES)], start - cut.position)
            target.sync()
        except BaseException:
            files.remove(path)
            raise
    files.sync_directory(cut.partition.directory)
    return path


def _free_name(files: Files, path: str) -> str:
    number = 1
    while files.exists(f"{path}.cut-{number}"):
        number += 1
    return f"{path}.cut-{number}"


def _lower(files: Files, path: str, offsets: dict[TopicPartition, int], cut: Cut) -> None:
    """Lower this partition's offset in a checkpoint to the log end offset after the cut."""
    partition = cut.partition.partition
    if partition is not None and offsets.get(partition, 0) > cut.end_offset:
        offsets[partition] = cut.end_offset
        save_offsets(files, path, offsets)


def _raise_recovery_point(files: Files, path: str, cut: Cut, recovery_point: int) -> None:
    offsets = load_offsets(files, path)
    if cut.partition.partition is not None:
        offsets[cut.partition.partition] = recovery_point
        save_offsets(files, path, offsets)


def _load(files: Files, saved: Saved, cut: Cut, retired: list[str]) -> Log:
    """Load the log as a broker would; the paths of files that this retires go to `retired`."""
    partition = cut.partition.partition or _UNNAMED
    settings, metrics = StorageSettings(), StorageMetrics()
    # The topic's own settings are not known here. Gaps between segments are not this command's
    # concern, so the log is loaded as a compacted one, which may have them.
    topic = dataclasses.replace(TopicSettings(), cleanup_policy=("compact", "delete"))

    def discard(paths: Sequence[str], _delay_ms: int) -> None:
        retired.extend(paths)

    context = LogContext(
        files=files,
        settings=settings,
        metrics=metrics,
        rng=_NoRng(),
        space=DiskSpace(files, cut.partition.directory, settings.reserved_bytes),
        unflushed={},
        want_flush=lambda _: None,
        start_writeback=lambda _: None,
        discard=discard,
        create_files=lambda _: None,  # its files exist
        admit_gaps=lambda _: None,
    )
    known = 0 if saved.offsets else cut.end_offset
    recovery_point = saved.offset(names.RECOVERY_POINTS, cut.partition.partition) or known
    start = saved.offset(names.LOG_START_OFFSETS, cut.partition.partition) or 0
    loading = load_log(
        context,
        partition,
        cut.partition.directory,
        topic,
        SavedOffsets(min(recovery_point, cut.end_offset), start),
        is_clean=saved.is_closed and not cut.is_at_damage,
        now_ms=files.modified_ms(cut.path),
    )
    return run_steps(loading)


def _put_away(files: Files, retired: Sequence[str], *, is_kept: bool) -> list[str]:
    """Keep whole segments under a name that no start removes, or remove them."""
    kept = []
    for path in retired:
        log_path = path.removesuffix(FileState.DELETED)
        if is_kept and log_path.endswith(Suffix.LOG):
            kept.append(_free_name(files, log_path))
            files.rename(path, kept[-1])
        else:
            files.remove(path)
    return kept
