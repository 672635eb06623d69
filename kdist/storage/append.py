"""One append: batches with their place in a log, and on the disk, until they are published.

And whether there is that place: `RollWatch` says when the active segment must be closed first, by
Kafka's rules (LogSegment.shouldRoll), and `DiskSpace` when the disk is too full. Both are asked
before every append, and mostly answer by a comparison.
"""

from __future__ import annotations

import enum
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType

from kdist.config.kinds import INT64_MAX
from kdist.config.topic import TopicSettings
from kdist.errors import ApiError, CorruptRecords, DiskFull, Error, OutOfDescriptors
from kdist.model import NO_EPOCH, NO_TIMESTAMP
from kdist.records.batch import Batch, BatchHeader, crc_fault, header_fault, is_partial, read_header
from kdist.records.codec import BatchSpan, BatchTotals, find_span, producer_headers
from kdist.runtime.files import Buffer, Files
from kdist.storage.producers import BATCHES_KEPT, Duplicate, ProducerState, ProducerStates, replay
from kdist.storage.scan import RELATIVE_OFFSET_MAX, DamagedSegment
from kdist.storage.segment import Segment

_TRUST_NONE = 0  # every batch's CRC is checked
_NOTHING = BatchTotals(0, 0, 0, 0, has_producers=False)
# Ask the filesystem again after this many bytes: others may write to it, and deletes free space.
_ASK_AFTER_BYTES = 64 << 20
_INDEX_ENTRY_MAX = 12  # bytes of an entry in the larger index


OnEnd = Callable[["Append | ApiError"], None]


class Append:
    """The offsets from `start_offset` up to `end_offset`, at `position` of the segment.

    A leader's has `batches`, and in `offsets` the base offset of each; a follower's has `spans`,
    with their positions in the segment. If `duplicate` is set, the one batch was a producer's
    retry: nothing is written, and the offsets are those of the first append, which may still be in
    progress: it counts once the log end offset has passed it.

    Owner: who had it prepared, writes `buffers` to the segment's file, and has it published or, if
    that raises, abandoned.
    """

    # Few appends need these, and one is made per append: so the class has them, and no slots.
    spans: Sequence[tuple[int, BatchSpan]] = ()
    producers_before: Mapping[int, ProducerState | None] = MappingProxyType(
        {}
    )  # as `restore` takes
    duplicate: Duplicate | None = None
    is_published = False
    on_end: Sequence[OnEnd] = ()

    def __init__(
        self,
        segment: Segment,
        position: int,
        start_offset: int,
        totals: BatchTotals,
        buffers: list[Buffer],
        batches: Sequence[Batch] = (),
        offsets: Sequence[int] = (),
    ) -> None:
        self.segment = segment
        self.position = position
        self.start_offset = start_offset
        self.end_offset = start_offset + totals.offset_count
        self.totals = totals
        self.buffers = buffers
        self.batches = batches
        self.offsets = offsets

    @classmethod
    def of_duplicate(cls, segment: Segment, duplicate: Duplicate) -> Append:
        """The append for a retried batch."""
        append = cls(segment, 0, duplicate.first_offset, _NOTHING, [])
        append.end_offset = duplicate.last_offset + 1
        append.offsets = (duplicate.first_offset,)
        append.duplicate = duplicate
        return append

    def then(self, on_end: OnEnd) -> None:
        """Call `on_end` with this append once it is published, perhaps at once; or with the error
        for which it was abandoned."""
        if self.is_published:
            on_end(self)
        else:
            self.on_end = (*self.on_end, on_end)

    def end(self, error: ApiError | None = None) -> None:
        """Tell those who wait for it: it is published, or was abandoned for this error."""
        callbacks, self.on_end = self.on_end, ()
        for on_end in callbacks:
            on_end(error or self)

    def keep(self) -> None:
        """Copy the bytes: a request's are valid only until this tick of the loop ends."""
        self.buffers = [bytes(buffer) for buffer in self.buffers]

    def advance(self, producers: ProducerStates) -> None:
        """Advance the producers' states past the batches."""
        if self.batches:
            for (header, _), offset in zip(self.batches, self.offsets, strict=True):
                producers.append(header, offset)
        else:
            for header, batch in self._replayed():
                replay(producers, header, batch, self.segment.path)

    def advance_undoably(self, producers: ProducerStates) -> None:
        """As `advance`, keeping the states before it in `producers_before`."""
        headers = [header for header, _ in (*self.batches, *self._replayed())]
        ids = {header.producer_id for header in headers if header.producer_id >= 0}
        self.producers_before = {each: producers.producer(each) for each in ids}
        self.advance(producers)

    def _replayed(self) -> Iterator[tuple[BatchHeader, Buffer]]:
        """What the states of a follower's producers need: its leader has checked the batches."""
        data, start = memoryview(b"".join(self.buffers)) if self.spans else b"", 0
        for _, span in self.spans:
            if span.has_producers:
                batches = data[start : start + span.size]
                for place, header in producer_headers(batches, span.size, BATCHES_KEPT):
                    yield header, batches[place : place + header.size]
            start += span.size

    def note(self, interval_bytes: int) -> None:
        """Have the segment and its indexes reflect the batches, which are now in its file.

        `interval_bytes`: `index.interval.bytes`.
        """
        segment, batches, position = self.segment, self.batches, self.position
        size, _, _, newest_ms, _ = self.totals
        end = position + size
        try:
            if len(batches) == 1:
                segment.note(position, size, self.end_offset - 1, newest_ms, interval_bytes)
            elif not batches:
                for place, span in self.spans:
                    segment.note_span(place, span, interval_bytes)
            elif not segment.note_many(position, end, newest_ms, interval_bytes):
                for (header, data), offset in zip(batches, self.offsets, strict=True):
                    last = offset + header.last_offset_delta
                    segment.note(position, len(data), last, header.max_timestamp, interval_bytes)
                    position += len(data)
        finally:
            segment.size = end  # even if an index could not be written


