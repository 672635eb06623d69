"""What a consumer gives: batches, and records out of them, decoded when looked at (pure).

A batch is a partition's run of records as the producer sent them; it stays bytes until something
is asked of it. A record's key, timestamp or headers, looked at, are decoded for all of its batch at
once, a column each, and without an object for each record: ten thousand new objects would also have
the collector look at them. A record keeps its batch, and the bytes that were fetched with it, in
memory. Both can be pickled, for pools of processes: a batch with its own bytes, a record without
its batch.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property, partial
from itertools import count, repeat
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from kdist.client.consumer.arrow import ARROW_COLUMNS, column_of
from kdist.errors import ApiError, CorruptRecords, Error
from kdist.model import TopicPartition
from kdist.records.batch import BatchHeader, TimestampType
from kdist.records.build import body_numbers, decode_body, read_body
from kdist.records.codec import decode_headers, decode_keys, decode_values
from kdist.records.record import HeaderPairs, Record
from kdist.wire.varint import Buffer

if TYPE_CHECKING:
    import pyarrow  # type: ignore[import-not-found, import-untyped, unused-ignore]

T = TypeVar("T")
Decoder = Callable[[bytes], Any]


class NotDecoded(ApiError):
    """A key or value that the application's decoder refuses; `offset` is where to `seek` past."""

    def __init__(self, partition: TopicPartition, offset: int, cause: Exception) -> None:
        super().__init__(
            Error.INVALID_RECORD,
            f"{partition}, offset {offset}: the decoder refuses it: {cause!r}",
        )
        self.partition = partition
        self.offset = offset


class CorruptFetch(CorruptRecords):
    """What was fetched of `partition` fails a check, from `offset` on."""

    def __init__(self, partition: TopicPartition, offset: int, fault: str) -> None:
        super().__init__(f"{partition}, at offset {offset}: {fault}")
        self.partition = partition
        self.offset = offset


class _Place(NamedTuple):
    """A record as its batch has it. A tuple, since any other object takes twice as long to make."""

    batch: Batch | _Alone
    place: int
    value: Any


