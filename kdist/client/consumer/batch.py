"""What a consumer returns: batches and their records, decoded on first access (pure).

A batch holds the records of one partition as the producer sent them, and stays encoded until
something is read from it. Reading one record's key, timestamp or headers decodes that column for
the whole batch at once, without an object per record, as ten thousand new objects would also burden
the garbage collector. A record keeps its batch, and the bytes that were fetched with it, in memory.
Both can be pickled, for process pools: a batch with its own bytes only, a record without its batch.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property, partial
from itertools import count, repeat
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from kdist.client.coding import Coder, Role, WithContext, coded
from kdist.client.consumer import arrow
from kdist.errors import ApiError, CorruptRecords, Error, UserError, WrongType
from kdist.model import TopicPartition
from kdist.records.batch import BatchHeader, TimestampType, read_header
from kdist.records.build import body_numbers, decode_body, read_body
from kdist.records.codec import (
    decode_headers,
    decode_keys,
    decode_keys_into,
    decode_numbers,
    decode_values,
    decode_values_into,
)
from kdist.records.record import BinaryColumn, HeaderPairs, Record
from kdist.wire.primitives import Buffer

if TYPE_CHECKING:
    import pyarrow  # type: ignore[import-not-found, import-untyped, unused-ignore]

T = TypeVar("T")

RUN_BYTES_MAX = 64 << 10
ARROW_COLUMNS = ("offset", "timestamp", "key", "value", "headers")


class NotDecoded(ApiError):
    """The application's decoder failed on a key or value; to skip it, `seek` to `offset + 1`."""

    def __init__(self, partition: TopicPartition, offset: int, cause: Exception) -> None:
        super().__init__(
            Error.INVALID_RECORD,
            f"{partition}, offset {offset}: the decoder failed: {cause!r}",
        )
        self.partition = partition
        self.offset = offset


class CorruptFetch(CorruptRecords):
    """The data fetched from `partition` is corrupt from `offset` on."""

    def __init__(self, partition: TopicPartition, offset: int, fault: str) -> None:
        super().__init__(f"{partition}, at offset {offset}: {fault}")
        self.partition = partition
        self.offset = offset


class _Place(NamedTuple):
    """A record's batch and index. A tuple, as any other object takes twice as long to create."""

    batch: Batch | _Alone
    place: int
    value: Any


class ConsumedRecord(_Place):
    """One record: `topic`, `partition`, `offset`, `timestamp`, `key`, `value`, `headers`.

    `timestamp` is ms since the epoch. `key` and `value` are bytes, or what the decoders returned;
    None is null. `headers` are pairs of name and value.
    """

    __slots__ = ()

    @property
    def topic(self) -> str:
        """The topic it was read from."""
        return self.batch.partition.topic

    @property
    def partition(self) -> int:
        """The partition's number."""
        return self.batch.partition.partition

    @property
    def offset(self) -> int:
        """The record's offset in the partition."""
        batch, place, _ = self
        return batch.all_offsets[place]

    @property
    def timestamp(self) -> int:
        """Milliseconds since the epoch, set by the producer or, with LogAppendTime, the broker."""
        batch, place, _ = self
        return batch.all_timestamps[place]

    @property
    def timestamp_type(self) -> TimestampType:
        """Whether the timestamp is the producer's create time or the broker's log append time."""
        return self.batch.header.timestamp_type

    @property
    def key(self) -> Any:
        """The key, or None."""
        batch, place, _ = self
        return batch.all_keys[place]

    @property
    def headers(self) -> HeaderPairs:
        """Pairs of name and value; a name may be repeated."""
        batch, place, _ = self
        return batch.all_headers[place]

    @property
    def leader_epoch(self) -> int:
        """The epoch of the leader that appended it, to commit with the offset (KIP-320)."""
        return self.batch.header.partition_leader_epoch

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ConsumedRecord) and self._all() == other._all()

    def __ne__(self, other: object) -> bool:  # a tuple's own compares batches
        return not self == other

    def __hash__(self) -> int:
        return hash((self.batch.partition, self.offset))

    def _all(self) -> tuple[Any, ...]:
        place = self.batch.partition, self.offset
        return (*place, self.timestamp, self.key, self.value, self.headers)

    def __reduce__(self) -> tuple[Any, ...]:
        batch = self.batch
        record = Record(self.offset, self.timestamp, self.key, None, self.headers)
        return _record_alone, (batch.partition, batch.header, record, self.value)

    def __repr__(self) -> str:
        fields = ("topic", "partition", "offset", "timestamp", "key", "value", "headers")
        return f"ConsumedRecord({', '.join(f'{name}={getattr(self, name)!r}' for name in fields)})"


_make_record = partial(tuple.__new__, ConsumedRecord)


class _Alone:
    """Takes the place of an unpickled record's batch: that record, and the batch's shared parts."""

    def __init__(self, partition: TopicPartition, header: BatchHeader, record: Record) -> None:
        self.partition = partition
        self.header = header
        self.all_offsets = [record.offset]
        self.all_timestamps = [record.timestamp]
        self.all_keys = [record.key]
        self.all_headers = [record.headers]


