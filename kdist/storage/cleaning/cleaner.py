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
from contextlib import suppress
from itertools import islice
from typing import NamedTuple, Protocol, Self, TypeVar

from kdist.config.storage import StorageSettings
from kdist.errors import ApiError, CorruptFile, CorruptRecords, DiskFailed, OutOfDescriptors
from kdist.metrics.storage import CleanerMetrics
from kdist.model import TopicPartition
from kdist.records.cleaning import SLOT_BYTES
from kdist.runtime.clock import Clock
from kdist.runtime.files import Files
from kdist.runtime.process import Process
from kdist.runtime.programs import LineChild
from kdist.runtime.tasks import Tasks, Timer
from kdist.storage.cleaning.pass_runner import PassRunner
from kdist.storage.cleaning.requests import (
    Fault,
    MapKeys,
    NoteProducers,
    Report,
    Request,
    Rewrite,
    Source,
    decode_report,
    encode_request,
)
from kdist.storage.cleaning.selection import (
    DirtySection,
    closed_segments,
    dirty_section_of,
    group_segments,
)
from kdist.storage.directory import LogDirectory
from kdist.storage.log import Log
from kdist.storage.names import Suffix, segment_name
from kdist.storage.producers import ProducerState, ProducerStates, load_snapshot
from kdist.storage.scan import DamagedSegment
from kdist.storage.segment import Segment
from kdist.storage.swapping import Swap, remove_cleaned

logger = logging.getLogger(__name__)

