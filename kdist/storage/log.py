"""A partition's log: its segments in order, its offsets, and appends.

    start_offset    recovery_point      end_offset     reserved_offset
         |  synced to disk    |  written, not synced  |  being written  |

An append has three steps: `reserve` decides everything (offsets, position, roll) and patches the
batches, `Append.write` writes them and may run on another thread, `publish` makes them part of the
log. So the next append can be prepared while one is in progress. `append` does all three. Reading
is in `reading.py`, flushing in `flushing.py`, truncation in `truncation.py`, retention in
`deletion.py`, opening in `loading.py`.
"""

from __future__ import annotations

import random
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import NamedTuple

from kdist.config.kinds import INT64_MAX
from kdist.config.storage import StorageSettings
from kdist.config.topic import TopicSettings
from kdist.errors import ApiError, Error
from kdist.metrics.storage import StorageMetrics
from kdist.model import TopicPartition
from kdist.records.batch import Batch, BatchHeader
from kdist.records.produced import BatchTotals, assign, batch_totals
from kdist.records.spans import BatchSpan
from kdist.runtime.files import Files
from kdist.storage.append import Append, Appended, following, note, reserve_space, undo
from kdist.storage.epochs import LeaderEpochs, encode_epochs
from kdist.storage.names import LEADER_EPOCHS, Suffix, segment_name
from kdist.storage.producer_snapshot import encode_snapshot
from kdist.storage.producers import Duplicate, ProducerStates
from kdist.storage.retention import RollReason
from kdist.storage.rolling import RollWatch
from kdist.storage.segment import FILE_BYTES_MAX, Segment
from kdist.storage.space import DiskSpace

_RECENT_MAX = 64
_PREALLOCATION_MIN = 64 * 1024
_base_offset = attrgetter("base_offset")


class LogContext(NamedTuple):
    """What every log of a directory is given by its owner, the `LogDirectory`."""

    files: Files
    settings: StorageSettings
    metrics: StorageMetrics
    rng: random.Random
    space: DiskSpace
    unflushed: set[Log]
    """The logs that hold records above their recovery point."""
    want_flush: Callable[[Log], None]
    """Request a flush: the log has `flush.messages` unflushed records, or a sealed segment."""
    start_writeback: Callable[[Segment], None]
    """Have the kernel start writing back what was appended to this segment."""
    discard: Callable[[Sequence[str], int], None]
    """Unlink these retired files after this many milliseconds."""
    make: Callable[[Log], None]
    """Create the files of a new log that has none yet. After `DiskFull` it still has none."""