def _record_alone(
    partition: TopicPartition, header: BatchHeader, record: Record, value: Any
) -> ConsumedRecord:
    return _make_record((_Alone(partition, header, record), 0, value))


class Batch:
    """Records of one partition with offsets from `start` up to, but not including, `end`.

    `len(batch)` and iteration cover those records. `header` and `encoded` are the producer's whole
    batch, which may begin before `start`.
    """

    def __init__(
        self,
        partition: TopicPartition,
        header: BatchHeader,
        buffer: Buffer,
        at: int,
        start: int,
        decoders: tuple[Coder | None, Coder | None] = (None, None),
    ) -> None:
        self.partition = partition
        self.header = header
        self.start = max(start, header.base_offset)
        self.end = header.next_offset
        self._buffer = buffer
        self._at = at
        self._decode_key, self._decode_value = decoders
        self._is_dense = header.record_count == header.last_offset_delta + 1

    def __reduce__(self) -> tuple[Any, ...]:
        decoders = (self._decode_key, self._decode_value)
        own = (self.partition, self.header, bytes(self.encoded), 0, self.start, decoders)
        return Batch, own, {"end": self.end}

    @property
    def encoded(self) -> memoryview:
        """The producer's whole batch as the log stores it, even if this is only a part of it.

        Valid while this object lives.
        """
        return memoryview(self._buffer)[self._at : self._at + self.header.size]

    def part(self, start: int, end: int) -> Batch:
        """This batch without the records before `start` and from `end` on."""
        decoders = (self._decode_key, self._decode_value)
        part = Batch(self.partition, self.header, self._buffer, self._at, start, decoders)
        part.end = end
        part.body = self.body  # decompressed once
        return part

    @cached_property
    def body(self) -> Buffer:
        """The records' bytes, decompressed."""
        return self.placed(read_body, self._buffer, self._at, self.header)

    def placed(self, read: Callable[..., T], *arguments: Any) -> T:
        """What `read` returns; adds partition and offset to an error in data whose CRC is right."""
        try:
            return read(*arguments)
        except CorruptRecords as error:
            raise CorruptFetch(self.partition, self.start, error.detail) from error

    # Columns of the producer's whole batch, including records outside `start` to `end`

    @cached_property
    def numbers(self) -> tuple[array[int], array[int]]:
        """All records' offsets and timestamps."""
        return self.placed(body_numbers, self.body, self.header)

    @cached_property
    def all_offsets(self) -> Sequence[int]:
        """All records' offsets; nothing is decoded for a batch without gaps, as nearly all are."""
        if self._is_dense:
            return range(self.header.base_offset, self.header.next_offset)
        return self.numbers[0]

    @cached_property
    def all_timestamps(self) -> Sequence[int]:
        """All records' timestamps."""
        return self.numbers[1]

    @cached_property
    def all_keys(self) -> list[Any]:
        """All records' keys; those from `start` to `end` decoded by the application's decoder."""
        keys: list[Any] = self._column(decode_keys)
        if self._decode_key is not None:
            keys[self.places] = self._decoded(keys[self.places], self._decode_key, "key")
        return keys

    @cached_property
    def all_headers(self) -> list[HeaderPairs]:
        """All records' headers."""
        return self._column(decode_headers)

    def _column(self, decode: Callable[..., list[T]]) -> list[T]:
        return self.placed(decode, self.body, self.header.record_count)

    # The records from `start` to `end`

    @cached_property
    def places(self) -> slice:
        """Their indexes among all records of the producer's batch."""
        base, start, end = self.header.base_offset, self.start, self.end
        if self._is_dense:
            return slice(start - base, end - base)
        offsets = self.all_offsets
        return slice(bisect_left(offsets, start), bisect_left(offsets, end))

    def _given(self, rows: list[T]) -> list[T]:
        is_whole = self._is_dense and self.end - self.start == len(rows)
        return rows if is_whole else rows[self.places]

    def __len__(self) -> int:
        places = self.places
        start: int = places.start
        stop: int = places.stop
        return stop - start

    def __iter__(self) -> Iterator[ConsumedRecord]:
        return iter(self.records())

    def __repr__(self) -> str:
        return f"<Batch of {self.partition}, offsets {self.start} to {self.end}>"

    # As lists

    @property
    def topic(self) -> str:
        """The topic's name."""
        return self.partition.topic

    def values(self) -> list[Any]:
        """The values alone: the fastest way to read."""
        return self._decoded(self.raw_values(), self._decode_value, "value")

    def keys(self) -> list[Any]:
        """The keys alone."""
        return self.all_keys[self.places]

    def offsets(self) -> Sequence[int]:
        """The records' offsets; a `range` if they have no gaps."""
        offsets = self.all_offsets[self.places]
        return offsets if isinstance(offsets, range) else list(offsets)

    def timestamps(self) -> list[int]:
        """The records' timestamps, ms since the epoch."""
        return list(self.all_timestamps[self.places])

    def headers(self) -> list[HeaderPairs]:
        """The headers alone: for each record, its pairs of name and value."""
        return self.all_headers[self.places]

    def records(self) -> list[ConsumedRecord]:
        """The records; iteration gives the same."""
        return self.records_of(self.checked_values(), 0)

    def checked_values(self) -> list[Any]:
        """The values; the keys are decoded too, so that `NotDecoded` is raised here for either."""
        if self._decode_key is not None:
            self.keys()
        return self.values()

    def records_of(self, values: Sequence[Any], index: int) -> list[ConsumedRecord]:
        """Records for some of the values, of which the first is at `index`."""
        place: int = self.places.start + index
        return list(map(_make_record, zip(repeat(self), count(place), values)))

    def offset_at(self, index: int) -> int:
        """The offset of a record, by its index among those from `start` to `end`."""
        place: int = self.places.start + index
        return self.all_offsets[place]

    def raw_records(self) -> list[Record]:
        """The records with keys and values as bytes; decoders are not called."""
        return self._given(self.placed(decode_body, self.body, self.header))

    def raw_values(self) -> list[bytes | None]:
        """The values as bytes; decoders are not called."""
        return self._given(self._column(decode_values))

    def _decoded(self, items: list[Any], decode: Coder | None, role: Role) -> list[Any]:
        """The keys or values from `start` on, decoded by the application's decoder."""
        if decode is None:
            return items
        done: list[Any] = []
        headers = self.headers() if isinstance(decode, WithContext) else ()
        try:
            done.extend(coded(decode, items, self.topic, role, headers))
        except Exception as cause:
            offset = self.offsets()[len(done)]
            raise NotDecoded(self.partition, offset, cause) from cause
        return done

    # As Arrow

    def to_arrow(self, columns: Sequence[str] = ARROW_COLUMNS) -> pyarrow.RecordBatch:
        """The records as an Arrow record batch; needs `pyarrow`. `columns` are of `ARROW_COLUMNS`.

        Offsets are int64, timestamps in ms, keys and values binary (decoders are not called),
        headers a list of name and value. Only the named columns are decoded.
        """
        try:
            import pyarrow
        except ModuleNotFoundError:
            raise UserError("to_arrow needs pyarrow: install kdist's extra `arrow`") from None
        if isinstance(columns, str) or any(each not in ARROW_COLUMNS for each in columns):
            allowed = ", ".join(ARROW_COLUMNS)
            raise WrongType(f"columns must be a list, each one of {allowed}, not {columns!r}")
        arrays = [self._arrow_column(pyarrow, name)[self.places] for name in columns]
        return pyarrow.RecordBatch.from_arrays(arrays, names=list(columns))

    def _arrow_column(self, pyarrow: Any, name: str) -> Any:
        match name:
            case "offset":
                return arrow.integers(pyarrow, pyarrow.int64(), self.numbers[0])
            case "timestamp":
                milliseconds = pyarrow.timestamp("ms", tz="UTC")
                return arrow.integers(pyarrow, milliseconds, self.numbers[1])
            case "headers":
                return arrow.headers(pyarrow, self.all_headers)
        decode_into = {"key": decode_keys_into, "value": decode_values_into}[name]
        column = BinaryColumn()
        self.placed(decode_into, column, self.body, self.header.record_count)
        return arrow.binary(pyarrow, column)


