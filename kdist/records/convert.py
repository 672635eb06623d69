"""From one format to another (pure): magic 0 and 1 up to batches, batches down, codec to codec.

Up is for what old clients produce, since only batches are stored; down for what they fetch. What a
format has no place for is lost: headers going down, and timestamps going down to magic 0, which
come up again as -1. Keys and values, null or empty, always survive. Both ways yield one piece at a
time and hold one piece's content in memory; going down stops when its `Budget` is spent.
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


def up_convert(
    messages: Iterable[Message], size_max: int, codec: Codec | None = None
) -> Iterator[bytearray]:
    """Messages of magic 0 or 1, also mixed, as batches: one per wrapper and per run of others.

    Every batch has dense offsets from 0, for the log to move. It keeps the codec of its wrapper,
    unless `codec` says another. Raises CorruptRecords for a wrapper that is damaged or holds more
    than `size_max` bytes.
    """
    for are_wrappers, run in itertools.groupby(messages, lambda message: message.is_wrapper):
        if are_wrappers:
            for wrapper in run:
                records = list(open_message(wrapper, size_max))
                yield _build(records, wrapper.codec if codec is None else codec)
        else:
            yield _build(list(run), Codec.NONE if codec is None else codec)


def _build(records: Sequence[Record | Message], codec: Codec) -> bytearray:
    try:
        return build_batch(
            [record.value for record in records],
            [record.key for record in records],
            timestamps=[record.timestamp for record in records],
            timestamp_ms=NO_TIMESTAMP,
            codec=codec,
        )
    except ValueError as cause:  # timestamps too far apart for a batch, which needs a corrupt one
        raise CorruptRecords(f"the messages do not fit in a batch: {cause}") from cause


@dataclass(slots=True)
class Budget:
    """What one answer may unpack to be converted, which takes everybody's time.

    A record takes 1 to 2 µs, a byte 3 ns and with gzip 8 (Debian's Python 3.11): 0.15 s in all.
    The batch that spends it may go beyond, up to what any batch may hold: a few kilobytes can be
    packed so that they hold gigabytes.
    """

    records: int = 50_000
    bytes: int = 16 << 20
    batch_records_max: int = 500_000
    batch_bytes_max: int = 64 << 20

    @property
    def is_spent(self) -> bool:
        """Nothing more is to be converted for this answer."""
        return self.records <= 0 or self.bytes <= 0


def down_convert(batches: Buffer, magic: int, fetch_offset: int, budget: Budget) -> Iterator[bytes]:
    """Stored batches as message sets of `magic`, one for each, offsets kept, to be sent in a row.

    Control batches are left out, as old consumers know none. Records below `fetch_offset` are
    dropped where the batch was not compressed: old librdkafka relies on it. A last batch that is
    cut is left out. Ends when `budget` is spent, after so many records of the last batch as it had
    left: a consumer goes on behind those. Raises CorruptRecords, also for a batch with more bytes
    than the budget has for any, MESSAGE_TOO_LARGE for one with more records; and
    UNSUPPORTED_COMPRESSION_TYPE on reaching a zstd batch. What was yielded before is good, and
    worth an answer of its own.
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
        fault = crc_fault(batches, position, header)
        if fault:
            raise CorruptRecords(f"the batch at byte {position}: {fault}")
        records = _wanted(batches, position, header, fetch_offset, budget)
        if records:
            append_time_ms = header.max_timestamp if header.is_log_append_time else None
            codec = Codec(header.codec)
            yield write_message_set(records, magic, codec, append_time_ms=append_time_ms)


def _wanted(
    batches: Buffer, position: int, header: BatchHeader, fetch_offset: int, budget: Budget
) -> list[Record]:
    body = read_body(batches, position, header, body_bytes_max=budget.batch_bytes_max)
    records = decode_body(body, header)
    if header.codec == Codec.NONE or len(records) > budget.records:
        records = [record for record in records if record.offset >= fetch_offset]
    wanted = records[: budget.records]
    budget.records -= len(wanted)
    budget.bytes -= len(body)
    return wanted


def recompress(batch: Buffer, header: BatchHeader, codec: Codec, size_max: int) -> bytearray:
    """The batch with the same records under another codec; they are not looked at.

    Raises CorruptRecords if its body is damaged or takes more than `size_max` bytes.
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
