"""The broker's cleaner: looks for dirty logs, has one at a time cleaned, and swaps its segments.

It decides, and changes logs; its worker, another process, reads segments and writes new ones. What
else happens to a log goes first: a pass over one that was deleted or truncated is given up.

Nothing at or above the high watermark, the last stable offset or the recovery point is cleaned: so
what a record was removed for is committed and on this disk. Tombstones past their horizon go only
while every replica is in sync, so that none misses one (docs/guides/compaction.md).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import NamedTuple, TypeVar

from kdist.config.storage import StorageSettings
from kdist.errors import ApiError, DiskFailed, OutOfDescriptors
from kdist.metrics.cleaner import CleanerMetrics
from kdist.model import TopicPartition
from kdist.records.cleaning import SLOT_BYTES
from kdist.runtime.tasks import Timer
from kdist.storage.cleaning.requests import (
    Fault,
    MapKeys,
    NoteProducers,
    Report,
    Rewrite,
    Source,
)
from kdist.storage.cleaning.selection import Dirt, SegmentFacts, find_dirt, group_segments
from kdist.storage.cleaning.swap import Swap
from kdist.storage.cleaning.worker import CleaningWorker
from kdist.storage.directory import LogDirectory
from kdist.storage.log import Log
from kdist.storage.names import FileState, snapshot_offset
from kdist.storage.producers import Producer
from kdist.storage.scan import DamagedSegment
from kdist.storage.segment import Segment
from kdist.storage.swapping import remove_all

logger = logging.getLogger(__name__)

T = TypeVar("T")

_DEATHS_MAX = 3  # on one partition, before it is left alone
_BACKOFF_TIMES_MAX = 20  # of `log.cleaner.backoff.ms`, after deaths in a row
_ASIDE_TIMES = 20  # of the same: for so long a log whose pass was given up comes after all others
_SECRET_BITS = 128
_PRODUCERS_AT_A_TIME = 4_000  # 3 ms of the loop
_ROOM_SHARE = 2  # of the reserve on the disk, this part is for the cleaner, which frees space


class CleanerHooks(NamedTuple):
    """What the cleaner asks of those who know more of a partition than its log."""

    high_watermark_of: Callable[[Log], int]
    is_fully_in_sync: Callable[[TopicPartition], bool]


class _Kept(NamedTuple):
    """A segment as it was when the pass began."""

    segment: Segment
    generation: int
    size: int

    @property
    def is_same(self) -> bool:
        return (self.segment.generation, self.segment.size) == (self.generation, self.size)

    @property
    def source(self) -> Source:
        return Source(self.segment.base_offset, self.size)


class _GivenUp(NamedTuple):
    """How the last pass over a log ended, which was not completed."""

    at_ns: int
    reason: str


class _Pass:
    """One pass over a log."""

    def __init__(self, log: Log, dirt: Dirt, began_ns: int) -> None:
        self.log = log
        self.dirt = dirt
        self.began_ns = began_ns
        self.first_dirty_before = log.first_dirty_offset
        self.mapped_end = dirt.first_dirty_offset
        # What is still to be read: the dirty segments while keys are mapped, then the groups.
        self.groups = [_kept(log, dirt.first_dirty_offset, dirt.end_offset)]
        self.producers: Iterator[tuple[int, Producer]] = iter(())  # still to be told of
        self.old_bytes = 0  # of the group that is being rewritten


class Cleaner:
    """Owner: the broker. Nothing happens before `start`, and nothing begins after `stop`."""

    def __init__(
        self,
        directory: LogDirectory,
        worker: CleaningWorker,
        hooks: CleanerHooks,
        metrics: CleanerMetrics,
    ) -> None:
        self._directory = directory
        self._context = directory.context
        self._settings = directory.context.settings
        self._worker = worker
        self._hooks = hooks
        self._metrics = metrics
        self._pass: _Pass | None = None
        self._timer: Timer | None = None
        self._is_stopped = False
        self._deaths_in_row = 0
        self._deaths_of: dict[Log, int] = {}
        self._uncleanable: dict[Log, str] = {}
        self._due_since_ns: dict[Log, int] = {}
        self._given_up: dict[Log, _GivenUp] = {}
        self._has_given_up = False  # the last pass, over whichever log
        metrics.due_seconds = self._due_seconds

    def start(self) -> None:
        """Look for a dirty log now, and then periodically."""
        if self._settings.cleaner_enable:
            self._look_later(0)

    def stop(self) -> None:
        """Give up the pass under way. A swap that has begun ends by itself."""
        self._is_stopped = True
        if self._timer is not None:
            self._timer.cancel()
        self._worker.abandon()

    def configure(self, settings: StorageSettings) -> None:
        """Take other settings: what is asked of the worker from here on has them."""
        backoff_ms, self._settings = self._settings.cleaner_backoff_ms, settings
        if self._timer is not None and settings.cleaner_backoff_ms < backoff_ms:
            self._timer.cancel()
            self._look_later(settings.cleaner_backoff_ms)

    def is_cleaning(self, log: Log | None = None) -> bool:
        """Whether a pass is under way, over this log or any."""
        return self._pass is not None and log in (None, self._pass.log)

    def _due_seconds(self) -> float:
        now_ns = self._context.clock.monotonic_ns()
        return (now_ns - min(self._due_since_ns.values(), default=now_ns)) / 1e9

    def _look_later(self, delay_ms: float) -> None:
        if not self._is_stopped:
            self._timer = self._context.tasks.call_later(delay_ms, self._look)

    # Choosing

    def _look(self) -> None:
        self._timer = None
        chosen = self._choose()
        if chosen is None:
            self._look_later(self._settings.cleaner_backoff_ms)
            return
        self._begin(*chosen)

    def _choose(self) -> tuple[Log, Dirt] | None:
        """The dirtiest log that is due, but those last whose pass was given up.

        Else one that lacks room, or a file, would keep all others from being cleaned. So that these
        do not keep it waiting for ever, it comes first once that is long ago, but only behind a
        pass that was completed: at most every second pass is for such a log while others are due.
        """
        self._forget()
        due = self._find_due()
        aside_ns = self._settings.cleaner_backoff_ms * _ASIDE_TIMES * 1_000_000
        long_ago_ns = self._context.clock.monotonic_ns() - aside_ns

        def rank(log: Log) -> tuple[bool, int, float]:
            given_up = self._given_up.get(log)
            if given_up is None:
                return False, 0, due[log].ratio
            has_turn = given_up.at_ns <= long_ago_ns and not self._has_given_up
            return has_turn, -given_up.at_ns, due[log].ratio

        log = max(due, key=rank, default=None)
        return None if log is None else (log, due[log])

    def _find_due(self) -> dict[Log, Dirt]:
        """The logs that are due and can be cleaned now."""
        clock, due = self._context.clock, dict[Log, Dirt]()
        for log in self._directory.logs.values():
            if not self._is_compacted(log) or log in self._uncleanable:
                continue
            if log.is_busy or not log.has_files:
                continue
            try:
                dirt = dirt_of(log, self._hooks.high_watermark_of(log), clock.now_ms())
            except DamagedSegment as damage:
                self._leave_alone(log, str(damage))
                continue
            except OutOfDescriptors:  # `Schedule` tells of it: perhaps at the next look
                continue
            if dirt.is_due(log.settings):
                due[log] = dirt
                self._due_since_ns.setdefault(log, clock.monotonic_ns())
            else:
                self._due_since_ns.pop(log, None)
        return due

    def _forget(self) -> None:
        """Forget the logs that are gone or no more compacted."""
        self._uncleanable = self._compacted(self._uncleanable)
        self._metrics.uncleanable_partitions = len(self._uncleanable)
        self._deaths_of = self._compacted(self._deaths_of)
        self._due_since_ns = self._compacted(self._due_since_ns)
        self._given_up = self._compacted(self._given_up)

    def _compacted(self, noted: dict[Log, T]) -> dict[Log, T]:
        """What is noted of logs that are there and compacted."""
        return {log: each for log, each in noted.items() if self._is_compacted(log)}

    def _is_compacted(self, log: Log) -> bool:
        is_open = self._directory.logs.get(log.partition) is log
        return is_open and "compact" in log.settings.cleanup_policy

    def _leave_alone(self, log: Log, reason: str) -> None:
        logger.error("%s is not cleaned any more: %s", log.partition, reason)
        self._uncleanable[log] = reason
        self._due_since_ns.pop(log, None)
        self._metrics.uncleanable_partitions = len(self._uncleanable)

    # A pass

    def _begin(self, log: Log, dirt: Dirt) -> None:
        self._pass = current = _Pass(log, dirt, self._context.clock.monotonic_ns())

        def saved(error: BaseException | None) -> None:
            if self._is_stopped:
                return
            if error is not None:
                self._give_up(current, str(error))
            else:
                self._map(current)

        # With a recovery point at or above all that is cleaned: beyond that, a start takes a gap
        # between segments for a loss.
        self._directory.saver.request(saved)

    def _map(self, current: _Pass) -> None:
        log, dirt = current.log, current.dirt
        if not self._is_there(current):
            self._give_up(current, "the log has changed meanwhile")
            return
        first = log.segment_index(dirt.first_dirty_offset)
        sources = tuple(Source(each.base_offset, each.size) for each in log.segments[first:])
        slot_count = min(
            self._settings.cleaner_dedupe_buffer_size // SLOT_BYTES,
            2 * (dirt.end_offset - dirt.first_dirty_offset) + 2,
        )
        secret = self._context.rng.getrandbits(_SECRET_BITS).to_bytes(_SECRET_BITS // 8, "big")
        request = MapKeys(
            directory=log.directory,
            sources=sources,
            first_dirty_offset=dirt.first_dirty_offset,
            end_offset=dirt.end_offset,
            slot_count=slot_count,
            secret=secret.hex(),
            bytes_per_second=self._settings.cleaner_io_max_bytes_per_second,
        )
        self._worker.ask(request, self._mapped)

    def _mapped(self, report: Report) -> None:
        current = self._take(report)
        if current is None:
            return
        current.mapped_end = report.end_offset
        log = current.log
        facts = [each for each in facts_of(log) if each.base_offset < current.mapped_end]
        groups = group_segments(facts, log.settings)
        current.groups = [_kept(log, each[0].base_offset, each[-1].end_offset) for each in groups]
        # As they are now: a batch that becomes a producer's last lies beyond all that is rewritten.
        current.producers = iter(log.published_producers.producers.items() if groups else ())
        self._next_producers(current)

    def _next_producers(self, current: _Pass) -> None:
        """Tell of producers, some at a time, since there may be 100,000; then go on."""
        some = list(islice(current.producers, _PRODUCERS_AT_A_TIME))
        if not some:
            self._next_group(current)
            return
        request = NoteProducers(
            producers=tuple(
                (number, each.batches[-1].last_offset) for number, each in some if each.batches
            ),
            unmarked=tuple((number, each.epoch) for number, each in some if not each.batches),
        )
        self._worker.ask(request, self._noted)

    def _noted(self, report: Report) -> None:
        current = self._take(report)
        if current is not None:
            self._next_producers(current)

    def _take(self, report: Report) -> _Pass | None:
        """The pass that a report is about, unless that is over."""
        current = self._pass
        assert current is not None
        self._metrics.read_bytes += report.read_bytes
        if report.fault != Fault.DIED:
            self._deaths_in_row = self._metrics.is_dead = 0
        if not self._is_there(current):
            self._give_up(current, "the log has changed meanwhile")
        elif report.fault:
            self._fail(current, Fault(report.fault), report.reason)
        else:
            return current
        return None

    def _is_there(self, current: _Pass) -> bool:
        """Whether all that is still to be read is there, as it was.

        Of a truncation in any of it the map may hold keys of what was cut off. One of what is done
        with may have been called off, but has lowered the recovery point, see `_begin`.
        """
        log = current.log
        is_same = log.first_dirty_offset == current.first_dirty_before
        is_same &= current.mapped_end <= log.recovery_point
        is_unchanged = self._is_compacted(log) and is_same and not log.is_truncating
        return is_unchanged and _is_whole(log, current.groups)

    def _next_group(self, current: _Pass) -> None:
        log = current.log
        if not self._is_there(current):
            self._give_up(current, "the log has changed meanwhile")
            return
        if not current.groups:
            self._complete(current)
            return
        group = current.groups[0]
        current.old_bytes = sum(each.size for each in group)
        if not self._has_room(current.old_bytes):
            self._give_up(current, f"the disk lacks the {current.old_bytes} bytes that it may need")
            return
        request = Rewrite(
            sources=tuple(each.source for each in group),
            modified_ms=max(each.segment.modified_ms for each in group),
            index_interval_bytes=log.settings.index_interval_bytes,
            now_ms=self._context.clock.now_ms(),
            delete_retention_ms=log.settings.delete_retention_ms,
            expires=self._hooks.is_fully_in_sync(log.partition),
            bytes_per_second=self._settings.cleaner_io_max_bytes_per_second,
        )
        self._worker.ask(request, self._rewritten)

    def _has_room(self, size: int) -> bool:
        free = self._directory.files.free_bytes(self._directory.path)
        return free - size >= self._settings.reserved_bytes // _ROOM_SHARE

    def _rewritten(self, report: Report) -> None:
        current = self._take(report)
        if current is None:
            return
        self._metrics.seen_records += report.seen_records
        self._metrics.removed_records += report.seen_records - report.kept_records
        if not report.is_changed:
            del current.groups[0]
            self._next_group(current)
            return
        self._metrics.removed_bytes += max(current.old_bytes - report.size, 0)
        self._swap(current)

    def _swap(self, current: _Pass) -> None:
        log = current.log
        if log.is_busy:
            self._directory.flusher.request(log, lambda _: self._swap(current))
            return
        if self._is_stopped or current is not self._pass:
            return
        if not self._is_there(current):
            self._give_up(current, "the log has changed meanwhile")
            return
        old = [each.segment for each in current.groups.pop(0)]
        Swap(self._directory, log, old, current.mapped_end, self._swapped).begin()

    def _swapped(self, error: BaseException | None) -> None:
        current = self._pass
        assert current is not None
        if self._is_stopped:
            return
        if error is not None:
            self._give_up(current, str(error))
        else:
            self._next_group(current)

    def _complete(self, current: _Pass) -> None:
        """All groups are swapped, durably: so the checkpoint may say so."""
        log, clock = current.log, self._context.clock
        self._pass = None
        log.note_cleaned(current.mapped_end)
        self._deaths_of.pop(log, None)
        self._given_up.pop(log, None)
        self._has_given_up = False
        self._due_since_ns.pop(log, None)
        self._directory.saver.request()
        self._metrics.passes += 1
        self._metrics.pass_seconds.observe((clock.monotonic_ns() - current.began_ns) / 1e9)
        self._look_later(0)

    # What may go wrong

    def _fail(self, current: _Pass, fault: Fault, reason: str) -> None:
        log = current.log
        if fault is Fault.DISK:
            self._context.on_failure(DiskFailed(log.directory, OSError(reason)))
            return
        if fault is Fault.DIED:
            self._metrics.deaths += 1
            self._metrics.is_dead = 1
            self._deaths_in_row += 1
            self._deaths_of[log] = self._deaths_of.get(log, 0) + 1
            if self._deaths_of[log] >= _DEATHS_MAX:
                self._leave_alone(log, f"the cleaner process died {_DEATHS_MAX} times on it")
        elif fault is Fault.DAMAGED:
            self._leave_alone(log, reason)
        self._give_up(current, reason)

    def _give_up(self, current: _Pass, reason: str) -> None:
        """End the pass, and try again later. What was swapped stays: it is right by itself."""
        log, files = current.log, self._directory.files
        before = self._given_up.get(log)
        is_told = before is not None and before.reason == reason  # a full disk may last for hours
        if not (is_told or log in self._uncleanable):
            logger.warning("%s: the cleaner gives up for now: %s", log.partition, reason)
        self._given_up[log] = _GivenUp(self._context.clock.monotonic_ns(), reason)
        self._has_given_up = True
        self._metrics.abandoned_passes += 1
        self._pass = None

        def clear() -> None:
            if not log.is_busy and files.exists(log.directory):
                remove_all(files, log.directory, FileState.CLEANED)

        def cleared(error: BaseException | None) -> None:
            if error is not None and not isinstance(error, ApiError | OSError):
                self._context.on_failure(error)
                return
            times = min(1 << self._deaths_in_row, _BACKOFF_TIMES_MAX)
            self._look_later(self._settings.cleaner_backoff_ms * times)

        self._context.tasks.run_blocking(clear, cleared)


def _kept(log: Log, start: int, end: int) -> list[_Kept]:
    """The segments with offsets from `start` to `end`, where one begins, as they are now."""
    segments = log.segments[log.segment_index(start) :]
    return [_Kept(each, each.generation, each.size) for each in segments if each.base_offset < end]


def _is_whole(log: Log, groups: Sequence[Sequence[_Kept]]) -> bool:
    """Whether the segments of these groups are still the log's, one behind the other."""
    kept = [each for group in groups for each in group]
    if not kept:
        return True
    number = log.segment_index(kept[0].segment.base_offset)
    present = log.segments[number : number + len(kept)]
    are_there = present == [each.segment for each in kept]
    return are_there and all(each.is_same for each in kept)


