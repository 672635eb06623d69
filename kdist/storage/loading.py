"""Opening a log: after a clean stop by file names and its last batches, after a crash by a scan.

What a start may find, and what it does about it (complete list: docs/formats/recovery.md):

    a torn or damaged batch beyond the recovery point    cut there (`_Recovery`)
    an index that is missing, cut, too long, or garbage  rebuilt from the log
    leader epochs or producers missing or damaged        rebuilt from the log
    .deleted, .cleaned, .tmp; an index without a log     removed
    .swap                                                put in place (swapping.py)

Batches below the recovery point were synced, and are not read again. Damage to them is found by a
fetch or by `kdist log verify`; no start cuts or refuses a log for it. `runtime/files.py` describes
what a power loss may leave beyond the recovery point; docs/formats/recovery.md explains what is
kept, and why nothing that was flushed can be lost.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

from kdist.config.topic import TopicSettings
from kdist.errors import CorruptFile
from kdist.model import TopicPartition
from kdist.records.codec import producer_headers
from kdist.runtime.files import Files
from kdist.runtime.steps import Steps
from kdist.storage.epochs import LeaderEpochs, decode_epochs
from kdist.storage.flushing import valid_mark
from kdist.storage.log import Log, LogContext
from kdist.storage.names import (
    LEADER_EPOCHS,
    PARTITION_METADATA,
    FileState,
    SegmentName,
    Suffix,
    flush_mark_in,
    log_base_offset,
    parse_segment_name,
    segment_name,
    snapshot_offset,
)
from kdist.storage.producers import (
    BATCHES_KEPT,
    ProducerStates,
    discard_snapshots,
    load_snapshot,
    replay,
)
from kdist.storage.scan import DamagedSegment, Pace, Piece
from kdist.storage.segment import Segment
from kdist.storage.swapping import complete_swaps

logger = logging.getLogger(__name__)


class SavedOffsets(NamedTuple):
    """A log's offsets from the checkpoints; 0 where it is not in them."""

    recovery_point: int = 0
    start_offset: int = 0
    first_dirty_offset: int | None = None
    """Up to where its cleaner has come. If there is one, compaction may have left gaps between
    offsets, even if the topic is no longer compacted."""


def new_log(
    context: LogContext,
    partition: TopicPartition,
    directory: str,
    settings: TopicSettings,
    now_ms: int,
) -> Log:
    """An empty log, with nothing on the disk yet."""
    segment = Segment(context.files, directory, 0, 0, now_ms)
    log = Log(context, partition, directory, settings, [segment])
    log.epochs.is_changed = True  # its first flush writes the checkpoint, though it has none
    return log


def load_log(
    context: LogContext,
    partition: TopicPartition,
    directory: str,
    settings: TopicSettings,
    saved: SavedOffsets,
    *,
    is_clean: bool,
    now_ms: int,
) -> Steps[Log]:
    """Load the log in `directory`. If `is_changed` is set, the caller must flush it before use."""
    segments, marks = _find_segments(context, directory)
    is_empty = not segments
    if is_empty:
        segments = [Segment.create(context.files, directory, saved.start_offset, now_ms)]
    epochs = _load_epochs(context.files, directory)
    log = Log(context, partition, directory, settings, segments, epochs)
    log.note_flush_mark(valid_mark(context, marks), is_sure=not marks)
    if saved.first_dirty_offset is not None:
        log.begin_compaction()
        log.admit_gaps()
    if is_empty:
        log.save_directory()
    # After a power loss, segments that retention deleted may be there again, in part.
    log.retire(log.segments[: log.segment_index(saved.start_offset)])
    end_offset = (yield from _end_of_clean(log)) if is_clean else None
    recovered = (yield from _Recovery(log, saved).run()) if end_offset is None else end_offset
    log.set_range(saved.start_offset, recovered)
    if log.start_offset > log.end_offset:
        logger.warning("%r: it ends below its log start offset, and is emptied", log)
        _start_over(log, now_ms)
    has_epochs = epochs is not None
    is_current = has_epochs and end_offset is not None
    yield from _complete_epochs(log, has_epochs=has_epochs, is_current=is_current)
    producers = yield from loaded_producers(log, log.end_offset, saved.recovery_point)
    producers.expire(now_ms, context.settings.producer_id_expiration_ms)
    discard_snapshots(context.files, directory, log.forget_snapshots())
    if end_offset is None:
        log.complete_load(producers, saved.recovery_point)
        log.require_flush(now_ms)
        if not saved.recovery_point:
            _save_creation(log)
    else:
        log.complete_load(producers, log.end_offset)
    if saved.first_dirty_offset is not None:
        _take_first_dirty(log, saved.first_dirty_offset)
    log.active.prime_tail()
    log.close_idle()
    return log


