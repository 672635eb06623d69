"""Building whole batches from records, and reading them (pure): header, CRC, compression, body.

For code that makes or reads records: clients, markers, the cleaner, tools, tests. The broker moves
batches from socket to disk without it (design D5).
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence

from kdist.errors import CorruptRecords
from kdist.model import NO_EPOCH, NO_PRODUCER_EPOCH, NO_PRODUCER_ID, NO_SEQUENCE
from kdist.records.batch import (
    HEADER,
    HEADER_SIZE,
    LENGTH_PREFIX_SIZE,
    MAGIC,
    Attribute,
    BatchHeader,
    crc_fault,
    header_fault,
    read_header,
    seal,
)
from kdist.records.codec import decode_numbers, decode_records, encode_records
from kdist.records.compression import Codec, compress, decompress
from kdist.records.record import Headers, Record, check_size
from kdist.wire.primitives import Buffer

BODY_BYTES_MAX = 1 << 28  # the default limit for a decompressed body

# What the event loop unpacks: batches of this size that hold so much, which is a quarter of a
# millisecond of gzip.
_BRIEF_PACKED_BYTES = 16 << 10
BRIEF_BODY_BYTES = 64 << 10

_TRANSACTIONAL = int(Attribute.TRANSACTIONAL)
_CONTROL = int(Attribute.CONTROL)


def build_batch(  # noqa: PLR0913 - a header's fields, each with a name and all but two optional
    values: Sequence[Buffer | None],
    keys: Sequence[Buffer | None] | None = None,
    headers: Sequence[Headers] | None = None,
    timestamps: Sequence[int] | None = None,
    *,
    timestamp_ms: int,
    codec: Codec = Codec.NONE,
    base_offset: int = 0,
    leader_epoch: int = NO_EPOCH,
    producer_id: int = NO_PRODUCER_ID,
    producer_epoch: int = NO_PRODUCER_EPOCH,
    base_sequence: int = NO_SEQUENCE,
    is_transactional: bool = False,
    is_control: bool = False,
) -> bytearray:
    """A batch of `values` with consecutive offsets from `base_offset`, ready to send or append.

    All records have `timestamp_ms`, unless `timestamps` gives each its own. Raises as
    `encode_records`, and `ValueError` without values.
    """
    if not values:
        raise ValueError("a batch needs at least one record")
    base_timestamp = timestamps[0] if timestamps is not None and len(timestamps) else timestamp_ms
    if codec == Codec.NONE:
        batch = encode_records(values, keys, headers, timestamps, base_timestamp, HEADER_SIZE)
    else:
        body = encode_records(values, keys, headers, timestamps, base_timestamp)
        batch = bytearray(HEADER_SIZE)
        batch += compress(codec, body)
        check_size(len(batch))
    header = BatchHeader(
        base_offset=base_offset,
        batch_length=len(batch) - LENGTH_PREFIX_SIZE,
        partition_leader_epoch=leader_epoch,
        magic=MAGIC,
        crc=0,
        attributes=codec | is_transactional * _TRANSACTIONAL | is_control * _CONTROL,
        last_offset_delta=len(values) - 1,
        base_timestamp=base_timestamp,
        max_timestamp=timestamp_ms if timestamps is None else max(timestamps),
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=base_sequence,
        record_count=len(values),
    )
    HEADER.pack_into(batch, 0, *header)
    seal(batch, 0, len(batch))
    return batch


def read_batch(
    buffer: Buffer, position: int = 0, *, body_bytes_max: int = BODY_BYTES_MAX
) -> list[Record]:
    """The records of the batch at `position`, with its header, CRC and records checked.

    Raises `CorruptRecords`, also for a decompressed body of more than `body_bytes_max`.
    """
    header = read_header(buffer, position)
    fault = header_fault(header, len(buffer) - position) or crc_fault(buffer, position, header)
    if fault:
        raise CorruptRecords(fault)
    return read_records(buffer, position, header, body_bytes_max=body_bytes_max)


def read_records(
    buffer: Buffer, position: int, header: BatchHeader, *, body_bytes_max: int = BODY_BYTES_MAX
) -> list[Record]:
    """As `read_batch`, for a batch whose header and CRC the caller has checked."""
    return decode_body(read_body(buffer, position, header, body_bytes_max=body_bytes_max), header)


def decode_body(body: Buffer, header: BatchHeader) -> list[Record]:
    """The records in a batch's body, as `read_body` returns it."""
    return decode_records(body, *_numbers_of(header))


def body_numbers(body: Buffer, header: BatchHeader) -> tuple[array[int], array[int]]:
    """Only the offsets and timestamps of the records in a batch's body."""
    return decode_numbers(body, *_numbers_of(header))


def _numbers_of(header: BatchHeader) -> tuple[int, int, int, int | None]:
    append_timestamp = header.max_timestamp if header.is_log_append_time else None
    return header.record_count, header.base_offset, header.base_timestamp, append_timestamp


def read_body(
    buffer: Buffer, position: int, header: BatchHeader, *, body_bytes_max: int = BODY_BYTES_MAX
) -> Buffer:
    """The records section of a batch, decompressed; a view of `buffer` if it has no codec."""
    body = memoryview(buffer)[position + HEADER_SIZE : position + header.size]
    if header.codec == Codec.NONE:
        return body
    return decompress(Codec(header.codec), body, body_bytes_max)


def read_brief_body(
    buffer: Buffer, position: int, header: BatchHeader, *, body_bytes_max: int = BODY_BYTES_MAX
) -> Buffer | None:
    """As `read_body`; None if that may take long, or if the body is damaged."""
    if header.codec and header.size > _BRIEF_PACKED_BYTES:
        return None
    try:
        return read_body(
            buffer, position, header, body_bytes_max=min(BRIEF_BODY_BYTES, body_bytes_max)
        )
    except CorruptRecords:
        return None