def facts_of(log: Log) -> list[SegmentFacts]:
    """What the selection looks at in each closed segment."""
    following = [segment.base_offset for segment in log.segments[1:]]
    return [
        SegmentFacts(
            base_offset=segment.base_offset,
            end_offset=end_offset,
            size_bytes=segment.size,
            index_bytes=segment.index_bytes,
            largest_timestamp_ms=segment.largest_timestamp[0],
            first_timestamp_ms=lambda segment=segment: segment.first_timestamp,  # type: ignore[misc]
        )
        for segment, end_offset in zip(log.segments, following, strict=False)
    ]


def dirt_of(log: Log, high_watermark: int, now_ms: int) -> Dirt:
    """How dirty a log is, up to what may be cleaned."""
    unstable = log.producers.first_unstable_offset
    limit = min(high_watermark, log.recovery_point, log.active.base_offset)
    limit = limit if unstable is None else min(limit, unstable)
    # A truncation loads the producers from the snapshot at the end of what was cleaned: the batches
    # before it may be gone, for newer ones that it cuts off. So that must be on the disk.
    unsaved = (snapshot_offset(path.rpartition("/")[2]) for path in log.files_to_save)
    limit = min([limit, *(offset - 1 for offset in unsaved if offset is not None)])
    first_dirty = max(log.first_dirty_offset or 0, log.start_offset)
    return find_dirt(facts_of(log), first_dirty, limit, log.settings, now_ms)
