"""The header of a record batch, magic 2 (pure): read it, check it, patch what the broker sets.

    at  bytes  field                    at  bytes  field
     0      8  base offset              27      8  base timestamp, ms
     8      4  length: bytes from 12    35      8  max timestamp, ms
    12      4  partition leader epoch   43      8  producer id, -1 none
    16      1  magic, 2                 51      2  producer epoch
    17      4  CRC-32C of all from 21   53      4  base sequence
    21      2  attributes               57      4  record count
    23      4  last offset delta        61         records, compressed as one block

Attributes, from the lowest bit: 0-2 codec, 3 log append time, 4 transactional, 5 control, 6 delete
horizon (then the base timestamp is when tombstones may be removed). Big endian. The CRC does not
cover what the leader assigns, the base offset and the leader epoch: all else is stored as produced.
`codec.py` encodes and decodes the records. Source: KIP-98, KIP-534.
"""

from __future__ import annotations

import enum
import struct
from collections.abc import Iterator
from typing import NamedTuple

from kdist.errors import CorruptRecords
from kdist.model import NO_SEQUENCE
from kdist.records.compression import CODEC_MASK, CODEC_MAX, content_bound
from kdist.wire.crc32c import crc32c
from kdist.wire.primitives import Buffer

HEADER = struct.Struct(">qiibIhiqqqhii")
HEADER_SIZE = HEADER.size  # 61
LENGTH_PREFIX_SIZE = 12  # base offset and length: enough to know a batch's size
MAGIC = 2
MAGIC_POSITION = 16  # in the old formats too
RECORD_SIZE_MIN = 7  # each of a record's seven fields takes at least one byte
# How far the max timestamp of a compressed batch may lie above its base timestamp and be believed.
TRUSTED_SPAN_MS = 24 * 3600 * 1000

_CRC_POSITION = 17
CHECKED_POSITION = 21  # the CRC covers everything from here to the end of the batch
_MAX_TIMESTAMP_POSITION = 35
_SEQUENCE_MASK = 0x7FFF_FFFF

_CRC = struct.Struct(">I")
_ATTRIBUTES = struct.Struct(">h")
_TIMESTAMP = struct.Struct(">q")


class Attribute(enum.IntFlag):
    """Bits of the attributes above the codec's three."""

    LOG_APPEND_TIME = 1 << 3
    TRANSACTIONAL = 1 << 4
    CONTROL = 1 << 5
    DELETE_HORIZON = 1 << 6


# Plain integers: arithmetic on IntFlag members costs a microsecond each.
_LOG_APPEND_TIME = int(Attribute.LOG_APPEND_TIME)
_TRANSACTIONAL = int(Attribute.TRANSACTIONAL)
_CONTROL = int(Attribute.CONTROL)
_DELETE_HORIZON = int(Attribute.DELETE_HORIZON)


class TimestampType(enum.IntEnum):
    """Who set the timestamps: the producer, or the leader when it appended."""

    CREATE_TIME = 0
    LOG_APPEND_TIME = 1


class BatchHeader(NamedTuple):
    """The 61 bytes of a header as values, and what follows from them."""

    base_offset: int
    batch_length: int
    partition_leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    record_count: int

    @property
    def size(self) -> int:
        return LENGTH_PREFIX_SIZE + self.batch_length

    @property
    def last_offset(self) -> int:
        """The offset of the last record, also when compaction has removed that record."""
        return self.base_offset + self.last_offset_delta

    @property
    def next_offset(self) -> int:
        return self.base_offset + self.last_offset_delta + 1

    @property
    def is_dense(self) -> bool:
        """Every offset of its range has a record, as produced; compaction leaves gaps."""
        return 0 < self.record_count == self.last_offset_delta + 1

    @property
    def last_sequence(self) -> int:
        """The sequence number of the last record, -1 without one; it wraps from 2**31 - 1 to 0."""
        if self.base_sequence == NO_SEQUENCE:
            return NO_SEQUENCE
        return self.base_sequence + self.last_offset_delta & _SEQUENCE_MASK

    @property
    def codec(self) -> int:
        """The compression codec's number, `compression.Codec` if it is known."""
        return self.attributes & CODEC_MASK

    @property
    def timestamp_type(self) -> TimestampType:
        """Who set the timestamps."""
        return TimestampType(self.attributes >> 3 & 1)

    @property
    def is_log_append_time(self) -> bool:
        """All records carry `max_timestamp`, whatever their own deltas say."""
        return bool(self.attributes & _LOG_APPEND_TIME)

    @property
    def is_transactional(self) -> bool:
        return bool(self.attributes & _TRANSACTIONAL)

    @property
    def is_control(self) -> bool:
        """The batch holds a marker for brokers and consumers, not an application's records."""
        return bool(self.attributes & _CONTROL)

    @property
    def has_delete_horizon(self) -> bool:
        """`base_timestamp` is when the tombstones in the batch may be removed."""
        return bool(self.attributes & _DELETE_HORIZON)


