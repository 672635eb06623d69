"""A pass over a log, as the cleaner process does it: map the keys, then rewrite groups of segments.

It reads the log's segments and writes `.cleaned` files beside them, whole and durable before it
reports; it renames and removes nothing of the log's. `requests.py` has the questions.

Of transactions aborted records go, and markers that end nothing. An aborted record must not be
taken for the last of its key, so they are found before keys are mapped, by the markers: all are in
the log, which is cleaned only below its last stable offset. A marker goes when no batch of its
transaction is left: it gets a delete horizon when a pass first meets it so, and is removed once
that is past, as a tombstone. The rules are Kafka's (`CleanedTransactionMetadata`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial

from kdist.errors import CorruptFile, CorruptRecords, DiskFailed, DiskFull
from kdist.model import OffsetRange
from kdist.records.batch import HEADER_SIZE, BatchHeader, crc_fault, read_header
from kdist.records.build import read_body, read_records
from kdist.records.cleaning import (
    OUT_TIMES,
    KeyMap,
    Sieve,
    SiftedBody,
    map_batches,
    map_body,
)
from kdist.records.codec import encode_records, producer_headers
from kdist.records.compression import Codec, compress
from kdist.records.control import ControlType, read_control_type
from kdist.runtime.clock import Clock
from kdist.runtime.files import Buffer, Files
from kdist.storage.cleaning.requests import (
    Fault,
    MapKeys,
    NoteProducers,
    Report,
    Request,
    Rewrite,
    Source,
)
from kdist.storage.names import FileState
from kdist.storage.scan import DamagedSegment, ScannedBatch, check_header
from kdist.storage.segment import FILE_BYTES_MAX, Segment

READ_BYTES = 1 << 20

Bulk = Callable[[memoryview, int, int], tuple[int, int]]
"""Takes plain batches from a position, where at least an offset must follow; says where it stopped,
and the offset to follow there."""

_FAULTS: tuple[tuple[type[BaseException], Fault], ...] = (
    (FileNotFoundError, Fault.GONE),
    (DiskFull, Fault.FULL),
    (DiskFailed, Fault.DISK),
    (CorruptRecords, Fault.DAMAGED),
    (CorruptFile, Fault.DAMAGED),
    (MemoryError, Fault.FULL),
)


class _FullAt(Exception):
    """The map has no room for the key of the record with this offset."""

    def __init__(self, offset: int) -> None:
        super().__init__(offset)
        self.offset = offset


class PassRunner:
    """Answers one request of a pass after another. Owner: the cleaner process, or a test."""

    def __init__(self, files: Files, clock: Clock, wait_ms: Callable[[float], None]) -> None:
        self._files = files
        self._clock = clock
        self._wait_ms = wait_ms
        self._pass: Pass | None = None
        self._limit: RateLimit | None = None  # one for all passes: many are short

    def answer(self, request: Request, *, writes: bool = True) -> Report:
        """Do what is asked; a fault is in the report. Without `writes`, only count. Blocks."""
        try:
            if isinstance(request, MapKeys):
                self._pass = None  # free the map before the next is made
                self._pass = Pass(self._files, request, self._limit_to(request.bytes_per_second))
                return self._pass.map_keys()
            assert self._pass is not None, "keys are mapped first"
            if isinstance(request, NoteProducers):
                return self._pass.note_producers(request)
            return self._pass.rewrite(request, writes=writes)
        except tuple(kind for kind, _ in _FAULTS) as error:
            fault = next(fault for kind, fault in _FAULTS if isinstance(error, kind))
            return Report(fault=fault, reason=str(error))

    def _limit_to(self, bytes_per_second: int) -> RateLimit:
        if self._limit is None:
            now_ns = self._clock.monotonic_ns
            self._limit = RateLimit(bytes_per_second, now_ns, self._wait_ms)
        else:
            self._limit.set_rate(bytes_per_second)
        return self._limit


class Pass:
    """One pass over a log."""

    def __init__(self, files: Files, request: MapKeys, limit: RateLimit) -> None:
        self._files = files
        self._request = request
        self._limit = limit
        self._read_bytes = 0
        self._map = KeyMap(request.slot_count, bytes.fromhex(request.secret))
        self._mapped_end = request.end_offset
        self._found: Transactions | None = None
        self._producers: dict[int, int] = {}  # as `NoteProducers` has them
        self._unmarked: dict[int, int] = {}
        self._latest_epoch = 0  # of what is rewritten

    def _on_read(self, size: int) -> None:
        self._read_bytes += size
        self._limit.take(size)

    def _open(self, source: Source) -> Segment:
        directory = self._request.directory
        segment = Segment.load(self._files, directory, source.base_offset)
        segment.size = source.size
        return segment

    @property
    def _transactions(self) -> Transactions:
        """Found when they are first needed: most logs have none."""
        if self._found is None:
            segments = list(map(self._open, self._request.sources))
            try:
                self._found = Transactions(find_aborted(segments)[0])
            finally:
                for segment in segments:
                    segment.close()
        return self._found

    def note_producers(self, request: NoteProducers) -> Report:
        """Note producers whose last batch, or marker, stays."""
        self._producers.update(request.producers)
        self._unmarked.update(request.unmarked)
        return Report()

    # Mapping

    def map_keys(self) -> Report:
        """Note the keys of the dirty section, or of as much of it as the map has room for."""
        request = self._request
        for source in request.sources:
            if source.base_offset >= request.end_offset:
                break
            full_at = self._map_segment(source)
            if full_at is not None:
                self._mapped_end = min(full_at, request.end_offset)
                break
        if self._found is not None:
            self._found.begin_pass()
        return Report(end_offset=self._mapped_end, keys=len(self._map), read_bytes=self._read_bytes)

    def _map_segment(self, source: Source) -> int | None:
        """The offset from which on there was no room for a key; None if there was."""
        first_offset, segment = self._request.first_dirty_offset, self._open(source)

        def bulk(chunk: memoryview, position: int, next_offset: int) -> tuple[int, int]:
            stopped = map_batches(self._map, chunk, position, next_offset, first_offset)
            if self._map.is_full:
                raise _FullAt(stopped[1])
            return stopped

        try:
            for batch in _walk(segment, bulk, self._on_read):
                full_at = self._map_batch(batch, first_offset)
                if full_at is not None:
                    return full_at
        except _FullAt as full:
            return full.offset
        finally:
            segment.close()
        return None

    def _map_batch(self, batch: ScannedBatch, first_offset: int) -> int | None:
        header = batch.header
        if header.is_control or (header.is_transactional and self._transactions.is_aborted(header)):
            return None
        body = read_body(batch.data, 0, header)
        return map_body(self._map, body, header.record_count, header.base_offset, first_offset)

    # Rewriting

    def rewrite(self, request: Rewrite, *, writes: bool) -> Report:
        """Write what stays of these segments; nothing if all stays of the one there is."""
        before_bytes = self._read_bytes
        self._limit.set_rate(request.bytes_per_second)
        sifting = Sifting(
            self._map,
            self._mapped_end,
            request,
            (self._producers, self._unmarked),
            lambda: self._transactions,
            self._latest_epoch,
        )
        output = Output(self._files, self._request.directory, request, self._limit, writes)
        try:
            for source in request.sources:
                self._sift(source, sifting, output)
            is_changed = sifting.is_changed or len(request.sources) > 1
            if is_changed:
                output.complete()
            else:
                output.remove()
        except BaseException:
            output.remove()
            raise
        self._latest_epoch = sifting.sieve.latest_epoch
        return Report(
            end_offset=self._mapped_end,
            is_changed=is_changed,
            size=output.size if is_changed else sum(each.size for each in request.sources),
            seen_records=sifting.sieve.seen_records,
            kept_records=sifting.sieve.kept_records,
            read_bytes=self._read_bytes - before_bytes,
        )

    def _sift(self, source: Source, sifting: Sifting, output: Output) -> None:
        segment = self._open(source)

        def bulk(chunk: memoryview, position: int, next_offset: int) -> tuple[int, int]:
            out, end = output.room(OUT_TIMES * (len(chunk) - position))
            position, next_offset, end = sifting.sieve.sift(chunk, position, next_offset, out, end)
            output.end = end
            return position, next_offset

        try:
            for batch in _walk(segment, bulk, self._on_read):
                left = sifting.batch_left(batch)
                if left is not None:
                    output.add(left)
        finally:
            segment.close()


def _walk(segment: Segment, bulk: Bulk, on_read: Callable[[int], None]) -> Iterator[ScannedBatch]:
    """Pass the batches of a segment to `bulk`, many at a time, and yield those that it leaves.

    Every batch is checked, its CRC too. `DamagedSegment` at the first that is wrong. `on_read` is
    told how many bytes are read.
    """
    file, size, base_offset = segment.file, segment.size, segment.base_offset
    position, next_offset, read_bytes = 0, base_offset, READ_BYTES
    while position < size:
        asked = min(read_bytes, size - position)
        chunk = memoryview(file.read(position, asked))
        if len(chunk) < asked or len(chunk) < HEADER_SIZE:
            raise DamagedSegment(file.path, position, "the file ends inside a batch")
        on_read(asked)
        at, read_bytes = 0, READ_BYTES
        while True:
            at, next_offset = bulk(chunk, at, next_offset)
            left = len(chunk) - at
            if left < HEADER_SIZE:
                break  # the rest of its header is in the next chunk, if there is any rest
            header = read_header(chunk, at)
            check_header(file, header, position + at, size, base_offset, next_offset)
            if header.size > left:
                read_bytes = max(READ_BYTES, header.size)
                break
            if fault := crc_fault(chunk, at, header):
                raise DamagedSegment(file.path, position + at, fault)
            yield ScannedBatch(position + at, header, chunk[at : at + header.size])
            next_offset = header.next_offset
            at += header.size
        position += at


class RateLimit:
    """Keeps reads and writes below a rate, as `log.cleaner.io.max.bytes.per.second` has it."""

    _STEP_NS = 20_000_000  # waits are for no less, since a sleep is not exact

    def __init__(
        self,
        bytes_per_second: int,
        now_ns: Callable[[], int],
        wait_ms: Callable[[float], None],
    ) -> None:
        self.set_rate(bytes_per_second)
        self._now_ns = now_ns
        self._wait_ms = wait_ms
        self._due_ns = now_ns()

    def set_rate(self, bytes_per_second: int) -> None:
        """Keep below another rate from here on."""
        self._ns_per_byte = 1e9 / bytes_per_second

    def take(self, size: int) -> None:
        """Account for so many bytes, and wait until they are due."""
        now_ns = self._now_ns()
        self._due_ns = max(self._due_ns, now_ns - self._STEP_NS) + int(size * self._ns_per_byte)
        if self._due_ns - now_ns > self._STEP_NS:
            self._wait_ms((self._due_ns - now_ns) / 1e6)


class Transactions:
    """Owner: a pass. It is told of each transactional batch and marker, in the log's order."""

    def __init__(self, aborted: dict[int, list[OffsetRange]]) -> None:
        self._aborted = aborted
        self._has_batches: set[int] = set()  # producers whose transaction has one in this pass

    def begin_pass(self) -> None:
        """Begin again at the log's start."""
        self._has_batches.clear()

    def is_aborted(self, header: BatchHeader) -> bool:
        """Whether the batch's transaction was aborted; to be asked of each transactional batch."""
        self._has_batches.add(header.producer_id)
        ranges = self._aborted.get(header.producer_id, ())
        return any(each.start <= header.base_offset < each.end for each in ranges)

    def ends_nothing(self, header: BatchHeader) -> bool:
        """Whether no batch of a marker's transaction is left; to be asked of each marker."""
        is_empty = header.producer_id not in self._has_batches
        self._has_batches.discard(header.producer_id)
        return is_empty


