"""Taking records out of logs: from the end, from the start, or all of them.

    the end      `Trimmer.truncate`, after a change of leader; `truncate`, for `kdist log trim`
    the start    `Trimmer.delete_records`, and `Trimmer.retain` for segments that are past retention
    all          `Trimmer.truncate_fully`, where a leader's log has nothing of this one

A truncation is planned on the owner's thread, cuts the files in `run`, which may block and runs on
another thread, and is taken in by `finish` on the owner's again. Until then only `run` touches the
segments concerned: appends are refused, and readers are told that there is nothing yet.

From the start only whole segments are removed, from the oldest on, each for one of three reasons:
it lies wholly below the log start offset, the log has `retention.bytes` without it, or its newest
record is older than `retention.ms`. The first that must stay ends this. Only segments below the
high watermark are deleted. The active segment never is: if it is due, the log rolls first. The
rules are Kafka's (UnifiedLog.deleteOldSegments). `plan_retention` decides (pure).

A power loss may come between any two steps, hence their order. At the end: first the checkpoint,
lowered, then the files, from the last segment backwards. At the start: first the log start offset,
saved, then the files, from the first segment forwards. So what is left has no hole.
"""

from __future__ import annotations

import enum
import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import NamedTuple

from kdist.errors import ApiError, DiskFailed, DiskFull, Error
from kdist.model import TopicPartition
from kdist.runtime.steps import run_steps
from kdist.runtime.tasks import Done
from kdist.storage.background import DirectoryContext, OffsetSaver
from kdist.storage.flushing import Flusher
from kdist.storage.loading import loaded_producers
from kdist.storage.log import Log
from kdist.storage.names import FileState
from kdist.storage.producers import discard_snapshots
from kdist.storage.scan import DamagedSegment
from kdist.storage.segment import Segment

logger = logging.getLogger(__name__)