def appendable_prefix(batches: Sequence[Batch], producers: ProducerStates) -> Sequence[Batch]:
    """The first of these batches, and those after it that may be appended with it (pure).

    It stops before a batch that is a duplicate or out of sequence, judged by its producer's state
    in the log, or by the producer's previous batch among these.
    """
    latest: dict[int, BatchHeader] = {}
    for number, (header, _) in enumerate(batches):
        producer_id = header.producer_id
        if producer_id >= 0:
            if number and not _follows(header, latest.get(producer_id), producers):
                return batches[:number]
            latest[producer_id] = header
    return batches


def _follows(header: BatchHeader, before: BatchHeader | None, producers: ProducerStates) -> bool:
    if before is not None:
        return (
            header.producer_epoch == before.producer_epoch
            and header.base_sequence == before.last_sequence + 1
            and header.is_transactional == before.is_transactional
        )
    try:
        return producers.check(header) is None
    except ApiError:
        return False


def checked_spans(
    records: Sequence[Buffer], leader_epoch: int, span_bytes_max: int
) -> list[tuple[BatchSpan, memoryview]]:
    """The batches that a follower has fetched, with their bytes, in spans (pure).

    A last batch that is cut short, as a fetch's limit may do, is left out. Offsets and leader
    epochs must increase, the latter up to `leader_epoch`, in which they were fetched: bytes of a
    later epoch may follow an answer's header if its sender was deposed and truncated its log
    meanwhile (KAFKA-18723). Raises `CorruptRecords`, and `ApiError` INVALID_RECORD.
    """
    found: list[tuple[BatchSpan, memoryview]] = []
    offset, epoch = -1, NO_EPOCH
    for number, buffer in enumerate(records, 1):
        view, position = memoryview(buffer), 0
        while position < len(view):
            span = find_span(
                view, position, len(view), offset, INT64_MAX, _TRUST_NONE, span_bytes_max
            )
            if span is None:
                if number == len(records) and is_partial(view, position):
                    break
                raise _fault(view, position, offset)
            if not epoch <= span.leader_epoch <= leader_epoch:
                raise ApiError(
                    Error.INVALID_RECORD,
                    f"a batch of leader epoch {span.leader_epoch} follows one of {epoch} in what"
                    f" was fetched in epoch {leader_epoch}",
                )
            found.append((span, view[position : position + span.size]))
            position += span.size
            offset, epoch = span.last_offset, span.leader_epoch
    return found


