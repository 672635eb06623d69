"""A partition's log: its segments in order, its offsets, and appends.

    start_offset    recovery_point      end_offset     reserved_offset
         |  synced to disk    |  written, not synced  |  being written  |

An append has two steps: one of the `prepare` methods decides everything (offsets, position, roll),
and `complete_append` writes it and makes it part of the log; `append_as_leader` does both. If
another thread writes its `buffers`, the second step is `defer`,
which advances the producers' states, since the next append is checked against them meanwhile; then
`publish` makes it part of the log, or `abandon` undoes it. `loading.py`, `flushing.py` and
`trimming.py` do the work on the files, and change the log by its methods; `reading.py` changes
nothing.
"""

from __future__ import annotations

import random
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Container, Iterable, Sequence
from itertools import accumulate
from operator import attrgetter
from typing import NamedTuple

from kdist.config.kinds import INT64_MAX
from kdist.config.storage import StorageSettings
from kdist.config.topic import TopicSettings
from kdist.errors import ApiError, DiskFailed, DiskFull, Error
from kdist.metrics.storage import StorageMetrics
from kdist.model import TopicPartition
from kdist.records.batch import Batch
from kdist.records.codec import BatchSpan, BatchTotals, assign, batch_totals
from kdist.runtime.files import Buffer, Files
from kdist.storage.append import (
    Append,
    DiskSpace,
    RollReason,
    RollWatch,
    appendable_prefix,
    checked_spans,
    reserve_space,
    span_totals,
    undo,
)
from kdist.storage.epochs import LeaderEpochs, encode_epochs
from kdist.storage.names import (
    LEADER_EPOCHS,
    PARTITION_METADATA,
    Suffix,
    flush_mark_name,
    segment_name,
    snapshot_offset,
)
from kdist.storage.producers import ProducerStates
from kdist.storage.segment import FILE_BYTES_MAX, Segment

_RECENT_MAX = 64
_PREALLOCATION_MIN = 64 * 1024
_base_offset = attrgetter("base_offset")
_data = attrgetter("data")


class LogContext(NamedTuple):
    """What every log of a directory is given by its owner, the `LogDirectory`."""

    files: Files
    settings: StorageSettings
    metrics: StorageMetrics
    rng: random.Random
    space: DiskSpace
    unflushed: dict[Log, None]
    """The logs that hold records above their recovery point, the longest waiting first; and those
    whose flush mark is due."""
    want_flush: Callable[[Log], None]
    """Request a flush: the log has `flush.messages` unflushed records, or a sealed segment."""
    start_writeback: Callable[[Segment], None]
    """Have the kernel start writing back what was appended to this segment."""
    discard: Callable[[Sequence[str], int], None]
    """Unlink these retired files after this many milliseconds."""
    create_files: Callable[[Log], None]
    """Create the files of a new log that has none yet. After `DiskFull` it still has none."""
    admit_gaps: Callable[[Log], None]
    """Call `admit_gaps` of this log once a checkpoint says that it has gaps between offsets."""
    content_id: str = ""
    """Of the disk, as are `vetted`: see `meta.note_boot`."""
    vetted: Container[str] = ()


Content = bytes | ProducerStates
"""Of a small file. Producers' states are encoded where they are written: there may be many."""


class Unsynced(NamedTuple):
    """What a flush must bring to the disk besides the segments above the recovery point."""

    since_ms: int | None
    sealed: list[Segment]
    files_to_save: dict[str, Content]
    renamed_in: set[str]