class Trimmer:
    """Owner: the log directory, whose logs these are."""

    def __init__(
        self,
        context: DirectoryContext,
        logs: Mapping[TopicPartition, Log],
        saver: OffsetSaver,
        flusher: Flusher,
    ) -> None:
        self._context = context
        self._logs = logs
        self._saver = saver
        self._flusher = flusher
        # Called with each log whose start offset has moved, or whose end was truncated.
        self.on_bounds_moved: list[Callable[[Log], None]] = []

    def truncate(
        self,
        log: Log,
        offset: int,
        done: Done,
        is_wanted: Callable[[], bool] = lambda: True,
        *,
        lowers_start: bool = False,
    ) -> None:
        """Truncate the log to `offset`, durably, then call `done`.

        It begins once a flush and the appends under way have ended, and is done in a thread. If it
        is not wanted any more, up to the moment before the first file is touched, `done` gets
        NOT_LEADER_OR_FOLLOWER: this broker may lead by now, and have appended before. If it leads
        from a later moment on, its epoch begins where the log then ends.
        Meanwhile appends are refused with NOT_LEADER_OR_FOLLOWER, and reads of the segments to be
        cut find nothing. Waits for a flush of what is cut off fail with NOT_LEADER_OR_FOLLOWER.
        After an `ApiError`, as `DiskFull`, the log is as it was.
        """
        if log.is_busy:
            again = partial(self.truncate, log, offset, done, is_wanted, lowers_start=lowers_start)
            self._flusher.request(log, lambda _: again())
            return
        if not is_wanted():
            done(_unwanted(log))
            return
        if log.start_offset < offset < log.compacted_for_offset:
            # What compaction removed below may have had its later record in what is cut off.
            logger.warning("%s is truncated to %d, where it is compacted: all of it goes, and is"
                " fetched again", log.partition, offset)  # fmt: skip
            offset = log.start_offset
        if not log.is_appending and offset >= log.end_offset:
            log.truncate_epochs()
            done(None)
            return
        if log.is_swapping:  # which waits for room to rename files, as this would
            done(DiskFull(log.directory))
            return
        begin = partial(self._truncate, log, offset, done, is_wanted, lowers_start)
        log.begin_truncation(lambda: self._context.tasks.call_soon(begin))

    def _truncate(
        self,
        log: Log,
        offset: int,
        done: Done,
        is_wanted: Callable[[], bool],
        lowers_start: bool,
    ) -> None:
        """Truncate, now that no append is under way."""
        if not is_wanted():
            self._end_truncation(log, done, _unwanted(log))
            return
        if offset >= log.end_offset:
            log.truncate_epochs()
            self._end_truncation(log, done, None)
            return
        truncation = Truncation(log, offset, self._now_ms(), lowers_start=lowers_start)

        def saved(error: BaseException | None) -> None:
            if error is None and not is_wanted():
                error = _unwanted(log)
            if error is None:
                self._context.tasks.run_blocking(truncation.run, ended)
            else:
                ended(error)

        def ended(error: BaseException | None) -> None:
            if error is not None and not isinstance(error, ApiError):
                # After a failed sync, a flush would confirm lost data, so the log stays busy.
                self._context.on_failure(error)
                done(error)
                return
            if error is None:
                truncation.finish()
            else:
                truncation.give_up()
            self._end_truncation(log, done, error)

        self._saver.request(saved)

    def _end_truncation(self, log: Log, done: Done, error: ApiError | None) -> None:
        log.end_truncation()
        self._bounds_moved(log)
        # Even if truncation failed: a flush requested meanwhile has been waiting.
        self._flusher.request(log, done if error is None else None)
        self._flusher.cut(log, log.end_offset, ApiError(Error.NOT_LEADER_OR_FOLLOWER))
        if error is not None:
            done(error)

    def truncate_fully(
        self, log: Log, offset: int, done: Done, is_wanted: Callable[[], bool] = lambda: True
    ) -> None:
        """Drop all records, and have the log begin at `offset`, outside of it; then call `done`.

        For a replica of which its leader has deleted all that follows, or has nothing but what is
        before it. After a power loss the log has the first of its records, or none. `is_wanted` and
        errors are as for `truncate`.
        """

        def emptied(error: BaseException | None) -> None:
            if error is None and (log.is_busy or not is_wanted()):
                self.truncate_fully(log, offset, done, is_wanted)  # or refuse to
                return
            if error is None and log.start_offset != offset:
                error = self._context.refusal(partial(log.truncate_fully, offset, self._now_ms()))
            if error is not None:
                done(error)
                return
            self._bounds_moved(log)
            self._saver.request(saved)  # before it takes records below the start that was saved

        def saved(error: BaseException | None) -> None:
            if error is None and not log.is_closed:  # as by a deletion meanwhile
                self._flusher.request(log, done)
            else:
                done(error or _unwanted(log))

        is_below = offset < log.start_offset
        end = offset if is_below else log.start_offset
        self.truncate(log, end, emptied, is_wanted, lowers_start=is_below)

    def _now_ms(self) -> int:
        return self._context.clock.now_ms()

    def delete_records(self, log: Log, offset: int, done: Done) -> None:
        """Advance the log start offset to `offset`; call `done` once that is durable.

        Then the segments that lie wholly below it are deleted, and no other: what is past retention
        waits for its check. NOT_LEADER_OR_FOLLOWER while the log is being truncated.
        """
        log.delete_records(offset)
        start_offset = log.start_offset  # by then another call may have moved it, yet to be saved
        self._bounds_moved(log)

        def saved(error: BaseException | None) -> None:
            if error is None:
                log.epochs.truncate_from_start(start_offset)
                below = log.segments[: log.segment_index(start_offset)]
                if below:
                    logger.info("%r: %d segments lie below its start", log, len(below))
                    self._drop(log, below, is_start_saved=True)
            done(error)

        self._saver.request(saved)

    def retain(self, high_watermark_of: Callable[[Log], int]) -> int:
        """Delete the segments past retention; return how many."""
        now_ms = self._now_ms()
        gone = [
            (log, release(log, high_watermark_of(log), now_ms))
            for log in self._logs.values()
            if not (log.is_truncating or log.is_swapping)
        ]
        gone = [(log, segments) for log, segments in gone if segments]
        for log, _ in gone:
            self._bounds_moved(log)

        def drop_all(error: BaseException | None) -> None:
            for log, segments in gone:
                left = [segment for segment in segments if segment in log.segments]
                self._drop(log, left, is_start_saved=error is None)

        if gone:
            self._saver.request(drop_all)
        return sum(len(segments) for _, segments in gone)

    def _drop(self, log: Log, segments: Sequence[Segment], *, is_start_saved: bool) -> None:
        """Remove segments below the start offset, unless the log was deleted in the meantime.

        While it is being changed they wait for the next check of retention.
        """
        is_there = self._logs.get(log.partition) is log
        if is_there and not (log.is_truncating or log.is_swapping):
            self._context.refusal(partial(drop, log, segments, is_start_saved=is_start_saved))

    def _bounds_moved(self, log: Log) -> None:
        for callback in self.on_bounds_moved:
            callback(log)


def _unwanted(log: Log) -> ApiError:
    return ApiError(Error.NOT_LEADER_OR_FOLLOWER, f"{log.partition} is not to be truncated")


# The end