class ConsumedRecord(_Place):
    """One record: `topic`, `partition`, `offset`, `timestamp`, `key`, `value`, `headers`.

    `timestamp` is ms since the epoch. `key` and `value` are bytes, or what the decoders made of
    them; None is null. `headers` are pairs of name and bytes.
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
        """Its place in the partition."""
        batch, place, _ = self
        return batch.all_offsets[place]

    @property
    def timestamp(self) -> int:
        """Milliseconds since the epoch, by the producer or, with log append time, the broker."""
        batch, place, _ = self
        return batch.all_timestamps[place]

    @property
    def timestamp_type(self) -> TimestampType:
        """Whose clock that was."""
        return self.batch.header.timestamp_type

    @property
    def key(self) -> Any:
        """What the producer chose the partition by, or None."""
        batch, place, _ = self
        return batch.all_keys[place]

    @property
    def headers(self) -> HeaderPairs:
        """Pairs of name and value; a name may come more than once."""
        batch, place, _ = self
        return batch.all_headers[place]

    @property
    def leader_epoch(self) -> int:
        """Of the leader that appended it, to be committed with the offset (KIP-320)."""
        return self.batch.header.partition_leader_epoch

    def __reduce__(self) -> tuple[Any, ...]:
        batch = self.batch
        record = Record(self.offset, self.timestamp, self.key, None, self.headers)
        return _record_alone, (batch.partition, batch.header, record, self.value)

    def __repr__(self) -> str:
        fields = ("topic", "partition", "offset", "timestamp", "key", "value", "headers")
        return f"ConsumedRecord({', '.join(f'{name}={getattr(self, name)!r}' for name in fields)})"


_make_record = partial(tuple.__new__, ConsumedRecord)


class _Alone:
    """What a record that was pickled has for a batch: itself, and what all of the batch shared."""

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
    """Records of one partition with offsets from `start` up to, not including, `end`.

    `len(batch)` and iteration are of those records. `header` and the bytes are the producer's
    batch, which may begin before `start`.
    """

    def __init__(
        self,
        partition: TopicPartition,
        header: BatchHeader,
        buffer: Buffer,
        at: int,
        start: int,
        decoders: tuple[Decoder | None, Decoder | None] = (None, None),
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
        """The whole batch as the log has it, whatever part of it this is; valid while this is."""
        return memoryview(self._buffer)[self._at : self._at + self.header.size]

    def part(self, start: int, end: int) -> Batch:
        """The same batch, but for records before `start` or from `end` on."""
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
        """What `read` gives; says where it is that something is damaged below a right checksum."""
        try:
            return read(*arguments)
        except CorruptRecords as error:
            raise CorruptFetch(self.partition, self.start, error.detail) from error

    # Of all its records, those that are not given included: by place

    @cached_property
    def numbers(self) -> tuple[array[int], array[int]]:
        """Their offsets and timestamps."""
        return self.placed(body_numbers, self.body, self.header)

    @cached_property
    def all_offsets(self) -> Sequence[int]:
        """Their offsets. Without gaps, as nearly all batches are, nothing is decoded for that."""
        if self._is_dense:
            return range(self.header.base_offset, self.header.next_offset)
        return self.numbers[0]

    @cached_property
    def all_timestamps(self) -> Sequence[int]:
        """Their timestamps."""
        return self.numbers[1]

    @cached_property
    def all_keys(self) -> list[Any]:
        """Their keys, those that are given as the decoder has them."""
        keys: list[Any] = self._column(decode_keys)
        if self._decode_key is not None:
            keys[self.places] = self._decoded(keys[self.places], self._decode_key)
        return keys

    @cached_property
    def all_headers(self) -> list[HeaderPairs]:
        """Their headers."""
        return self._column(decode_headers)

    def _column(self, decode: Callable[..., list[T]]) -> list[T]:
        return self.placed(decode, self.body, self.header.record_count)

    # Those from `start` to `end`

    @cached_property
    def places(self) -> slice:
        """Where they are among all."""
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
        """The values alone: the fastest way there is."""
        return self._decoded(self.raw_values(), self._decode_value)

    def keys(self) -> list[Any]:
        """The keys alone."""
        return self.all_keys[self.places]

    def offsets(self) -> Sequence[int]:
        """The records' offsets; a `range`, where they have no gaps."""
        offsets = self.all_offsets[self.places]
        return offsets if isinstance(offsets, range) else list(offsets)

    def timestamps(self) -> list[int]:
        """The records' timestamps, ms since the epoch."""
        return list(self.all_timestamps[self.places])

    def headers(self) -> list[HeaderPairs]:
        """The headers alone: of each record, pairs of name and value."""
        return self.all_headers[self.places]

    def records(self) -> list[ConsumedRecord]:
        """The records, each with all that belongs to it."""
        return self.records_of(self.checked_values(), 0)

    def checked_values(self) -> list[Any]:
        """The values; what refuses keys is raised here, too, and not where one is looked at."""
        if self._decode_key is not None:
            self.keys()
        return self.values()

    def records_of(self, values: Sequence[Any], index: int) -> list[ConsumedRecord]:
        """The records of some of the values, from an index on."""
        place: int = self.places.start + index
        return list(map(_make_record, zip(repeat(self), count(place), values)))

    def offset_at(self, index: int) -> int:
        """The offset of a record by its place among those that are given."""
        place: int = self.places.start + index
        return self.all_offsets[place]

    def raw_records(self) -> list[Record]:
        """The records as the codec gives them, no decoder asked."""
        return self._given(self.placed(decode_body, self.body, self.header))

    def raw_values(self) -> list[bytes | None]:
        """The values in bytes, no decoder asked."""
        return self._given(self._column(decode_values))

    def _decoded(self, items: list[Any], decode: Decoder | None) -> list[Any]:
        """The items from `start` on, as the application's decoder has them."""
        if decode is None:
            return items
        done: list[Any] = []
        try:
            done.extend(None if item is None else decode(item) for item in items)
        except Exception as cause:
            offset = self.offsets()[len(done)]
            raise NotDecoded(self.partition, offset, cause) from cause
        return done

    # As Arrow

    def to_arrow(self, columns: Sequence[str] = ARROW_COLUMNS) -> pyarrow.RecordBatch:
        """The records as Arrow, which must be installed; `columns` of `ARROW_COLUMNS`.

        Offsets are int64, timestamps in ms, keys and values binary (decoders are not asked),
        headers a list of name and value. Only what is named is decoded.
        """
        import pyarrow

        arrays = [column_of(pyarrow, self, name) for name in columns]
        return pyarrow.RecordBatch.from_arrays(arrays, names=list(columns))