class Batch(NamedTuple):
    """A checked batch: its header, and exactly its bytes."""

    header: BatchHeader
    data: Buffer


def read_header(buffer: Buffer, position: int = 0) -> BatchHeader:
    """The header at `position`, unchecked; `CorruptRecords` if fewer than 61 bytes are left."""
    try:
        return BatchHeader._make(HEADER.unpack_from(buffer, position))
    except struct.error:
        left = len(buffer) - position
        raise CorruptRecords(f"{left} bytes are too few for a record batch's header") from None


# --- what a header may claim --------------------------------------------------------------------
#
# Each condition, with its sentence, stands here. `_header.pxd` and `_compiled_produced.py` ask the
# same and say yes or no; a test has all of them judge the same headers.


def header_fault(header: BatchHeader, available_bytes: int) -> str | None:
    """What is wrong with a batch, new or stored, by its header alone; None if nothing is.

    `available_bytes` counts from the batch's first byte to the end of its buffer or file. A stored
    batch may have lost records, even all of them, to compaction: so its record count may be smaller
    than its range of offsets.
    """
    size = LENGTH_PREFIX_SIZE + header.batch_length
    count = header.record_count
    if header.magic != MAGIC:
        return f"magic is {header.magic}, not {MAGIC}"
    if size < HEADER_SIZE:
        return f"size of {size} bytes is smaller than its header"
    if size > available_bytes:
        return f"size of {size} bytes is larger than the {available_bytes} bytes there are"
    if header.attributes & CODEC_MASK > CODEC_MAX:
        return f"codec {header.codec} is unknown"
    if header.base_offset < 0:
        return f"base offset {header.base_offset} is negative"
    if header.last_offset_delta < 0:
        return f"last offset delta {header.last_offset_delta} is negative"
    if not 0 <= count <= header.last_offset_delta + 1:
        return f"{count} records do not fit a last offset delta of {header.last_offset_delta}"
    if not header.attributes & CODEC_MASK and count * RECORD_SIZE_MIN > size - HEADER_SIZE:
        return f"{count} records do not fit in {size - HEADER_SIZE} bytes"
    return None


def producer_fault(header: BatchHeader, body: Buffer | None = None) -> str | None:
    """Why a valid batch must not be produced by a client (INVALID_RECORD); None if it may.

    With the batch's body, which may be compressed, what it can hold at most is known better than by
    its size. A log may have such batches from a broker that did not look. Source: Kafka's
    `LogValidator.validateBatch`; Kafka finds a wrong count when it unpacks the batch.
    """
    count = header.record_count
    if header.base_offset != 0:
        return f"has base offset {header.base_offset}: a producer's must be 0"
    if count == 0:
        return "holds no records"
    if count != header.last_offset_delta + 1:
        return (
            f"has {count} records for {header.last_offset_delta + 1} offsets:"
            " a producer leaves no gaps"
        )
    if header.attributes & _CONTROL:
        return "is a control batch, which only brokers write"
    if header.producer_id >= 0 and header.base_sequence < 0:
        return f"has producer id {header.producer_id} but sequence {header.base_sequence}"
    if header.codec <= CODEC_MAX:
        packed_bytes = header.size - HEADER_SIZE
        if count * RECORD_SIZE_MIN > content_bound(header.codec, packed_bytes, body):
            return f"has {count} records in {packed_bytes} bytes, which cannot hold them"
    return None