class Truncation:
    """Drops the batch that holds an offset, and all after it. Owner: whoever truncates the log.

    The saved recovery point must not be above the log's when `run` begins: records appended
    afterwards will not be synced, whatever an old checkpoint said of these offsets.
    """

    def __init__(self, log: Log, offset: int, now_ms: int, *, lowers_start: bool = False) -> None:
        """No append may be under way. Lowers the log's recovery point.

        With `lowers_start` a log that starts behind `offset` then starts there, without records, or
        as near as its first segment allows.
        """
        assert not log.is_appending
        self._log = log
        self._offset = max(
            offset, log.segments[0].base_offset if lowers_start else log.start_offset
        )
        self._now_ms = now_ms
        self._number = number = log.segment_index(self._offset)
        self._segment = log.segments[number]
        self._dropped = log.segments[:number:-1]
        self._retired: list[str] = []  # new paths of the dropped segments' files
        self._replacement: Segment | None = None
        self._compacted_for_offset = log.compacted_for_offset
        log.begin_cut(number)

    def run(self) -> None:
        """Cut the files. Blocks.

        After `DiskFull`, and `DamagedSegment` before the cut, they are as they were. The producers
        are loaded first, since that may fail too.
        """
        log, segment = self._log, self._segment
        files, start_offset = log.context.files, min(log.start_offset, self._offset)
        found = segment.find_despite_index(self._offset)
        position, start = segment.size, self._offset
        if found is not None:  # else nothing in the segment is at or after the offset
            position, start = found[0], min(start, found[1].base_offset)
        self._end_offset = end_offset = max(start, start_offset)
        self._producers = run_steps(loaded_producers(log, end_offset, own=self._own))
        kept = {each.base_offset for each in log.segments[: self._number + 1]} | {end_offset}
        try:
            for each in self._dropped:
                self._retired += each.retire()
            discard_snapshots(files, log.directory, kept)
            # Otherwise a segment or snapshot of the records cut off could come back after a power
            # loss, among those appended from here on.
            files.sync_directory(log.directory)
            if start < start_offset:  # only the batch that contains the log start offset is left
                # It goes with its segment: what it had of later offsets would look like the log's.
                self._retired += segment.retire()
                self._replacement = Segment.create(files, log.directory, start_offset, self._now_ms)
                self._dropped.append(segment)
            elif position < segment.size:
                self._cut(position, start)
        except DiskFull:
            self._put_back()
            raise

    def _own(self, segment: Segment) -> Segment:
        """A segment that this thread may use: those before the cut are read by others."""
        return segment if segment is self._segment else segment.reopened(self._log.context.files)

    def _cut(self, position: int, offset: int) -> None:
        """Cut the segment and its indexes at `position`, where the batch at `offset` begins."""
        segment, interval_bytes = self._segment, self._log.settings.index_interval_bytes
        segment.sync_targets(is_sealed=True)  # opens all files now, so that no open fails half-way
        segment.cut(position)
        try:
            walk = segment.walk_spans(segment.restart_indexes(offset), interval_bytes)
            for place, span, _ in walk:
                segment.note_span(place, span, interval_bytes)
        except DamagedSegment as damage:  # older damage, below the cut
            logger.error("%s: the rest of this segment cannot be read", damage)
            segment.size = position
        segment.prime_tail()

    def _put_back(self) -> None:
        """Undo the renames, from the lowest segment on, so that a kill leaves no hole."""
        files = self._log.context.files
        try:
            for path in reversed(self._retired):
                files.rename(path, path.removesuffix(FileState.DELETED))
        except DiskFull as error:
            reason = "a truncation finds no room to be completed or undone"
            raise DiskFailed(error.path, OSError(reason)) from error

    def finish(self) -> None:
        """Take in what `run` has done, on the owner's thread."""
        self._log.finish_cut(
            self._end_offset, self._producers, self._dropped, self._retired, self._replacement
        )

    def give_up(self) -> None:
        """`run` has put all files back, if it ran: the log is as it was, but for its recovery point
        and what counts as clean."""
        self._log.give_up_cut(self._compacted_for_offset)


def truncate(log: Log, offset: int, now_ms: int) -> None:
    """Truncate at once, where no loop waits. After an error but `DiskFailed` nothing is changed."""
    log.begin_truncation(lambda: None)
    try:
        truncation = Truncation(log, offset, now_ms)
        truncation.run()
        truncation.finish()
    finally:
        log.end_truncation()


# The start


class SegmentFacts(NamedTuple):
    """What retention looks at in a segment."""

    base_offset: int
    size_bytes: int
    largest_timestamp_ms: int | None  # None if no record has a timestamp
    modified_ms: int  # when its file last changed: stands in for the timestamp

    @property
    def newest_ms(self) -> int:
        """The time that retention counts from."""
        timestamp = self.largest_timestamp_ms
        return self.modified_ms if timestamp is None or timestamp < 0 else timestamp