def _save_creation(log: Log) -> None:
    """Have the first flush make it durable: the process that created the log may have been killed.

    It covers the topic's id, if there is one, and the names that lead to the log.
    """
    log.save_path()
    path = f"{log.directory}/{PARTITION_METADATA}"
    if log.context.files.exists(path):
        log.save_topic_id(log.context.files.read(path))


def _take_first_dirty(log: Log, offset: int) -> None:
    """Go on cleaning where the last life ended; from the start where that cannot be right."""
    if log.start_offset <= offset <= log.recovery_point:
        log.note_cleaned(offset)


def _start_over(log: Log, now_ms: int) -> None:
    """Replace a log that has nothing at or above its start offset by an empty one from there."""
    gone = log.segments[::-1]
    log.add_segment(log.start_offset, now_ms)
    log.set_range(log.start_offset, log.start_offset)
    log.retire(gone)  # on `DiskFull`, retention removes the rest: it is below the start offset


def _find_segments(context: LogContext, directory: str) -> tuple[list[Segment], list[str]]:
    """The segments, by file names, after removing what an earlier run left unfinished; and the
    content ids in flush marks.
    """
    complete_swaps(context.files, directory)
    names = context.files.list(directory)
    parsed = {name: parse_segment_name(name) for name in names}
    bases = {base_offset for name in names if (base_offset := log_base_offset(name)) is not None}
    for name, part in parsed.items():
        if name.endswith(".tmp") or (part is not None and _is_left_over(part, bases)):
            context.files.remove(f"{directory}/{name}")
    segments = [Segment.load(context.files, directory, each) for each in sorted(bases)]
    return segments, [mark for name in names if (mark := flush_mark_in(name)) is not None]


def _is_left_over(part: SegmentName, bases: Iterable[int]) -> bool:
    if part.state is not FileState.LIVE:
        return True
    return part.suffix is not Suffix.SNAPSHOT and part.base_offset not in bases


def _end_of_clean(log: Log) -> Steps[int | None]:
    """The log end offset after a clean stop; None if its last segment turns out not to be whole."""
    yield from _check_indexes(log, log.segments)
    try:
        return log.active.read_end_offset()
    except (DamagedSegment, CorruptFile) as fault:
        logger.warning("%s, though the last stop was clean: the log is scanned", fault)
        return None


def _load_epochs(files: Files, directory: str) -> LeaderEpochs | None:
    """The leader epochs by their checkpoint; None if it is missing or damaged.

    It is complete up to the recovery point, since a flush saves it before moving that.
    """
    path = f"{directory}/{LEADER_EPOCHS}"
    try:
        content = files.read(path)
        return decode_epochs(content, path) if content else None  # a power loss may leave it empty
    except FileNotFoundError:
        return None
    except CorruptFile as fault:
        logger.warning("%s: leader epochs are read from the log instead", fault)
        return None


def _complete_epochs(log: Log, *, has_epochs: bool, is_current: bool) -> Steps[None]:
    """Make the leader epochs match the log; without a checkpoint, read them from all its headers.

    `is_current`: memory and disk agree so far.
    """
    if not has_epochs:
        pace = Pace()
        everything = readable_spans(log, log.segments[0].base_offset, log.end_offset)
        for _, (_, span, _) in everything:
            log.note_epoch(span)
            if pace.is_over(span.size):
                yield None
    log.epochs.truncate_from_end(log.end_offset)
    log.epochs.truncate_from_start(log.start_offset)
    log.epochs.is_changed |= not is_current