def span_totals(spans: Sequence[BatchSpan], start_offset: int) -> BatchTotals:
    """The totals of spans that take the offsets from `start_offset` on (pure)."""
    size, records, newest_ms, has_producers = 0, 0, NO_TIMESTAMP, False
    for span in spans:  # mostly one, for which a loop takes a third of what four sums do
        size += span.size
        records += span.record_count
        newest_ms = max(newest_ms, span.newest_ms)
        has_producers = has_producers or span.has_producers
    offsets = spans[-1].last_offset + 1 - start_offset if spans else 0
    return BatchTotals(size, offsets, records, newest_ms, has_producers)


def _fault(view: memoryview, position: int, offset_before: int) -> ApiError:
    """Why `find_span` finds none at `position`."""
    if is_partial(view, position):
        return CorruptRecords("a batch is cut short")
    header = read_header(view, position)
    fault = header_fault(header, len(view) - position) or crc_fault(view, position, header)
    if fault is None:
        detail = f"offset {header.base_offset} follows {offset_before}"
        return ApiError(Error.INVALID_RECORD, detail)
    return CorruptRecords(fault)


class RollReason(enum.StrEnum):
    """Why the active segment is closed, as the end of a log line's sentence."""

    SIZE = "is full"
    TIME = "has reached segment.ms"
    INDEX = "has a full index"
    OFFSET = "is 2**31 offsets long"


def waited_ms(
    first_timestamp_ms: int | None, created_ms: int, incoming_timestamp_ms: int, now_ms: int
) -> int:
    """The age of a segment for `segment.ms`.

    From its first batch's largest timestamp to the incoming batch's, so that a mirrored or rebuilt
    log gets the same segments. By the clock only if the first batch has no timestamp.
    """
    if first_timestamp_ms is None or first_timestamp_ms < 0:
        return now_ms - created_ms
    # A batch without a timestamp makes this negative, which rolls nothing; as in Kafka.
    return incoming_timestamp_ms - first_timestamp_ms


def choose_roll(
    size_bytes: int,
    incoming_bytes: int,
    segment_bytes: int,
    is_expired: bool,
    is_index_full: bool,
    relative_offset: int,
) -> RollReason | None:
    """Whether to close the active segment before an append, and why (pure).

    `segment_bytes` is the setting; `is_expired` says that `waited_ms(...)` is above `segment.ms`
    less this segment's jitter; `relative_offset` is the incoming batch's last offset less the base
    offset.
    Asked for every append: plain arguments and comparisons, no tuples.
    """
    if relative_offset > RELATIVE_OFFSET_MAX or relative_offset < 0:
        return RollReason.OFFSET
    if not size_bytes:
        # Kafka would roll here for a batch larger than segment.bytes, to a segment of the same
        # name. Appends refuse such a batch from producers; a follower must take its leader's.
        return None
    if size_bytes + incoming_bytes > segment_bytes:
        return RollReason.SIZE
    if is_expired:
        return RollReason.TIME
    return RollReason.INDEX if is_index_full else None