def find_aborted(
    segments: Iterable[Segment],
) -> tuple[dict[int, list[OffsetRange]], dict[int, int]]:
    """The offsets of aborted transactions in these segments, and where open ones began.

    Both by producer id. Headers are read, and the markers. `DamagedSegment`, and `CorruptRecords`
    for a damaged marker.
    """
    starts: dict[int, int] = {}
    aborted: dict[int, list[OffsetRange]] = {}
    for segment in segments:
        for position, span, data in segment.walk_spans(0):
            if not span.has_producers:
                continue
            for place, header in producer_headers(data, span.size, 0):
                if not header.is_control:
                    starts.setdefault(header.producer_id, header.base_offset)
                    continue
                start = starts.pop(header.producer_id, header.base_offset)
                if _is_abort(segment, position + place, header):
                    ended = OffsetRange(start, header.base_offset)
                    aborted.setdefault(header.producer_id, []).append(ended)
    return aborted, starts


def _is_abort(segment: Segment, position: int, header: BatchHeader) -> bool:
    if not header.record_count:  # an earlier pass has removed the marker: it ended nothing
        return False
    try:
        (record,) = read_records(segment.file.read(position, header.size), 0, header)
    except ValueError:
        raise CorruptRecords(f"a control batch has {header.record_count} records") from None
    return read_control_type(record.key) is ControlType.ABORT