class BatchRun(Batch):
    """Small adjacent batches that `iter_runs` joined; `header` describes them as if they were one.

    A slow producer's log has few records per batch, and a batch costs the interpreter as much as
    twenty records. A run is one item of the completed fetches, and its records come from columns
    decoded together. `poll_batches` still returns each batch as the log has it.
    """

    def _column(self, decode: Callable[..., list[T]]) -> list[T]:
        return self.placed(decode, self.encoded, self.header.record_count, True)

    @cached_property
    def numbers(self) -> tuple[array[int], array[int]]:
        count = self.header.record_count
        return self.placed(partial(decode_numbers, is_span=True), self.encoded, count)

    def batches(self, position: int) -> list[Batch]:
        """The run's batches, without those that end before `position`."""
        found: list[Batch] = []
        decoders = (self._decode_key, self._decode_value)
        at, end = self._at, self._at + self.header.size
        while at < end:
            header = read_header(self._buffer, at)
            if header.next_offset > position:
                batch = _Part(self.partition, header, self._buffer, at, position, decoders)
                batch.run = self
                found.append(batch)
            at += header.size
        return found

    def column(self, decode: Callable[..., list[T]]) -> list[T]:
        """A column of the whole run, decoded once and shared by its batches."""
        if decode not in self._columns:
            self._columns[decode] = self._column(decode)
        return self._columns[decode]

    @cached_property
    def _columns(self) -> dict[Callable[..., Any], list[Any]]:
        return {}


class _Part(Batch):
    """A batch of a run."""

    run: BatchRun

    def _column(self, decode: Callable[..., list[T]]) -> list[T]:
        try:
            rows = self.run.column(decode)
        except CorruptFetch:  # in this batch, or in another of the run: decode this one alone
            return super()._column(decode)
        start = self.header.base_offset - self.run.header.base_offset
        return rows[start : start + self.header.record_count]