T = TypeVar("T")
OnReport = Callable[[Report], None]

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

    @classmethod
    def of(cls, segment: Segment) -> Self:
        """The segment as it is now."""
        return cls(segment, segment.generation, segment.size)

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

    def __init__(self, log: Log, section: DirtySection, began_ns: int) -> None:
        self.log = log
        self.section = section
        self.began_ns = began_ns
        self.first_dirty_before = log.first_dirty_offset
        self.mapped_end = section.first_dirty_offset
        # What is still to be read: the dirty segments while keys are mapped, then the groups.
        dirty = log.segments[log.segment_index(section.first_dirty_offset) :]
        self.groups = [[_Kept.of(each) for each in dirty if each.base_offset < section.end_offset]]
        self.producers: Iterator[tuple[int, ProducerState]] = iter(())  # still to be told of
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

    def _choose(self) -> tuple[Log, DirtySection] | None:
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

    def _find_due(self) -> dict[Log, DirtySection]:
        """The logs that are due and can be cleaned now."""
        clock, due = self._context.clock, dict[Log, DirtySection]()
        for log in self._directory.logs.values():
            if not self._is_compacted(log) or log in self._uncleanable:
                continue
            if log.is_busy or not log.has_files:
                continue
            try:
                section = dirty_section_of(log, self._hooks.high_watermark_of(log), clock.now_ms())
            except DamagedSegment as damage:
                self._leave_alone(log, str(damage))
                continue
            except OutOfDescriptors:  # `Schedule` tells of it: perhaps at the next look
                continue
            if section.is_due(log.settings):
                due[log] = section
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

    def _begin(self, log: Log, section: DirtySection) -> None:
        self._pass = current = _Pass(log, section, self._context.clock.monotonic_ns())

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
        log, section = current.log, current.section
        if not self._is_there(current):
            self._give_up(current, "the log has changed meanwhile")
            return
        first = log.segment_index(section.first_dirty_offset)
        sources = tuple(Source(each.base_offset, each.size) for each in log.segments[first:])
        slot_count = min(
            self._settings.cleaner_dedupe_buffer_size // SLOT_BYTES,
            2 * (section.end_offset - section.first_dirty_offset) + 2,
        )
        secret = self._context.rng.getrandbits(_SECRET_BITS).to_bytes(_SECRET_BITS // 8, "big")
        request = MapKeys(
            directory=log.directory,
            sources=sources,
            first_dirty_offset=section.first_dirty_offset,
            end_offset=section.end_offset,
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
        closed = closed_segments(log.segments)
        cleaned = (each for each in closed if each.segment.base_offset < current.mapped_end)
        groups = group_segments(cleaned, log.settings)
        current.groups = [[_Kept.of(each.segment) for each in group] for group in groups]
        if groups and self._hooks.high_watermark_of(log) < log.end_offset:
            self._load_producers(current)
            return
        # As they are now: a batch that becomes a producer's last lies beyond all that is rewritten.
        current.producers = iter(log.published_producers.producers.items() if groups else ())
        self._next_producers(current)

    def _load_producers(self, current: _Pass) -> None:
        """Go on with the producers as they were where the dirty section ends, by the snapshot that
        was flushed with it: what is not committed may be cut off, and the last batch before that is
        a producer's last again, which whoever copies the log is to know."""
        log, states = current.log, list[ProducerStates]()
        name = segment_name(current.section.end_offset, Suffix.SNAPSHOT)

        def load() -> None:
            with suppress(FileNotFoundError, CorruptFile):  # the broker that wrote it was another
                states.append(load_snapshot(self._directory.files, f"{log.directory}/{name}"))

        def loaded(error: BaseException | None) -> None:
            if self._is_stopped:
                return
            if error is not None and not isinstance(error, ApiError | OSError):
                self._context.on_failure(error)
                return
            if error is not None or not self._is_there(current):
                self._give_up(current, str(error or "the log has changed meanwhile"))
                return
            found = states[0] if states else log.published_producers
            current.producers = iter(found.producers.items())
            self._next_producers(current)

        self._context.tasks.run_blocking(load, loaded)

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
        flusher, mapped_end = self._directory.flusher, current.mapped_end
        Swap(self._context, flusher, log, old, mapped_end, self._swapped).begin()

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
                remove_cleaned(files, log.directory)

        def cleared(error: BaseException | None) -> None:
            if error is not None and not isinstance(error, ApiError | OSError):
                self._context.on_failure(error)
                return
            times = min(1 << self._deaths_in_row, _BACKOFF_TIMES_MAX)
            self._look_later(self._settings.cleaner_backoff_ms * times)

        self._context.tasks.run_blocking(clear, cleared)


def _is_whole(log: Log, groups: Sequence[Sequence[_Kept]]) -> bool:
    """Whether the segments of these groups are still the log's, one behind the other."""
    kept = [each for group in groups for each in group]
    if not kept:
        return True
    number = log.segment_index(kept[0].segment.base_offset)
    present = log.segments[number : number + len(kept)]
    are_there = present == [each.segment for each in kept]
    return are_there and all(each.is_same for each in kept)


class CleaningWorker(Protocol):
    """Answers one request at a time."""

    def ask(self, request: Request, on_report: OnReport) -> None:
        """Have it done, then call `on_report`, on the owner's thread, unless abandoned."""
        ...

    def abandon(self) -> None:
        """End what is being done, as soon as may be; its report does not come."""
        ...


class ChildWorker:
    """Asks a process of its own, at idle priority, which ends with the broker."""

    def __init__(self, process: Process, argv: Sequence[str]) -> None:
        self._child = LineChild(process, argv, "cleaner process")

    def ask(self, request: Request, on_report: OnReport) -> None:
        """As `CleaningWorker.ask`."""

        def answered(line: bytes | None, how: str) -> None:
            try:
                report = None if line is None else decode_report(line)
            except CorruptRecords as fault:  # of what it writes from here on nothing is sure
                self._child.abandon()
                report, how = None, str(fault)
            on_report(report or Report(fault=Fault.DIED, reason=f"the cleaner process: {how}"))

        self._child.ask(encode_request(request), answered)

    def abandon(self) -> None:
        """As `CleaningWorker.abandon`."""
        self._child.abandon()


class ThreadWorker:
    """Answers on a thread of the broker's own: for tests, which have no other process."""

    def __init__(self, files: Files, clock: Clock, tasks: Tasks) -> None:
        self._tasks = tasks
        self._runner = PassRunner(files, clock, lambda _ms: None)
        self._asked = 0

    def ask(self, request: Request, on_report: OnReport) -> None:
        """As `CleaningWorker.ask`."""
        self._asked += 1
        number, reports = self._asked, list[Report]()

        def done(error: BaseException | None) -> None:
            if error is not None:
                raise error
            if number == self._asked:
                on_report(reports[0])

        self._tasks.run_blocking(lambda: reports.append(self._runner.answer(request)), done)

    def abandon(self) -> None:
        """As `CleaningWorker.abandon`."""
        self._asked += 1