def has_likely_max_timestamp(header: BatchHeader) -> bool:
    """Whether the max timestamp may be that of the records, as far as the header shows.

    It is below the base timestamp if the producer did not set it. Of a compressed batch it is not
    believed if it is far above: one that lies in the future would keep its segment for ever.
    """
    span_ms = header.max_timestamp - header.base_timestamp
    return span_ms >= 0 and (not header.attributes & CODEC_MASK or span_ms <= TRUSTED_SPAN_MS)


def crc_fault(buffer: Buffer, position: int, header: BatchHeader) -> str | None:
    """How the batch, which is whole in `buffer`, fails its checksum; None if it does not."""
    end = position + LENGTH_PREFIX_SIZE + header.batch_length
    computed = crc32c(memoryview(buffer)[position + CHECKED_POSITION : end])
    if computed == header.crc:
        return None
    return f"CRC is {header.crc:08x} but its bytes give {computed:08x}"


# --- writing a header, and walking over batches -------------------------------------------------


def stamp_append_time(buffer: bytearray | memoryview, position: int, now_ms: int) -> None:
    """Set a valid batch to log append time `now_ms` in place, and update its CRC.

    The records keep their deltas: readers use `max_timestamp` for all of them.
    """
    header = read_header(buffer, position)
    _ATTRIBUTES.pack_into(buffer, position + CHECKED_POSITION, header.attributes | _LOG_APPEND_TIME)
    _TIMESTAMP.pack_into(buffer, position + _MAX_TIMESTAMP_POSITION, now_ms)
    seal(buffer, position, header.size)


def set_max_timestamp(buffer: bytearray | memoryview, position: int, timestamp_ms: int) -> None:
    """Set the batch's max timestamp in place, and update its CRC."""
    _TIMESTAMP.pack_into(buffer, position + _MAX_TIMESTAMP_POSITION, timestamp_ms)
    seal(buffer, position, read_header(buffer, position).size)


def assembled(header: BatchHeader, body: Buffer) -> bytearray:
    """The batch with this body and header, but for its length and CRC, which are the right ones."""
    batch = bytearray(HEADER_SIZE)
    batch += body
    length = len(batch) - LENGTH_PREFIX_SIZE
    HEADER.pack_into(batch, 0, *header._replace(batch_length=length))
    seal(batch, 0, len(batch))
    return batch


def seal(buffer: bytearray | memoryview, position: int, size: int) -> None:
    """Write the CRC of the batch of `size` bytes at `position`, after all else is written."""
    checksum = crc32c(memoryview(buffer)[position + CHECKED_POSITION : position + size])
    _CRC.pack_into(buffer, position + _CRC_POSITION, checksum)


def iter_headers(
    buffer: Buffer, *, may_end_partial: bool = False
) -> Iterator[tuple[int, BatchHeader]]:
    """Each batch's position and header, for batches that follow each other directly.

    Raises `CorruptRecords` where `header_fault` finds something. With `may_end_partial`, as in a
    fetch response cut by a byte limit, an incomplete last batch ends the iteration instead.
    """
    position, end = 0, len(buffer)
    while position < end:
        left = end - position
        if may_end_partial and left < HEADER_SIZE:
            return
        header = read_header(buffer, position)
        if may_end_partial and header.size > left:
            return
        fault = header_fault(header, left)
        if fault:
            raise CorruptRecords(f"the batch at byte {position}: {fault}")
        yield position, header
        position += header.size


def is_partial(buffer: Buffer, position: int) -> bool:
    """Whether the batch at `position` extends past the end of `buffer`, by its length field."""
    left = len(buffer) - position
    return left < HEADER_SIZE or read_header(buffer, position).size > left