class RollWatch:
    """Remembers up to where `choose_roll` need not be asked again.

    Owner: the log; a new one for each active segment and each change of settings.
    """

    __slots__ = ("_offset", "_position", "_roll_after_ms", "_settings", "_timestamp")

    def __init__(self, settings: TopicSettings, rng: random.Random) -> None:
        segment_ms = settings.segment_ms
        if "compact" in settings.cleanup_policy:  # the active segment is not cleaned
            segment_ms = min(segment_ms, settings.max_compaction_lag_ms)
        jitter_ms = min(settings.segment_jitter_ms, segment_ms)  # as in Kafka
        self._roll_after_ms = segment_ms - (rng.randrange(jitter_ms) if jitter_ms else 0)
        self._settings = settings
        self.forget()

    def forget(self) -> None:
        """Have the next append checked in full."""
        self._position = self._timestamp = self._offset = -1

    def must_look(self, position: int, start_offset: int, totals: BatchTotals) -> bool:
        """Whether an append there needs `look`. It never misses a roll, and is rarely True without
        one."""
        size, offset_count, _, newest_ms, _ = totals
        return (
            position + size > self._position
            or newest_ms > self._timestamp
            or start_offset + offset_count > self._offset
        )

    def look(
        self,
        active: Segment,
        position: int,
        size: int,
        last_offset: int,
        newest_ms: int,
        now_ms: int,
    ) -> RollReason | None:
        """Why the active segment must be closed before `size` bytes go to `position`, or None."""
        settings, first_ms = self._settings, _first_timestamp(active)
        waited = waited_ms(first_ms, active.created_ms, newest_ms, now_ms)
        reason = choose_roll(
            position,
            size,
            settings.segment_bytes,
            waited > self._roll_after_ms,
            active.index_bytes > settings.segment_index_bytes - _INDEX_ENTRY_MAX,
            last_offset - active.base_offset,
        )
        if reason is None:
            self._watch(active, first_ms)
        return reason

    def _watch(self, active: Segment, first_ms: int | None) -> None:
        """Set the limits below which no roll can be due.

        An index entry stands for more than `index.interval.bytes` in the log, so neither index is
        full before that many times the entries that still fit.
        """
        settings = self._settings
        entries = (settings.segment_index_bytes - active.index_bytes) // _INDEX_ENTRY_MAX - 1
        index_position = active.size + entries * settings.index_interval_bytes
        self._position = min(settings.segment_bytes, index_position)
        self._offset = active.base_offset + RELATIVE_OFFSET_MAX
        if first_ms is None or first_ms < 0:
            self._timestamp = NO_TIMESTAMP - 1  # its age depends on the clock: look each time
        else:
            self._timestamp = first_ms + self._roll_after_ms


def _first_timestamp(active: Segment) -> int | None:
    """None also if the first batch is damaged, which must not prevent appends."""
    try:
        return active.first_timestamp
    except DamagedSegment:
        return None


class DiskSpace:
    """Refuses appends before the filesystem is full, so that reads, deletes and starts still work.

    It knows how much may be appended before asking the filesystem again. Owner: the log directory.
    """

    __slots__ = ("_files", "_left", "_path", "_reserved")

    def __init__(self, files: Files, path: str, reserved_bytes: int) -> None:
        """`reserved_bytes` (`log.dir.reserved.bytes`) stay free on the filesystem under `path`."""
        self._files = files
        self._path = path
        self._reserved = reserved_bytes
        self._left = 0

    def take(self, size: int) -> None:
        """Account for `size` bytes about to be appended; `DiskFull` if there is no room."""
        self._left -= size
        if self._left < 0:
            free = self._free_bytes()
            if free < size:
                self._left = 0
                raise DiskFull(self._path)
            self._left = min(free, _ASK_AFTER_BYTES) - size

    def has_room(self, size: int) -> bool:
        """Whether `size` bytes may be preallocated, with enough left for the appends allowed."""
        return self._free_bytes() >= size + _ASK_AFTER_BYTES

    def _free_bytes(self) -> int:
        return self._files.free_bytes(self._path) - self._reserved


def reserve_space(segment: Segment, end: int) -> None:
    """Reserve disk space up to `end`. If the file cannot be opened, the write will raise that."""
    try:
        segment.preallocate(end)
    except OutOfDescriptors:
        pass


def undo(segment: Segment) -> None:
    """Cut off what a failed write has left after the segment's end."""
    try:
        segment.trim()
    except OutOfDescriptors:
        pass  # then the file was not open before either, and nothing was written
