"""One append: batches with their place in a log, from preparation until they are published."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType

from kdist.errors import ApiError, CorruptRecords, Error, OutOfDescriptors
from kdist.model import NO_EPOCH, NO_TIMESTAMP
from kdist.records.batch import Batch, BatchHeader, crc_fault, header_fault, is_partial, read_header
from kdist.records.codec import BatchSpan, BatchTotals, find_span, producer_headers
from kdist.runtime.files import Buffer
from kdist.storage.checkpoints import INT64_MAX
from kdist.storage.producers import BATCHES_KEPT, Duplicate, Producer, ProducerStates, replay
from kdist.storage.segment import Segment

_TRUST_NONE = 0  # every batch's CRC is checked
_NOTHING = BatchTotals(0, 0, 0, 0, has_producers=False)


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
    producers_before: Mapping[int, Producer | None] = MappingProxyType({})  # as `restore` takes
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