Own = Callable[[Segment], Segment]
"""Of a segment of a log, the object through which this thread may read it."""


def loaded_producers(
    log: Log,
    end_offset: int,
    save_from: int | None = None,
    own: Own = lambda segment: segment,
) -> Steps[ProducerStates]:
    """The producer states at `end_offset`. Damaged snapshots are removed. Reads the log only.

    With `save_from`, the next flush writes the snapshots that segments from that offset on lack,
    also below a newer one, as a power loss may leave any of those that a flush was writing: what
    compaction removes later for a newer batch of its producer is still needed once that batch is
    truncated.
    """
    if save_from is not None:
        for segment in log.segments[1:]:
            base_offset = segment.base_offset
            if base_offset >= save_from and _snapshot(log, base_offset) is None:
                states = yield from _replayed(log, base_offset, own)
                log.save_producers_at(base_offset, states)
    return (yield from _replayed(log, end_offset, own))


def _replayed(log: Log, end_offset: int, own: Own) -> Steps[ProducerStates]:
    """The states at `end_offset`: of the newest sound snapshot, and the batches after it."""
    offset, states = _newest_snapshot(log, end_offset)
    pace = Pace()
    for segment, (position, span, data) in readable_spans(log, offset, end_offset, own):
        if span.has_producers:
            for place, header in producer_headers(data, span.size, BATCHES_KEPT):
                is_needed = header.is_control  # `data` may end inside a batch
                batch = segment.file.read(position + place, header.size) if is_needed else b""
                replay(states, header, batch, segment.path)
                if pace.is_over(0):
                    yield None
        if pace.is_over(span.size):
            yield None
    return states


def _newest_snapshot(log: Log, end_offset: int) -> tuple[int, ProducerStates]:
    waiting = [path.rpartition("/")[2] for path in list(log.files_to_save)]
    names = [*log.context.files.list(log.directory), *waiting]
    offsets = {offset for name in names if (offset := snapshot_offset(name)) is not None}
    for offset in sorted(offsets, reverse=True):
        if offset <= end_offset and (states := _snapshot(log, offset)) is not None:
            return offset, states
    return log.start_offset, ProducerStates()


def _snapshot(log: Log, offset: int) -> ProducerStates | None:
    """By what the next flush writes, else by the file; None if there is none that is sound."""
    path = f"{log.directory}/{segment_name(offset, Suffix.SNAPSHOT)}"
    waiting = log.files_to_save.get(path)
    if isinstance(waiting, ProducerStates):
        return waiting.copy()
    files = log.context.files
    try:
        return load_snapshot(files, path)
    except FileNotFoundError:
        return None
    except CorruptFile as fault:
        logger.warning("%s: producers are read from the log instead", fault)
        files.remove(path)
        return None


def readable_spans(
    log: Log, offset: int, end_offset: int, own: Own = lambda segment: segment
) -> Iterator[tuple[Segment, Piece]]:
    """Many batches at a time, with their segment, from the first that ends at or after `offset` up
    to the one that holds `end_offset`.

    A damaged header hides the rest of its segment, as it does from every reader.
    """
    if offset >= end_offset:
        return
    first, last_number = log.segment_index(offset), log.segment_index(end_offset - 1)
    for segment in map(own, log.segments[first : last_number + 1]):
        try:
            found = segment.find_despite_index(offset)
            if found is not None:
                is_end = end_offset >= log.end_offset
                last = None if is_end else segment.find_despite_index(end_offset)
                for piece in segment.walk_spans(found[0], end=last and last[0]):
                    yield segment, piece
        except DamagedSegment as damage:
            logger.error("%s: the rest of this segment cannot be read", damage)
        segment.close_idle()


