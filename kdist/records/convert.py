"""From one format to another (pure): magic 0 and 1 up to batches, batches down, codec to codec.

Up is for what old clients produce, since only batches are stored; down for what they fetch. What a
format has no place for is lost: headers going down, and timestamps going down to magic 0, which
come up again as -1. Keys and values, null or empty, always survive. Both ways yield one piece at a
time and hold one piece's content in memory, and a caller with a limit can stop between them.
Source: KIP-31, KIP-32, KIP-98, KIP-110, Kafka's `LogValidator` and `RecordsUtil.downConvert`.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator

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
from kdist.records.build import build_batch, read_body, read_records
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
    for source_codec, records in _runs(messages, size_max):
        yield _build(records, source_codec if codec is None else codec)


def _runs(messages: Iterable[Message], size_max: int) -> Iterator[tuple[Codec, list[Record]]]:
    for are_wrappers, run in itertools.groupby(messages, lambda message: message.is_wrapper):
        if are_wrappers:
            for wrapper in run:
                yield wrapper.codec, list(open_message(wrapper, size_max))
        else:
            yield (
                Codec.NONE,
                [record for message in run for record in open_message(message, size_max)],
            )


def _build(records: list[Record], codec: Codec) -> bytearray:
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


def down_convert(batches: Buffer, magic: int, fetch_offset: int, size_max: int) -> Iterator[bytes]:
    """Stored batches as message sets of `magic`, one for each, offsets kept, to be sent in a row.

    Control batches are left out, as old consumers know none. Records below `fetch_offset` are
    dropped where the batch was not compressed: old librdkafka relies on it. A last batch that is
    cut is left out. Raises CorruptRecords; and UNSUPPORTED_COMPRESSION_TYPE on reaching a zstd
    batch: what was yielded before is good, and worth an answer of its own.
    """
    for position, header in iter_headers(batches, may_end_partial=True):
        if header.is_control:
            continue
        if header.codec == Codec.ZSTD:
            raise ApiError(
                Error.UNSUPPORTED_COMPRESSION_TYPE, f"magic {magic} cannot carry zstd records"
            )
        fault = crc_fault(batches, position, header)
        if fault:
            raise CorruptRecords(f"the batch at byte {position}: {fault}")
        records = read_records(batches, position, header, body_bytes_max=size_max)
        if header.codec == Codec.NONE:
            records = [record for record in records if record.offset >= fetch_offset]
        if records:
            append_time_ms = header.max_timestamp if header.is_log_append_time else None
            codec = Codec(header.codec)
            yield write_message_set(records, magic, codec, append_time_ms=append_time_ms)


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