class RetentionLimits(NamedTuple):
    """What a log keeps. A topic without `delete` in its `cleanup.policy` has both limits at -1."""

    retention_ms: int  # -1 for no limit
    retention_bytes: int  # negative for no limit
    log_start_offset: int
    high_watermark: int
    log_end_offset: int


class DeletionReason(enum.StrEnum):
    """Why a segment is deleted, as the end of a log line's sentence."""

    LOG_START_OFFSET = "lies below the log start offset"
    SIZE = "is above retention.bytes"
    TIME = "is older than retention.ms"


class DueSegment(NamedTuple):
    """One segment that is due for deletion."""

    base_offset: int
    reason: DeletionReason


class RetentionPlan(NamedTuple):
    """What to delete, oldest first."""

    delete: tuple[DueSegment, ...] = ()
    roll_first: bool = False  # the active segment is among them: roll the log, then delete


def plan_retention(
    segments: Sequence[SegmentFacts], limits: RetentionLimits, now_ms: int
) -> RetentionPlan:
    """Decide about all segments of a log, given in order; the last is the active one."""
    excess_bytes = sum(segment.size_bytes for segment in segments) - limits.retention_bytes
    delete: list[DueSegment] = []
    for index, segment in enumerate(segments):
        is_active = index == len(segments) - 1
        end_offset = limits.log_end_offset if is_active else segments[index + 1].base_offset
        if end_offset > limits.high_watermark or (is_active and not segment.size_bytes):
            break
        if not is_active and end_offset <= limits.log_start_offset:
            reason = DeletionReason.LOG_START_OFFSET
        elif limits.retention_bytes >= 0 and segment.size_bytes <= excess_bytes:
            reason = DeletionReason.SIZE
        elif limits.retention_ms >= 0 and now_ms - segment.newest_ms > limits.retention_ms:
            reason = DeletionReason.TIME
        else:
            return RetentionPlan(tuple(delete))
        delete.append(DueSegment(segment.base_offset, reason))
        excess_bytes -= segment.size_bytes
    return RetentionPlan(tuple(delete), len(segments) > 0 and len(delete) == len(segments))


def release(log: Log, high_watermark: int, now_ms: int) -> list[Segment]:
    """Advance the log start offset past the segments due for deletion, and return those.

    The caller saves the start offsets of all logs at once, then calls `drop`: a power loss in
    between leaves segments that nobody reads, never a hole.
    """
    plan = plan_retention([_facts(s) for s in log.segments], _limits(log, high_watermark), now_ms)
    delete = plan.delete
    if plan.roll_first and not _can_roll(log, now_ms):
        delete = delete[:-1]  # the next check will find the last one again
    for deletion in delete:
        logger.info("%s: deleting segment %d, which %s", log.partition, *deletion)
    gone = log.segments[: len(delete)]
    if gone:
        log.delete_records(log.segments[len(gone)].base_offset)
    return gone


def _can_roll(log: Log, now_ms: int) -> bool:
    """Roll the log; False if an append is in progress or the disk is full."""
    if log.is_appending:
        return False
    try:
        log.roll(now_ms)
    except DiskFull as error:
        logger.warning("%s", error)
        return False
    return True


def drop(log: Log, segments: Sequence[Segment], *, is_start_saved: bool) -> None:
    """Remove segments that lie below the start offset.

    They are removed even if the start offset could not be saved, for lack of space, but then each
    durably before the next: one that came back alone after a power loss would leave a hole.
    """
    metrics = log.context.metrics
    for segment in segments:
        log.retire([segment])
        metrics.deleted_segments += 1
        metrics.deleted_bytes += segment.size
        if not is_start_saved:
            log.context.files.sync_directory(log.directory)
    discard_snapshots(log.context.files, log.directory, log.forget_snapshots())
    log.epochs.truncate_from_start(log.segments[0].base_offset)


def _facts(segment: Segment) -> SegmentFacts:
    timestamp = segment.largest_timestamp[0]
    return SegmentFacts(segment.base_offset, segment.size, timestamp, segment.modified_ms)


def _limits(log: Log, high_watermark: int) -> RetentionLimits:
    settings = log.settings
    deletes = "delete" in settings.cleanup_policy
    return RetentionLimits(
        retention_ms=settings.retention_ms if deletes else -1,
        retention_bytes=settings.retention_bytes if deletes else -1,
        log_start_offset=log.start_offset,
        high_watermark=high_watermark,
        log_end_offset=log.end_offset,
    )