class _Recovery:
    """The scan of one log from its recovery point, which cuts it at the first damage.

    `end_offset`: the end of what was found sound so far.
    """

    def __init__(self, log: Log, saved: SavedOffsets) -> None:
        self._log = log
        self._recovery_point = saved.recovery_point
        # Compaction takes place below these: only there it leaves gaps between segments.
        self._compacted_end = max(saved.recovery_point, saved.first_dirty_offset or 0)
        self.end_offset = log.start_offset

    def run(self) -> Steps[int]:
        """Scan and cut; return the log end offset. The indexes then match what is left."""
        log = self._log
        # One offset less: a segment that ends at the recovery point may have been sealed, and its
        # indexes completed, after the flush that moved the recovery point there.
        first = log.segment_index(self._recovery_point - 1)
        yield from _check_indexes(log, log.segments[:first])
        self.end_offset = log.segments[first].base_offset
        for segment in log.segments[first:]:
            base_offset = segment.base_offset
            if base_offset > self._compacted_end and base_offset != self.end_offset:
                logger.warning("%s does not begin at %d: removed", segment.path, self.end_offset)
                self._retire_from(segment)
                break
            if not (yield from self._scan(segment)):
                self._retire_from(segment, 1)
                break
            if segment is not log.active:
                log.seal(segment)
                segment.close_idle()
        log.active.trim()  # disk space that was reserved before the crash
        log.context.metrics.recovered_logs += 1
        return self.end_offset

    def _retire_from(self, segment: Segment, distance: int = 0) -> None:
        segments = self._log.segments
        self._log.retire(segments[segments.index(segment) + distance :][::-1])

    def _follows(self, base_offset: int) -> bool:
        """Whether a batch with this base offset may come next in a segment.

        Below the recovery point anything may. Beyond it, a log that was never compacted has no
        gaps: a gap means a damaged base offset, which the CRC does not cover. A follower of a
        compacted log takes over its leader's gaps.
        """
        if base_offset <= self._recovery_point or base_offset == self.end_offset:
            return True
        return self._log.may_leave_gaps and base_offset > self.end_offset

    def _scan(self, segment: Segment) -> Steps[bool]:
        """Check the segment above the recovery point and cut it; return whether it was whole.

        Below the recovery point only headers are read: those batches were synced, and damage to one
        is no reason to cut off what follows. Above it whole batches are checked.
        """
        log, end, pace = self._log, segment.size, Pace()
        interval_bytes = log.settings.index_interval_bytes
        start = valid_end = segment.restart_indexes(self._recovery_point)
        self.end_offset = segment.base_offset
        try:
            walk = segment.walk_spans(start, interval_bytes, self._recovery_point)
            for position, span, _ in walk:
                base_offset = span.base_offset
                if position == start:
                    log.epochs.truncate_from_end(base_offset)  # later ones are read from the log
                    self.end_offset = max(self.end_offset, base_offset if start else 0)
                if not self._follows(base_offset):
                    reason = f"base offset {base_offset} where {self.end_offset} must follow"
                    raise DamagedSegment(segment.path, position, reason)
                segment.note_span(position, span, interval_bytes)
                log.note_epoch(span)
                valid_end, self.end_offset = segment.size, span.last_offset + 1
                log.context.metrics.recovered_records += span.record_count
                if pace.is_over(span.size):
                    yield None
        except DamagedSegment as damage:
            logger.warning("%s: %d bytes are cut off", damage, end - valid_end)
            log.context.metrics.truncated_bytes += end - valid_end
            segment.cut(valid_end)
        log.context.metrics.recovered_bytes += valid_end - start
        return valid_end == end


def _check_indexes(log: Log, segments: Sequence[Segment]) -> Steps[None]:
    """Rebuild unusable indexes, up to the first damaged batch header."""
    for segment in segments:
        yield None
        if reason := segment.index_fault():
            logger.warning("%s: the indexes are rebuilt", reason)
            try:
                log.rebuild_indexes(segment)
            except DamagedSegment as damage:
                logger.error("%s: the rest of this segment cannot be read", damage)
        segment.close_idle()  # a log may have more segments than a process may have files open