class Log:
    """Owner: the event loop. There is always at least one segment; the last is the active one."""

    def __init__(
        self,
        context: LogContext,
        partition: TopicPartition,
        directory: str,
        settings: TopicSettings,
        segments: list[Segment],
    ) -> None:
        """Only `loading.py` calls this, and sets the log's end; others use its functions."""
        self.context = context
        self.partition = partition
        self.directory = directory
        self.settings = settings
        self.segments = segments
        self.start_offset = segments[0].base_offset
        self.end_offset = self.reserved_offset = self.recovery_point = self.start_offset
        self.epochs = LeaderEpochs()
        self.producers = ProducerStates()
        self.unflushed_since_ms: int | None = None
        self.is_made = True  # its files exist; see `making.py`
        # Whether a clean stop has to flush this log.
        self.is_changed = False
        # A flush or a truncation is in progress; the other has to wait.
        self.is_busy = False
        # A truncation refuses appends, and from `truncating_from` on, a segment's base offset, has
        # the segments to itself.
        self.is_truncating = False
        self.truncating_from = INT64_MAX
        self._start_truncation: Callable[[], None] | None = None  # waits for appends under way
        # Small files that the next flush writes, and directories that it syncs for their entries.
        self.files_to_save: dict[str, bytes] = {}
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

    def segment_index(self, offset: int) -> int:
        """The number of the segment whose range holds `offset`; 0 for an offset below all."""
        return max(bisect_right(self.segments, offset, key=_base_offset) - 1, 0)

    def append(self, batches: Sequence[Batch], leader_epoch: int, now_ms: int) -> Appended:
        """Append checked, writable batches as the leader; they are in the log when this returns.

        Raises `ApiError` for a producer's wrong sequence or epoch, `DiskFull`, `DiskFailed`; then
        nothing was appended.
        """
        if self._under_way:
            append = self.reserve(batches, leader_epoch, now_ms)
            try:
                append.write()
            except BaseException:
                self.abandon(append)
                raise
            self.publish(append, now_ms)
            return Appended(append.start_offset, append.end_offset, append.duplicate)
        if duplicate := self.duplicate_of(batches[0].header):
            return Appended(duplicate.first_offset, duplicate.last_offset + 1, duplicate)
        offsets = self.append_now(batches, batch_totals(batches), leader_epoch, now_ms)
        return Appended(offsets[0], self.end_offset)

    def duplicate_of(self, header: BatchHeader) -> Duplicate | None:
        """The earlier append if this batch is a producer's retry; raises `ApiError`."""
        return self.producers.check(header) if header.producer_id >= 0 else None

    def append_now(
        self, batches: Sequence[Batch], totals: BatchTotals, leader_epoch: int, now_ms: int
    ) -> Sequence[int]:
        """`append` in one step, while no other is in progress; returns the batches' base offsets.

        The first must not be a duplicate. Takes as many batches as `following` allows.
        """
        if totals.has_producers and len(batches) > 1:
            batches = following(batches, self.producers)
            totals = batch_totals(batches)
        self._make_room(totals, now_ms)
        segment, position = self.segments[-1], self._reserved_position
        start_offset = self.end_offset
        offsets = assign(batches, start_offset, leader_epoch)
        if leader_epoch > self.epochs.latest:
            self.begin_epoch(leader_epoch)
        end = position + totals.size
        if end > segment.preallocated:
            self._preallocate(segment, end)
        self._reserved_position = end
        try:
            segment.file.write([data for _, data in batches], position)
        except BaseException:
            self.forget_reserved()
            undo(segment)
            raise
        if totals.has_producers:
            for (header, _), offset in zip(batches, offsets, strict=True):
                if header.producer_id >= 0:
                    self.producers.append(header, offset)
        self.reserved_offset = start_offset + totals.offset_count
        self._publish(segment, position, batches, offsets, totals, now_ms)
        return offsets

    def reserve(self, batches: Sequence[Batch], leader_epoch: int, now_ms: int) -> Append:
        """Assign position and offsets to the batches. Several appends may be reserved at a time.

        They must be published in the order of their reservation. Takes as many batches as
        `following` allows. Raises `ApiError` as `append`.
        """
        totals = batch_totals(batches)
        if duplicate := self.duplicate_of(batches[0].header):
            return Append.of_duplicate(self.segments[-1], duplicate)
        if totals.has_producers:
            batches = following(batches, self.producers)
            totals = batch_totals(batches)
        self._make_room(totals, now_ms)
        position, start_offset = self._reserved_position, self.reserved_offset
        end = position + totals.size
        self._preallocate(self.segments[-1], end)  # which may fail
        append = Append(self.segments[-1], position, start_offset, batches, totals)
        append.place(leader_epoch)
        if totals.has_producers:
            append.advance(self.producers)
        if leader_epoch > self.epochs.latest:
            self.begin_epoch(leader_epoch)
        self.reserved_offset = append.end_offset
        self._reserved_position = end
        self._under_way.append(append)
        return append

    def _make_room(self, totals: BatchTotals, now_ms: int) -> None:
        """Make sure that the disk and the active segment can take these."""
        self.context.space.take(totals.size)
        if self.may_roll(totals):
            self._maybe_roll(totals, now_ms)

    def may_roll(self, totals: BatchTotals) -> bool:
        """Whether the log may have to roll before all of these are appended."""
        size, offset_count, _, newest_ms, _ = totals
        return self._roll_watch.must_look(
            self._reserved_position + size, newest_ms, self.reserved_offset + offset_count
        )

    def begin_epoch(self, leader_epoch: int) -> None:
        """Note that the next append is the first of this epoch.

        Appends in progress are of an earlier one. So the epoch begins where they will end.
        """
        if self.epochs.assign(leader_epoch, self.reserved_offset):
            self.save_epochs()

    def _maybe_roll(self, totals: BatchTotals, now_ms: int) -> None:
        """Roll if the active segment must not take these.

        Always called before the first append, so a new log's files are made here.
        """
        if self.is_truncating:
            raise ApiError(Error.NOT_LEADER_OR_FOLLOWER, f"{self.partition} is being truncated")
        if not self.is_made:
            self.context.make(self)
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
        if ahead > 0 and end > segment.preallocated and context.space.has_room(ahead):
            reserve_space(segment, end + ahead)

    def publish(self, append: Append, now_ms: int) -> None:
        """Make a reserved append, which is now written, part of the log."""
        if append.duplicate is not None:
            return
        assert append is self._under_way[0], (
            "appends are published in order, and none was abandoned"
        )
        self._under_way.popleft()
        self._publish(
            append.segment, append.position, append.batches, append.offsets, append.totals, now_ms
        )
        self._maybe_truncate()

    def _publish(
        self,
        segment: Segment,
        position: int,
        batches: Sequence[Batch],
        offsets: Sequence[int],
        totals: BatchTotals,
        now_ms: int,
    ) -> None:
        """Move the log end offset past these batches, and update all that depends on it."""
        # The end first: if an index cannot be written, the batches are in the file nevertheless.
        recent, start_offset = self.recent, offsets[0]
        if len(recent) >= _RECENT_MAX:
            recent.clear()
        recent[start_offset] = position
        self.end_offset = end_offset = start_offset + totals.offset_count
        self.is_changed = True
        segment.modified_ms = now_ms
        note(segment, position, batches, offsets, totals, self.settings.index_interval_bytes)
        context = self.context
        if self.unflushed_since_ms is None:
            self.unflushed_since_ms = now_ms
            context.unflushed.add(self)
        if segment.size - segment.written_back >= self._writeback_step_bytes:
            context.start_writeback(segment)
        if end_offset - self.recovery_point >= self.settings.flush_messages:
            context.want_flush(self)
        metrics = context.metrics
        metrics.appended_batches += len(batches)
        metrics.appended_records += totals.record_count
        metrics.appended_bytes += totals.size

    def abandon(self, append: Append) -> None:
        """Undo an append that failed, and all that were reserved after it.

        No write of this log may be running. What reached the file is cut off again.
        """
        while append in self._under_way:
            latest = self._under_way.pop()
            for producer_id, producer in (latest.producers or {}).items():
                self.producers.restore(producer_id, producer)
        self.forget_reserved()
        newest = self.epochs.entries[-1:]
        if newest and newest[0].start_offset > self.end_offset:
            self.begin_epoch(newest[0].epoch)  # it was to begin after what is abandoned
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
        # In this order: on a full disk no new segment is left behind for a start to fail on.
        self.active.seal()
        following = Segment.create(self.context.files, self.directory, self.end_offset, now_ms)
        self.sealed_unsynced.append(self.active)
        self.segments.append(following)
        self.renamed_in.add(self.directory)
        self.forget_reserved()
        self.save_producers()
        self._roll_watch = RollWatch(self.settings, self.context.rng)
        self.context.metrics.rolled_segments += 1
        self.context.want_flush(self)

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

    def end_truncation(self) -> None:
        """Take appends, reads and flushes again."""
        self.is_busy = self.is_truncating = False
        self.truncating_from = INT64_MAX

    def close_idle(self) -> None:
        """Close the files of segments that nobody is using; the next use reopens them."""
        for segment in self.segments:
            if segment.base_offset < self.truncating_from:
                segment.close_idle()

    def complete(self) -> None:
        """Prepare a clean stop; a flush must follow."""
        assert not self._under_way
        self.active.seal()
        self.sealed_unsynced.append(self.active)
        self.save_producers()
        self.save_epochs()

    def close(self) -> None:
        """Close all files for good, each once nobody uses it."""
        for segment in self.segments:
            segment.close()

    def save_producers(self) -> None:
        """Have the next flush write a producer snapshot at the log end offset."""
        name = segment_name(self.end_offset, Suffix.SNAPSHOT)
        self.files_to_save[f"{self.directory}/{name}"] = encode_snapshot(self.producers)

    def note_epoch(self, span: BatchSpan) -> None:
        """Account for the leader epoch of batches that are in the log."""
        if span.leader_epoch >= 0:
            self.epochs.assign(span.leader_epoch, span.base_offset)

    def save_epochs(self) -> None:
        """Have the next flush write the leader epochs."""
        self.files_to_save[f"{self.directory}/{LEADER_EPOCHS}"] = encode_epochs(self.epochs)

    def rebuild_indexes(self, segment: Segment) -> None:
        """Rebuild a segment's indexes; the next flush makes them durable."""
        segment.rebuild_indexes(self.settings.index_interval_bytes)
        if segment is not self.active:  # on a full disk they are still in memory
            self.sealed_unsynced.append(segment)
        self.is_changed = True
