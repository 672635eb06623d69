"""Conversion between record formats (pure): magic 0 and 1 up to 2, 2 down, and codec to codec.

Old clients produce message sets, which are up-converted, since only batches are stored; what they
fetch is down-converted. Down-conversion loses headers, and to magic 0 also timestamps, which an
up-conversion gives as -1. Keys and values, null or empty, always survive. Both directions yield one
batch or set at a time and hold only its content in memory; down-conversion stops when its `Budget`
is spent.
Source: KIP-31, KIP-32, KIP-98, KIP-110, Kafka's `LogValidator` and `RecordsUtil.downConvert`.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from kdist.errors import ApiError, CorruptRecords, Error
from kdist.model import NO_TIMESTAMP
from kdist.records.batch import (
    HEADER,
    HEADER_SIZE,
    LENGTH_PREFIX_SIZE,
    BatchHeader,
    crc_fault,
    iter_headers,
    seal,
)
from kdist.records.build import build_batch, decode_body, read_body
from kdist.records.compression import CODEC_MASK, Codec, compress
from kdist.records.message_set import Message, open_message, write_message_set
from kdist.records.record import Record
from kdist.wire.varint import Buffer

# For `Budget.spend`, which counts uncompressed bytes.
_BATCH_BYTES = 4 << 10  # the fixed cost of a batch, in bytes that take as long
_COMPRESSED_WEIGHT = 4


def up_convert(
    messages: Iterable[Message], size_max: int, codec: Codec | None = None
) -> Iterator[bytearray]:
    """Messages of magic 0 or 1, also mixed, as batches: one per wrapper, one per run of others.

    Every batch has consecutive offsets from 0, for the log to assign. It keeps its wrapper's codec,
    unless `codec` is given. Raises `CorruptRecords` for a wrapper that is damaged or holds more
    than `size_max` bytes.
    """
    for are_wrappers, run in itertools.groupby(messages, lambda message: message.is_wrapper):
        if are_wrappers:
            for wrapper in run:
                own = open_message(wrapper, size_max)
                yield batch_of(list(own), wrapper.codec if codec is None else codec)
        else:
            yield batch_of(list(run), Codec.NONE if codec is None else codec)


def batch_of(
    records: Sequence[Record | Message], codec: Codec, *, base_offset: int = 0
) -> bytearray:
    """A batch of what messages hold; `CorruptRecords` if one batch cannot hold it."""
    try:
        return build_batch(
            [record.value for record in records],
            [record.key for record in records],
            timestamps=[record.timestamp for record in records],
            timestamp_ms=NO_TIMESTAMP,
            codec=codec,
            base_offset=base_offset,
        )
    except ValueError as cause:  # timestamps too far apart for a batch: some must be corrupt
        raise CorruptRecords(f"the messages do not fit in a batch: {cause}") from cause


class TakesLong(Exception):
    """A gzip batch would have to be recompressed, but the `Budget` has no time for that."""


@dataclass(slots=True)
class Budget:
    """How much may be down-converted for one fetch response, which blocks the loop: 10 to 20 ms.

    A record takes 1 µs, a byte 3 ns and a batch 4 µs; a byte four times that if compressed. A byte
    of gzip takes 40 ns: too long for the loop, so it is done only with `has_time`. The last batch
    may exceed the budget, up to the limits for any batch: a few compressed kilobytes can hold
    gigabytes.
    """

    records: int = 15_000
    bytes: int = 4 << 20
    batch_records_max: int = 500_000
    batch_bytes_max: int = 64 << 20
    has_time: bool = True

    @property
    def is_spent(self) -> bool:
        """Nothing more may be converted for this response."""
        return self.records <= 0 or self.bytes <= 0

    def spend(self, records: int, body_bytes: int, codec: Codec) -> None:
        """Count what was converted of a batch."""
        self.records -= records
        weight = 1 if codec == Codec.NONE else _COMPRESSED_WEIGHT
        self.bytes -= weight * (_BATCH_BYTES + body_bytes)


def down_convert(
    batches: Buffer, magic: int, fetch_offset: int, budget: Budget
) -> Iterator[Buffer]:
    """Stored batches as message sets of `magic`, one for each batch, with the same offsets.

    Control batches are left out, since old consumers do not know them, and so is a last batch that
    is incomplete. Records of an uncompressed batch below `fetch_offset` are dropped: old librdkafka
    relies on that. Ends when `budget` is spent; of the last batch only as many records are
    converted as were left in it, and the consumer's next fetch goes on after those.

    Raises `CorruptRecords`, also for a batch of more than the budget's `batch_bytes_max`;
    MESSAGE_TOO_LARGE for one of more than `batch_records_max`; UNSUPPORTED_COMPRESSION_TYPE for a
    zstd batch; `TakesLong` for gzip without `has_time`. Sets yielded before that can be sent.
    """
    for position, header in iter_headers(batches, may_end_partial=True):
        if budget.is_spent:
            return
        if header.is_control:
            continue
        if header.record_count > budget.batch_records_max:
            raise ApiError(
                Error.MESSAGE_TOO_LARGE, f"{header.record_count} records in a batch to convert"
            )
        if header.codec == Codec.ZSTD:
            raise ApiError(
                Error.UNSUPPORTED_COMPRESSION_TYPE, f"magic {magic} cannot carry zstd records"
            )
        if header.codec == Codec.GZIP and not budget.has_time:
            raise TakesLong
        fault = crc_fault(batches, position, header)
        if fault:
            raise CorruptRecords(f"the batch at byte {position}: {fault}")
        message_set = _down_convert_batch(batches, position, header, magic, fetch_offset, budget)
        if message_set:
            yield message_set


def _down_convert_batch(
    batches: Buffer,
    position: int,
    header: BatchHeader,
    magic: int,
    fetch_offset: int,
    budget: Budget,
) -> bytes:
    codec = Codec(header.codec)
    body = read_body(batches, position, header, body_bytes_max=budget.batch_bytes_max)
    is_dropped = codec == Codec.NONE or header.record_count > budget.records
    lowest_offset = fetch_offset if is_dropped else header.base_offset
    append_time_ms = header.max_timestamp if header.is_log_append_time else None
    decoded = decode_body(body, header)
    records = [record for record in decoded if record.offset >= lowest_offset][: budget.records]
    budget.spend(len(records), len(body), codec)
    return write_message_set(records, magic, codec, append_time_ms=append_time_ms)


def recompress(batch: Buffer, header: BatchHeader, codec: Codec, size_max: int) -> bytearray:
    """The batch recompressed with another codec, without decoding its records.

    Raises `CorruptRecords` if its body is damaged or takes more than `size_max` bytes.
    """
    body = compress(codec, read_body(batch, 0, header, body_bytes_max=size_max))
    recompressed = bytearray(HEADER_SIZE)
    recompressed += body
    changed = header._replace(
        batch_length=len(recompressed) - LENGTH_PREFIX_SIZE,
        attributes=header.attributes & ~CODEC_MASK | codec,
    )
    HEADER.pack_into(recompressed, 0, *changed)
    seal(recompressed, 0, len(recompressed))
    return recompressed