class Sifting:
    """Decides on batches that are compressed, or of transactions. `sieve` decides on records."""

    def __init__(
        self,
        key_map: KeyMap,
        mapped_end: int,
        request: Rewrite,
        producers: tuple[dict[int, int], dict[int, int]],
        transactions: Callable[[], Transactions],
        latest_epoch: int,
    ) -> None:
        """`producers`: those whose last batch stays, and those whose marker does.

        `latest_epoch`: of the log before these segments.
        """
        self._request = request
        self._transactions = transactions
        self._mapped_end = mapped_end
        self._horizon_ms = request.now_ms + request.delete_retention_ms
        last_offsets, self._unmarked = producers
        self.sieve = Sieve(
            key_map,
            mapped_end,
            request.now_ms,
            self._horizon_ms,
            request.expires,
            last_offsets,
            latest_epoch,
        )

    @property
    def is_changed(self) -> bool:
        """Whether anything goes, or is to be written otherwise."""
        sieve = self.sieve
        return sieve.rewritten_batches > 0 or sieve.kept_batches < sieve.seen_batches

    def batch_left(self, batch: ScannedBatch) -> Buffer | None:
        """What to write for a batch; None for nothing."""
        header, data = batch.header, batch.data
        if header.is_control:
            return self._marker_left(header, data)
        is_aborted = header.is_transactional and self._transactions().is_aborted(header)
        if is_aborted:
            sifted: SiftedBody | None = _nothing_of(header)
        else:
            sifted = self.sieve.sift_body(read_body(data, 0, header), header)
        if sifted is not None and sifted.record_count and header.codec:
            sifted = sifted._replace(body=compress(Codec(header.codec), sifted.body))
        if not header.record_count:
            sifted = None
        return self.sieve.batch_left(header, data, sifted)

    def _marker_left(self, header: BatchHeader, data: memoryview) -> Buffer | None:
        sieve, request = self.sieve, self._request
        is_over = (
            self._transactions().ends_nothing(header) and header.last_offset < self._mapped_end
        )
        is_needed = self._unmarked.get(header.producer_id) == header.producer_epoch
        if is_needed or not (is_over and header.record_count):
            if header.record_count or is_needed:
                return self._kept(header, data)
            return sieve.batch_left(header, data, None)
        if not header.has_delete_horizon:
            return sieve.batch_left(header, data, _with_horizon(header, data, self._horizon_ms))
        is_expired = request.expires and header.base_timestamp <= request.now_ms
        return sieve.batch_left(header, data, _nothing_of(header) if is_expired else None)

    def _kept(self, header: BatchHeader, data: memoryview) -> Buffer:
        kept = self.sieve.batch_left(header._replace(record_count=1), data, None)
        assert kept is not None
        return kept