class Log:
    """Owner: the event loop. There is always at least one segment; the last is the active one."""

    def __init__(
        self,
        context: LogContext,
        partition: TopicPartition,
        directory: str,
        settings: TopicSettings,
        segments: list[Segment],
        epochs: LeaderEpochs | None = None,
    ) -> None:
        """Only `loading.py` calls this, then `set_range`; others use its functions."""
        self.context = context
        self.partition = partition
        self.directory = directory
        self.settings = settings
        self.segments = segments
        self.start_offset = segments[0].base_offset
        self.end_offset = self.reserved_offset = self.recovery_point = self.start_offset
        self.epochs = LeaderEpochs() if epochs is None else epochs
        self.producers = ProducerStates()
        self.unflushed_since_ms: int | None = None
        self.has_files = True  # its files exist; see `background.py`
        self.is_closed = False  # for good: at its path there may be another log by now
        # Whether a clean stop has to flush this log.
        self.is_changed = False
        # A flush or a truncation is in progress; the other has to wait.
        self.is_busy = False
        # The content id in its flush mark (`flushing.py`); None without one.
        self.flush_mark: str | None = None
        # Whether what it holds is exposed to others only once it is flushed: from when the setting
        # comes, which the next flush marks, until a flush has removed the mark after it went.
        self.is_flushed_first = settings.flush_before_expose
        # A truncation refuses appends, and from `truncating_from` on, a segment's base offset, has
        # the segments to itself.
        self.is_truncating = False
        self.truncating_from = INT64_MAX
        self._start_truncation: Callable[[], None] | None = None  # waits for appends under way
        # Compaction is exchanging segments: retention must wait as well.
        self.is_swapping = False
        # Whether there may be gaps between its batches' offsets, also if it is not compacted any
        # more; then `first_dirty_offset`, up to where its cleaner has come, is in a checkpoint.
        self.may_leave_gaps = "compact" in settings.cleanup_policy
        self.first_dirty_offset = self.start_offset if self.may_leave_gaps else None
        # What compaction has removed, it removed for records below this offset.
        self.compacted_for_offset = self.first_dirty_offset or 0
        # Small files that the next flush writes, and directories that it syncs for their entries.
        self.files_to_save: dict[str, Content] = {}
        self.renamed_in: set[str] = set()
        self.sealed_unsynced: list[Segment] = []
        self._under_way: deque[Append] = deque()
        self._reserved_position = segments[-1].size
        self._roll_watch = RollWatch(settings, context.rng)
        self._writeback_step_bytes = self._choose_writeback_step()
        # Positions of recent appends by base offset: a reader at the tail asks for exactly such an
        # offset (and a high watermark is one), and needs no index look-up.
        self.recent: dict[int, int] = {}

    def __repr__(self) -> str:
        return f"<Log {self.partition} {self.start_offset}..{self.end_offset}>"

    @property
    def active(self) -> Segment:
        """The segment that is appended to."""
        return self.segments[-1]

    @property
    def size(self) -> int:
        """Bytes of all segments."""
        return sum(segment.size for segment in self.segments)

    @property
    def is_appending(self) -> bool:
        """Whether something is reserved and not yet published."""
        return bool(self._under_way)

    @property
    def published_producers(self) -> ProducerStates:
        """A copy of the producers' states without the appends under way, any of which may fail."""
        states = self.producers.copy()
        for append in reversed(self._under_way):
            for producer_id, producer in append.producers_before.items():
                states.restore(producer_id, producer)
        return states

    def segment_index(self, offset: int) -> int:
        """The number of the segment whose range holds `offset`; 0 for an offset below all."""
        return max(bisect_right(self.segments, offset, key=_base_offset) - 1, 0)

    # Appending

    def append_as_leader(self, batches: Sequence[Batch], leader_epoch: int, now_ms: int) -> Append:
        """Append the batches; they are in the log when this returns. See `prepare_as_leader`."""
        return self.complete_append(self.prepare_as_leader(batches, leader_epoch, now_ms), now_ms)

    def prepare_as_leader(self, batches: Sequence[Batch], leader_epoch: int, now_ms: int) -> Append:
        """Give checked, writable batches their offsets, leader epoch, and place in the file.

        If the first is a producer's retry, the others are left out, and there is nothing to write.
        Raises `ApiError` for a producer's wrong sequence or epoch, `DiskFull`, `DiskFailed`; then
        nothing has happened, neither to the batches.
        """
        header = batches[0].header
        if header.producer_id >= 0 and (duplicate := self.producers.check(header)):
            self._refuse_while_truncating()  # the first append may be among what is cut off
            return Append.of_duplicate(self.segments[-1], duplicate)
        totals = batch_totals(batches)
        segment = self._make_room(totals, now_ms)
        position, start_offset = self._reserved_position, self.reserved_offset
        offsets, buffers = assign(batches, start_offset, leader_epoch), list(map(_data, batches))
        append = Append(segment, position, start_offset, totals, buffers, batches, offsets)
        if leader_epoch > self.epochs.latest:
            self.epochs.prepare([(leader_epoch, start_offset)], self.end_offset)
        self.reserved_offset = append.end_offset
        self._reserved_position = position + totals.size
        return append

    def prepare_coalesced(self, batches: Sequence[Batch], leader_epoch: int, now_ms: int) -> Append:
        """As `prepare_as_leader`, for batches of separate requests, of which it takes the first.

        And as many of the others as may share its write. Each fares as if appended alone: it has
        its own error, and begins a new segment where one is due.
        """
        totals = batch_totals(batches)
        if self._roll_watch.must_look(self._reserved_position, self.reserved_offset, totals):
            batches = batches[:1]
        elif totals.has_producers:
            batches = appendable_prefix(batches, self.producers)
        return self.prepare_as_leader(batches, leader_epoch, now_ms)

    def prepare_as_follower(
        self, records: Sequence[Buffer], leader_epoch: int, now_ms: int
    ) -> Append:
        """Give batches that were fetched from the leader in `leader_epoch` their place in the file.

        They keep their offsets and epochs, and must begin where the log ends; so must each where
        the one before ends, unless compaction has left gaps. Only in a log that is empty may the
        first begin before the log start offset, if that is in it. A last batch that is cut short is
        left out; if there is no other, nothing is appended. Producers' sequences were checked by
        the leader. Raises as `checked_spans`, INVALID_RECORD, `DiskFull`, `DiskFailed`; then
        nothing has happened.
        """
        settings = self.settings
        found = checked_spans(records, leader_epoch, settings.index_interval_bytes)
        spans = [span for span, _ in found]
        self._refuse_while_truncating()
        if spans:
            self._check_place(spans, now_ms)
        totals = span_totals(spans, self.reserved_offset)
        segment = self._make_room(totals, now_ms) if spans else self.segments[-1]
        buffers: list[Buffer] = [data for _, data in found]
        position = self._reserved_position
        append = Append(segment, position, self.reserved_offset, totals, buffers)
        sizes = accumulate((span.size for span in spans[:-1]), initial=position)
        append.spans = list(zip(sizes, spans, strict=False))
        latest = self.epochs.latest
        if spans and not spans[0].leader_epoch == spans[-1].leader_epoch == latest:
            starts = [
                (each.leader_epoch, max(each.base_offset, self.start_offset)) for each in spans
            ]
            self.epochs.prepare(starts, self.end_offset)
        self.reserved_offset = append.end_offset
        self._reserved_position += totals.size
        return append

    def _check_place(self, spans: Sequence[BatchSpan], now_ms: int) -> None:
        """Raise INVALID_RECORD unless a follower's spans continue the log."""
        first, expected = spans[0], self.reserved_offset
        is_before_start = (
            first.base_offset < self.start_offset == expected <= first.last_offset
            and not (self._reserved_position or self._under_way)
        )
        if is_before_start:
            expected = first.base_offset
        last_epoch = self.epochs.epoch_of(self.reserved_offset - 1)
        if first.leader_epoch < last_epoch:
            detail = f"leader epoch {first.leader_epoch} follows {last_epoch}"
            raise ApiError(Error.INVALID_RECORD, detail)
        for span in spans:
            is_gap = span.base_offset > expected
            if is_gap and not self.may_leave_gaps:
                # Kept durably before there is one: recovery takes it for a loss otherwise.
                self.context.admit_gaps(self)
                detail = f"offset {span.base_offset} follows {expected}: admitted at the next try"
                raise ApiError(Error.KAFKA_STORAGE_ERROR, detail)
            if span.base_offset != expected and not is_gap:
                detail = f"offset {span.base_offset} where {expected} must follow"
                raise ApiError(Error.INVALID_RECORD, detail)
            expected = span.last_offset + 1
        if is_before_start:
            self._begin_at(first.base_offset, now_ms)

    def _begin_at(self, base_offset: int, now_ms: int) -> None:
        """Have an empty log begin there, before the log start offset, or a little lower.

        All that it holds lies below that offset and waits for retention. The empty segment at its
        end may be low enough already, if an earlier such append failed.
        """
        if self.is_swapping:
            raise ApiError(
                Error.KAFKA_STORAGE_ERROR, f"{self.partition} is being cleaned: try again"
            )
        self.retire(self.segments[:-1])
        if self.active.base_offset > base_offset:
            self._replace_active(base_offset, now_ms)
        self.forget_reserved()

    def truncate_fully(self, offset: int, now_ms: int) -> None:
        """Have a log without records begin and end at `offset`, beyond its end or below all of its
        segments. `DiskFull`.

        The recovery point follows with the next flush: till then a power loss may take all of it.
        After `DiskFull` it is as it was, but perhaps for segments wholly below its start offset.
        """
        assert not self._under_way
        assert self.start_offset == self.end_offset != offset
        if self.is_swapping:
            raise DiskFull(self.directory)
        if not self.has_files:
            self.context.create_files(self)
        self.retire(self.segments[:-1])
        self._replace_active(offset, now_ms)
        self.start_offset = self.end_offset = offset
        self.recovery_point = min(self.recovery_point, offset)
        if self.first_dirty_offset is not None:
            self.first_dirty_offset = self.compacted_for_offset = offset
        self.producers = ProducerStates()
        self.forget_reserved()
        self.forget_snapshots()
        self.epochs.clear(offset)
        self.require_flush(now_ms)

    def _replace_active(self, base_offset: int, now_ms: int) -> None:
        """Have a new segment for the only one, which holds no record of the log; or `DiskFull`.

        Both must not be left: recovery would find a gap between them, and remove the later one.
        """
        files, old = self.context.files, self.active
        new = Segment.create(files, self.directory, base_offset, now_ms)
        self.save_directory()  # also if it goes again
        try:
            retired = old.retire()
        except DiskFull:
            new.close()
            try:
                files.remove(new.path)  # its indexes are nothing without it
            except DiskFull as error:
                reason = "a log can neither begin anew nor stay as it was"
                raise DiskFailed(error.path, OSError(reason)) from error
            raise
        self.segments.append(new)
        self._drop([old], retired)

    def complete_append(self, append: Append, now_ms: int) -> Append:
        """Write and publish a prepared append while no other is in progress."""
        if append.buffers:
            try:
                append.segment.file.write(append.buffers, append.position)
            except BaseException:
                self.abandon(append)
                raise
            if append.totals.has_producers:
                append.advance(self.producers)
            self._publish(append, now_ms)
        append.is_published = True
        return append

    def defer(self, append: Append) -> Append:
        """Let others be prepared while this one is being written, until it is `publish`ed."""
        if append.buffers:
            if append.totals.has_producers:  # which the next ones are checked against
                append.advance_undoably(self.producers)
            self._under_way.append(append)
        return append

    def _make_room(self, totals: BatchTotals, now_ms: int) -> Segment:
        """Make sure that the disk and the active segment, which is returned, can take these."""
        size = totals.size
        self.context.space.take(size)
        if self._roll_watch.must_look(self._reserved_position, self.reserved_offset, totals):
            self._maybe_roll(totals, now_ms)
        segment, end = self.segments[-1], self._reserved_position + size
        if end > segment.preallocated:
            self._preallocate(segment, end)
        return segment

    def _refuse_while_truncating(self) -> None:
        if self.is_truncating:
            raise ApiError(Error.NOT_LEADER_OR_FOLLOWER, f"{self.partition} is being truncated")

    def begin_epoch(self, leader_epoch: int) -> None:
        """This broker leads in this epoch from here on, until `epochs.resign`.

        Appends in progress are of an earlier one. So the epoch begins where they will end.
        """
        self.epochs.lead(leader_epoch, self.reserved_offset)

    def _maybe_roll(self, totals: BatchTotals, now_ms: int) -> None:
        """Roll if the active segment must not take these.

        Always called before the first append, so a new log's files are made here.
        """
        self._refuse_while_truncating()
        if not self.has_files:
            self.context.create_files(self)
        active, position, size = self.segments[-1], self._reserved_position, totals.size
        last_offset = self.reserved_offset + totals.offset_count - 1
        reason = self._roll_watch.look(
            active, position, size, last_offset, totals.newest_ms, now_ms
        )
        if reason is None:
            return
        if not self._under_way:
            self.roll(now_ms)
        elif position + size > FILE_BYTES_MAX or reason is RollReason.OFFSET:
            # A roll waits for appends in progress; until then the segment takes more, if it can.
            raise ApiError(Error.KAFKA_STORAGE_ERROR, f"{active.path} {reason}: try again")

    def configure(self, settings: TopicSettings) -> None:
        """Take new values of the topic's settings; they hold from the next append on."""
        self.settings = settings
        if "compact" in settings.cleanup_policy:
            self.begin_compaction()
            self.may_leave_gaps = True
        self.is_flushed_first |= settings.flush_before_expose
        if self.has_mark_due:
            self.context.unflushed[self] = None
            self.context.want_flush(self)
        self._roll_watch = RollWatch(settings, self.context.rng)
        self._writeback_step_bytes = self._choose_writeback_step()

    def _choose_writeback_step(self) -> int:
        """After how many bytes to start writeback; a segment's maximum means never.

        Only for logs flushed at an interval: there it cut the median flush by 40% and the longest
        by more; without one it only competes with the appends (docs/benchmarks/log.md).
        """
        settings, step = self.settings, self.context.settings.writeback_step_bytes
        has_interval = min(settings.flush_ms, settings.flush_messages) < INT64_MAX
        return step if step and has_interval else FILE_BYTES_MAX

    def _preallocate(self, segment: Segment, end: int) -> None:
        """Reserve disk space beyond `end`, where an append ends, unless free space is too low.

        A small segment reserves as much as it holds, so that many of them do not fill the disk.
        """
        settings, context = self.settings, self.context
        if settings.preallocate and not segment.size:
            ahead = settings.segment_bytes - end
        else:
            ahead = min(context.settings.preallocation_step_bytes, max(end, _PREALLOCATION_MIN))
        if ahead > 0 and context.space.has_room(ahead):
            reserve_space(segment, end + ahead)

    def publish(self, append: Append, now_ms: int) -> None:
        """Make a deferred append, which is now written, part of the log."""
        if append.buffers:
            assert append is self._under_way[0], (
                "appends are published in order, and none was abandoned"
            )
            self._under_way.popleft()
            self._publish(append, now_ms)
        append.is_published = True
        if self._start_truncation is not None:
            self._maybe_truncate()

    def _publish(self, append: Append, now_ms: int) -> None:
        # The end first: if an index cannot be written, the batches are in the file nevertheless.
        recent, segment = self.recent, append.segment
        if len(recent) >= _RECENT_MAX:
            recent.clear()
        recent[append.start_offset] = append.position
        self.end_offset = end_offset = append.end_offset
        self.is_changed = True
        segment.modified_ms = now_ms
        append.note(self.settings.index_interval_bytes)
        context = self.context
        if self.unflushed_since_ms is None:
            self.unflushed_since_ms = now_ms
            context.unflushed[self] = None
        if segment.size - segment.written_back >= self._writeback_step_bytes:
            context.start_writeback(segment)
        if end_offset - self.recovery_point >= self.settings.flush_messages:
            context.want_flush(self)
        metrics, totals = context.metrics, append.totals
        metrics.appended_batches += len(append.batches) or sum(
            span.batch_count for _, span in append.spans
        )
        metrics.appended_records += totals.record_count
        metrics.appended_bytes += totals.size

    def abandon(self, append: Append) -> None:
        """Undo an append that failed, and all that were reserved after it.

        No write of this log may be running. What reached the file is cut off again.
        """
        while append in self._under_way:
            latest = self._under_way.pop()
            for producer_id, producer in latest.producers_before.items():
                self.producers.restore(producer_id, producer)
        self.forget_reserved()
        self.epochs.abandon(self.end_offset)
        undo(self.active)
        self._maybe_truncate()

    def forget_reserved(self) -> None:
        """Continue at the end of what is published."""
        assert not self._under_way
        self.reserved_offset = self.end_offset
        self._reserved_position = self.active.size
        self._roll_watch.forget()
        self.recent.clear()

    def roll(self, now_ms: int) -> None:
        """Seal the active segment and create the next one at the end of the log."""
        assert not self._under_way
        sealed = self.active
        # In this order: on a full disk no new segment is left behind for a start to fail on.
        sealed.seal()
        self.add_segment(self.end_offset, now_ms)
        self.sealed_unsynced.append(sealed)
        self.forget_reserved()
        self.save_producers()
        self._roll_watch = RollWatch(self.settings, self.context.rng)
        self.context.metrics.rolled_segments += 1
        self.context.want_flush(self)

    def add_segment(self, base_offset: int, now_ms: int) -> None:
        """Create the segment that is appended to from here on."""
        files = self.context.files
        self.segments.append(Segment.create(files, self.directory, base_offset, now_ms))
        self.save_directory()

    def seal(self, segment: Segment) -> None:
        """Close it for appends; the next flush syncs it with its indexes."""
        segment.seal()
        self.sealed_unsynced.append(segment)

    # Files of a new log

    def postpone_files(self, metadata: bytes) -> None:
        """It has no directory yet. `metadata` goes to `partition.metadata`."""
        self.has_files, self.is_changed = False, True
        self.save_topic_id(metadata)
        self.save_path()

    def save_path(self) -> None:
        """Have the next flush sync the directory's own entry, too: the log may be new."""
        self.renamed_in |= {self.directory.rpartition("/")[0], self.directory}

    def save_topic_id(self, metadata: bytes) -> None:
        """Have the next flush write `partition.metadata`."""
        self.files_to_save[f"{self.directory}/{PARTITION_METADATA}"] = metadata

    def create_files(self) -> None:
        """Create the postponed files, but for `partition.metadata`, in the directory."""
        if self.settings.flush_before_expose:  # it is empty: there is nothing to flush first
            self.context.files.replace(self.flush_mark_path, b"", durable=False)
        self.active.create_files()
        self.has_files = True
        if self.settings.flush_before_expose:
            self.note_flush_mark(self.context.content_id)

    # Loading

    def set_range(self, start_offset: int, end_offset: int) -> None:
        """Take the offsets found at start: the log start offset as saved, the log end offset."""
        self.start_offset = max(self.segments[0].base_offset, start_offset)
        self.end_offset = end_offset
        self.forget_reserved()

    def complete_load(self, producers: ProducerStates, recovery_point: int) -> None:
        """Take the producers' states at the log's end, and the recovery point as saved."""
        self.producers = producers
        self.recovery_point = min(recovery_point, self.end_offset)

    def require_flush(self, now_ms: int) -> None:
        """It was recovered, or begun anew: flush it before use, or once the disk has room."""
        self.is_changed = True
        self.unflushed_since_ms = now_ms
        self.context.unflushed[self] = None

    # Flushing

    def begin_flush(self) -> Unsynced:
        """Hand over what must be synced; `finish_flush` or `give_up_flush` must follow."""
        assert not self.is_busy
        self.is_busy = True
        if self.epochs.is_changed:
            self.epochs.is_changed = False
            self.files_to_save[f"{self.directory}/{LEADER_EPOCHS}"] = encode_epochs(self.epochs)
        unsynced = Unsynced(
            self.unflushed_since_ms, self.sealed_unsynced, self.files_to_save, self.renamed_in
        )
        self.unflushed_since_ms = None
        self.sealed_unsynced, self.files_to_save, self.renamed_in = [], {}, set()
        return unsynced

    def finish_flush(self, end_offset: int) -> None:
        """All below `end_offset` is on the disk."""
        self.is_busy = False
        self.recovery_point = max(self.recovery_point, end_offset)
        if self.recovery_point == self.end_offset and not self.has_mark_due:
            self.context.unflushed.pop(self, None)

    def give_up_flush(self, unsynced: Unsynced, sealed: Iterable[Segment]) -> None:
        """Put back what was handed over, for the next flush; `sealed` are all that it covered."""
        self.is_busy = False
        kept = [segment for segment in sealed if segment in self.segments]
        self.sealed_unsynced = [*kept, *self.sealed_unsynced]
        if unsynced.since_ms is not None:
            self.unflushed_since_ms = unsynced.since_ms
        self.files_to_save = unsynced.files_to_save | self.files_to_save
        self.renamed_in |= unsynced.renamed_in

    @property
    def flush_mark_path(self) -> str:
        """Where its flush mark is written, of the disk's present content."""
        return f"{self.directory}/{flush_mark_name(self.context.content_id)}"

    @property
    def has_mark_due(self) -> bool:
        """Whether the next flush is to write the flush mark, or to remove it."""
        if self.settings.flush_before_expose:
            return self.flush_mark is None
        return self.is_flushed_first

    def note_flush_mark(self, content_id: str | None, *, is_sure: bool = True) -> None:
        """It has a flush mark with this content id, or none; unless `is_sure`, one may be left."""
        is_first = content_id is not None or self.settings.flush_before_expose
        self.flush_mark, self.is_flushed_first = content_id, is_first or not is_sure
        if self.has_mark_due:
            self.context.unflushed[self] = None

    # Deleting from the start

    def delete_records(self, offset: int) -> None:
        """Advance the log start offset to `offset` (KIP-107); `deletion` removes the segments.

        Durable once the start offsets are saved. OFFSET_OUT_OF_RANGE beyond the log end offset,
        NOT_LEADER_OR_FOLLOWER while the log is being truncated.
        """
        self._refuse_while_truncating()
        if offset > self.end_offset:
            reason = f"{self.partition} ends at {self.end_offset}, before offset {offset}"
            raise ApiError(Error.OFFSET_OUT_OF_RANGE, reason)
        self.start_offset = max(self.start_offset, offset)

    def retire(self, segments: Sequence[Segment]) -> None:
        """Take segments out, in the order given, and have their files unlinked later."""
        for segment in segments:
            self._drop([segment], segment.retire())  # if that raises, it stays for the next check

    def _drop(self, segments: Sequence[Segment], retired: Sequence[str]) -> None:
        """Take segments out, whose files are now at the paths `retired`."""
        context = self.context
        for segment in segments:
            segment.close()
            self.segments.remove(segment)
        context.discard(retired, self.settings.file_delete_delay_ms)
        self.save_directory()
        # Without the segment that is now the last: it is active again, and must not be cut to size.
        sealed = self.sealed_unsynced
        self.sealed_unsynced = [segment for segment in sealed if segment in self.segments[:-1]]

    def forget_snapshots(self) -> Container[int]:
        """Drop unwritten producer snapshots that are not wanted; return the offsets that are.

        Wanted are those at a segment's base offset, and at the log end offset.
        """
        wanted = {segment.base_offset for segment in self.segments} | {self.end_offset}
        for path in list(self.files_to_save):
            offset = snapshot_offset(path.rpartition("/")[2])
            if offset is not None and offset not in wanted:
                del self.files_to_save[path]
        return wanted

    # Compaction

    def begin_compaction(self) -> None:
        """Have the checkpoint say that there may be gaps, and that nothing is clean yet."""
        if self.first_dirty_offset is None:
            self.first_dirty_offset = self.start_offset

    def admit_gaps(self) -> None:
        """The checkpoint says so: a follower may take over its leader's gaps."""
        self.may_leave_gaps = True

    def note_cleaned(self, end_offset: int) -> None:
        """Below `end_offset` all is clean, and durably so."""
        assert end_offset <= self.recovery_point
        self.first_dirty_offset = self.compacted_for_offset = end_offset

    def begin_swap(self, mapped_end: int) -> None:
        """Have the segments left alone, by flushes and truncations too, until `end_swap`.

        They were compacted for records below `mapped_end`.
        """
        assert not self.is_busy
        self.is_busy = self.is_swapping = True
        self.compacted_for_offset = max(self.compacted_for_offset, mapped_end)

    def replace_segments(self, old: Sequence[Segment], new: Segment) -> None:
        """Exchange segments that follow each other for one that holds what compaction left.

        Who is reading the old ones reads on; new readers get the new one.
        """
        number = self.segments.index(old[0])
        assert self.segments[number : number + len(old)] == list(old)
        self.segments[number : number + len(old)] = [new]
        for segment in old:
            segment.close()
        sealed = self.sealed_unsynced
        self.sealed_unsynced = [segment for segment in sealed if segment not in old]

    def pause_swap(self) -> None:
        """It waits for room: the log may be flushed, or deleted, but its segments not changed."""
        self.is_busy = False

    def resume_swap(self) -> None:
        """It tries again to put the new segment's files in place."""
        assert self.is_swapping
        assert not self.is_busy
        self.is_busy = True

    def end_swap(self) -> None:
        """The new segment's files are in place."""
        self.is_busy = self.is_swapping = False

    # Truncation

    def begin_truncation(self, start: Callable[[], None]) -> None:
        """Refuse appends from here on; call `start` once none is under way, perhaps at once."""
        assert not self.is_busy
        self.is_busy = self.is_truncating = True
        self._roll_watch.forget()  # so that the next append is looked at, and refused
        self._start_truncation = start
        self._maybe_truncate()

    def _maybe_truncate(self) -> None:
        if self._start_truncation is not None and not self._under_way:
            start, self._start_truncation = self._start_truncation, None
            start()

    def begin_cut(self, number: int) -> None:
        """Leave the segments from this one on to a truncation, which lowers the recovery point."""
        segment = self.segments[number]
        self.truncating_from = segment.base_offset
        self.recovery_point = min(self.recovery_point, segment.base_offset)
        if self.first_dirty_offset is not None:  # saved with the recovery point, before the cut
            self.first_dirty_offset = min(self.first_dirty_offset, segment.base_offset)
            self.compacted_for_offset = min(self.compacted_for_offset, segment.base_offset)
        self.recent.clear()
        for each in self.segments[number:]:
            each.places.clear()
        segment.generation += 1  # what is being sent of it must not go on

    def give_up_cut(self, compacted_for_offset: int) -> None:
        """Nothing was cut off: what compaction removed is still missing below this offset."""
        self.compacted_for_offset = compacted_for_offset
        self.save_directory()

    def finish_cut(
        self,
        end_offset: int,
        producers: ProducerStates,
        dropped: Sequence[Segment],
        retired: Sequence[str],
        replacement: Segment | None,
    ) -> None:
        """The log now ends at `end_offset`, where the producers have these states.

        The segments dropped have their files at the paths `retired`; `replacement`, if given, is
        the new active segment.
        """
        self.producers = producers  # before the end moves
        if replacement is not None:  # retention removes the others, below the start offset
            self.segments.append(replacement)
        self._drop(dropped, retired)
        self.end_offset = end_offset
        self.start_offset = min(self.start_offset, end_offset)
        self.forget_reserved()
        self.forget_snapshots()
        self.truncate_epochs()
        self.is_changed = True

    def truncate_epochs(self) -> None:
        """Drop epochs from the log's end on: their leaders appended nothing there."""
        self.epochs.cut(self.end_offset)
        self.is_changed |= self.epochs.is_changed

    def end_truncation(self) -> None:
        """Take appends, reads and flushes again."""
        self.is_busy = self.is_truncating = False
        self.truncating_from = INT64_MAX

    def close_idle(self) -> None:
        """Close the files of segments that nobody is using; the next use reopens them."""
        for segment in self.segments:
            if segment.base_offset < self.truncating_from:
                segment.close_idle()

    def prepare_stop(self) -> None:
        """Prepare a clean stop; a flush must follow."""
        assert not self._under_way
        self.seal(self.active)
        self.save_producers()

    def close(self) -> None:
        """Close all files for good, each once nobody uses it."""
        self.is_closed = True
        self.context.unflushed.pop(self, None)
        for segment in self.segments:
            segment.close()

    def save_producers(self) -> None:
        """Have the next flush write a producer snapshot at the log end offset."""
        self.save_producers_at(self.end_offset, self.producers.copy())

    def save_producers_at(self, offset: int, states: ProducerStates) -> None:
        """Have the next flush write a producer snapshot of these states before `offset`.

        They must not change any more.
        """
        name = segment_name(offset, Suffix.SNAPSHOT)
        self.files_to_save[f"{self.directory}/{name}"] = states

    def note_epoch(self, span: BatchSpan) -> None:
        """Account for the leader epoch of batches that are in the log."""
        if span.leader_epoch >= 0:
            self.epochs.assign(span.leader_epoch, span.base_offset)

    def save_directory(self) -> None:
        """Have the next flush sync the directory, for entries that are new or gone."""
        self.renamed_in.add(self.directory)

    def rebuild_indexes(self, segment: Segment) -> None:
        """Rebuild a segment's indexes; the next flush makes them durable."""
        segment.rebuild_indexes(self.settings.index_interval_bytes)
        if segment is not self.active:  # on a full disk they are still in memory
            self.sealed_unsynced.append(segment)
        self.is_changed = True