def _nothing_of(header: BatchHeader) -> SiftedBody:
    return SiftedBody(b"", 0, header.base_timestamp, header.max_timestamp, False)


def _with_horizon(header: BatchHeader, data: memoryview, horizon_ms: int) -> SiftedBody:
    """A marker's body, to be removed from `horizon_ms` on."""
    (record,) = read_records(data, 0, header)
    body = encode_records(
        [record.value], [record.key], [record.headers], [record.timestamp], horizon_ms
    )
    return SiftedBody(bytes(body), 1, horizon_ms, header.max_timestamp, True)


class Output:
    """The `.cleaned` files of a group, written in large pieces. Without `writes`, only counted."""

    def __init__(
        self, files: Files, directory: str, request: Rewrite, limit: RateLimit, writes: bool
    ) -> None:
        self._files = files
        self._directory = directory
        self._request = request
        self._limit = limit
        self._buffer = bytearray(OUT_TIMES * READ_BYTES)
        self.end = 0  # of what is in the buffer
        self.size = 0  # of what is in the file
        self._segment = self._create() if writes else None

    def _create(self) -> Segment:
        base_offset = self._request.sources[0].base_offset
        make = partial(Segment, self._files, self._directory, base_offset, 0, 0)
        stale = make(FileState.CLEANED)
        for path in stale.paths:
            if self._files.exists(path):  # from a pass that was cut short
                self._files.remove(path)
        stale.create_files()
        return stale

    def room(self, size: int) -> tuple[bytearray, int]:
        """The buffer, with so much room behind the end of what is in it; and that end."""
        if len(self._buffer) - self.end < size:
            self._write()
        if len(self._buffer) < size:
            self._buffer = bytearray(size)
        return self._buffer, self.end

    def add(self, batch: Buffer) -> None:
        """Append one batch."""
        buffer, end = self.room(len(batch))
        buffer[end : end + len(batch)] = batch
        self.end = end + len(batch)

    def _write(self) -> None:
        size, self.end = self.end, 0
        if self.size + size > FILE_BYTES_MAX:
            raise CorruptRecords("what is left of a segment does not fit in one")
        if self._segment is not None and size:
            self._limit.take(size)
            with memoryview(self._buffer) as buffer:
                self._segment.file.write([buffer[:size]], self.size)
        self.size += size

    def complete(self) -> None:
        """Write the rest and the indexes, durably."""
        self._write()
        segment, interval_bytes = self._segment, self._request.index_interval_bytes
        if segment is None:
            return
        segment.size = self.size
        for position, span, _ in segment.walk_spans(0, interval_bytes):
            segment.note_span(position, span, interval_bytes)
        segment.seal()
        segment.write_indexes()
        # Retention counts from it where no record has a timestamp. The sync keeps it.
        self._files.set_modified_ms(segment.path, self._request.modified_ms)
        for file in segment.sync_targets(is_sealed=True):
            file.sync()
        segment.close()
        self._files.sync_directory(self._directory)

    def remove(self) -> None:
        """Leave nothing behind, if the disk allows."""
        if self._segment is None:
            return
        self._segment.close()
        try:
            for path in self._segment.paths:
                if self._files.exists(path):
                    self._files.remove(path)
        except (OSError, DiskFull, DiskFailed):
            pass  # the directory is gone or the disk failed: the next start removes them
