"""Validation of a produced record set before it is appended (pure).

A batch of magic 2 is checked by its header and CRC, and record by record if it is not compressed;
then it is passed on unchanged. It is not decompressed or decoded unless the topic's rules need that
(design D5). Message sets of old clients are converted first. Not here: sequence numbers, which need
the producer's state, and offsets, which the log assigns.

Not checked, unlike in Kafka: the max timestamp in the header, and the records of a compressed batch
unless the topic asks for that.
Source: Kafka's `ProduceRequest.validateRecords`, `UnifiedLog.analyzeAndValidateRecords` and
`LogValidator`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import NamedTuple

from kdist.errors import ApiError, CorruptRecords, Error
from kdist.model import NO_TIMESTAMP
from kdist.records import batch as batch_format
from kdist.records import message_set
from kdist.records.batch import Batch, BatchHeader, TimestampType
from kdist.records.build import BODY_BYTES_MAX, read_body, read_records
from kdist.records.codec import (
    are_whole,
    check_batch,
    decode_numbers,
    decode_records,
    find_null_key,
)
from kdist.records.compression import CODEC_MASK, Codec
from kdist.records.convert import recompress, up_convert
from kdist.records.message_set import Message
from kdist.wire.varint import Buffer

NO_LIMIT = (1 << 63) - 1  # the default of both timestamp limits, in ms

_FIRST_VERSION_OF_BATCHES = 3  # of Produce: from here on exactly one batch of magic 2
_FIRST_VERSION_OF_ZSTD = 7
_LOG_APPEND_TIME = int(batch_format.Attribute.LOG_APPEND_TIME)
_ZSTD = int(Codec.ZSTD)


@dataclasses.dataclass(frozen=True, slots=True)
class Rules:
    """A topic's settings that concern its records. Made once per topic, not per request."""

    message_bytes_max: int
    """`max.message.bytes`: of a batch, or of an old message or wrapper, header included."""
    codec: Codec | None = None
    """`compression.type`; None is "producer": unchanged."""
    is_compacted: bool = False
    """`cleanup.policy` has "compact": every record needs a key."""
    timestamp_type: TimestampType = TimestampType.CREATE_TIME
    """`message.timestamp.type`."""
    timestamp_before_max_ms: int = NO_LIMIT
    """`message.timestamp.before.max.ms`: how far back a record's timestamp may lie."""
    timestamp_after_max_ms: int = NO_LIMIT
    """`message.timestamp.after.max.ms`: how far ahead."""
    validates_compressed: bool = False
    """`message.compressed.validation.enable`: unpack each batch, to refuse what nobody can read."""
    body_bytes_max: int = BODY_BYTES_MAX
    """The limit for a body, where it has to be decompressed."""

    is_plain: bool = dataclasses.field(init=False)
    """These rules need no more than `check_batch` looks at, and never change a batch."""

    def __post_init__(self) -> None:
        is_plain = (
            self.codec is None
            and not self.is_compacted
            and not self.validates_compressed
            and not self.is_append_time
            and self.timestamp_before_max_ms == self.timestamp_after_max_ms == NO_LIMIT
        )
        object.__setattr__(self, "is_plain", is_plain)

    @property
    def is_append_time(self) -> bool:
        """The broker stamps its own time on every batch."""
        return self.timestamp_type == TimestampType.LOG_APPEND_TIME


class RecordFault(NamedTuple):
    """A record that broke a rule, as reported in responses of Produce 8 and later."""

    batch_index: int
    reason: str


class InvalidRecords(ApiError):
    """INVALID_RECORD or INVALID_TIMESTAMP, with the records that caused it."""

    def __init__(self, error: Error, faults: list[RecordFault]) -> None:
        super().__init__(error, f"record {faults[0].batch_index} {faults[0].reason}")
        self.faults = faults


def validate(records: Buffer, rules: Rules, *, api_version: int, now_ms: int) -> list[Batch]:
    """The batches of one partition's `records` in a Produce of `api_version`, ready to append.

    One batch since version 3; before that, as many as `up_convert` makes of a message set, none for
    an empty one. An unchanged batch is a view of `records`, or a copy if `records` is read-only.
    Log append time and the topic's codec are applied.

    Raises `ApiError`: CORRUPT_MESSAGE (size, CRC, old formats), MESSAGE_TOO_LARGE,
    INVALID_RECORD, INVALID_TIMESTAMP, UNSUPPORTED_COMPRESSION_TYPE (zstd before version 7),
    TRANSACTIONAL_ID_AUTHORIZATION_FAILED (any transactional batch).
    """
    if rules.is_plain and (batch := plain_batch(records, rules, api_version)) is not None:
        return [batch]
    magic = _magic(records, api_version)
    if magic == batch_format.MAGIC:
        return [_accept(records, rules, api_version, now_ms)]
    if api_version >= _FIRST_VERSION_OF_BATCHES:
        raise _invalid(f"Produce {api_version} takes no records of magic {magic}")
    messages = _checked_messages(records, rules)
    batches = up_convert(messages, rules.body_bytes_max, rules.codec)
    return [_accept(batch, rules, _FIRST_VERSION_OF_ZSTD, now_ms) for batch in batches]


def plain_batch(records: Buffer, rules: Rules, api_version: int) -> Batch | None:
    """The one batch of a produce, if it passes every check of `_checked_header`.

    None for anything else: `validate` then finds out what it is. `rules` must be plain.
    """
    size, size_max = len(records), rules.message_bytes_max
    return check_batch(memoryview(records), 0, size, size_max, codec_max(api_version))


def codec_max(api_version: int) -> int:
    """The highest codec number that a Produce of this version may use."""
    return _ZSTD if api_version >= _FIRST_VERSION_OF_ZSTD else _ZSTD - 1


def _magic(records: Buffer, api_version: int) -> int:
    if len(records) > batch_format.MAGIC_POSITION:
        return records[batch_format.MAGIC_POSITION]
    if len(records):
        raise CorruptRecords(f"{len(records)} bytes are too few for records of any format")
    if api_version >= _FIRST_VERSION_OF_BATCHES:
        raise _invalid(f"Produce {api_version} needs one record batch per partition")
    return 0


# --- batches ------------------------------------------------------------------------------------


def _accept(batch: Buffer, rules: Rules, api_version: int, now_ms: int) -> Batch:
    header = _checked_header(batch, rules, api_version)
    try:
        if rules.validates_compressed or not header.attributes & CODEC_MASK:
            _check_records(batch, header, rules)
        if rules.is_compacted:
            _check_keys(batch, header, rules)
        if not rules.is_append_time:
            batch, header = _with_max_timestamp(batch, header, rules)
            _check_timestamps(batch, header, rules, now_ms)
        if rules.codec is not None and rules.codec != header.attributes & CODEC_MASK:
            batch = recompress(batch, header, rules.codec, rules.body_bytes_max)
            _check_size(len(batch), rules)
            header = batch_format.read_header(batch)
    except CorruptRecords as unreadable:
        raise _invalid(f"the batch cannot be read: {unreadable.detail}") from unreadable
    view = memoryview(batch)
    if view.readonly:
        view = memoryview(bytearray(view))
    if rules.is_append_time:
        batch_format.stamp_append_time(view, 0, now_ms)
        header = batch_format.read_header(view)
    return Batch(header, view)


def _checked_header(batch: Buffer, rules: Rules, api_version: int) -> BatchHeader:
    """The header of the single batch that `batch` must be. Kafka's order: size, CRC, content.

    A fault under a right CRC was not caused in transit, so it is INVALID_RECORD, on which a
    producer gives up. On CORRUPT_MESSAGE it would send the same again until its timeout.
    """
    header = batch_format.read_header(batch)
    size = len(batch)
    if header.batch_length != size - batch_format.LENGTH_PREFIX_SIZE:
        raise _wrong_size(header, size)
    _check_size(size, rules)
    fault = batch_format.crc_fault(batch, 0, header)
    if fault:
        raise CorruptRecords(fault)
    fault = batch_format.producer_fault(header) or _client_fault(header)
    if fault:
        raise _invalid(f"the batch {fault}")
    fault = batch_format.header_fault(header, size)
    if fault:
        raise _invalid(fault)
    if header.is_transactional:
        raise ApiError(
            Error.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, "this release has no transactions"
        )
    if header.attributes & CODEC_MASK == _ZSTD and api_version < _FIRST_VERSION_OF_ZSTD:
        raise ApiError(
            Error.UNSUPPORTED_COMPRESSION_TYPE, f"Produce {api_version} does not know zstd"
        )
    if header.attributes & _LOG_APPEND_TIME:
        raise ApiError(Error.INVALID_TIMESTAMP, "a producer does not set log append time")
    return header


def _client_fault(header: BatchHeader) -> str | None:
    if header.base_offset != 0:
        return f"has base offset {header.base_offset}: a producer's must be 0"
    return None


def _wrong_size(header: BatchHeader, size: int) -> ApiError:
    if batch_format.HEADER_SIZE <= header.size < size:
        return _invalid(f"{size - header.size} bytes follow the one batch that may be produced")
    return CorruptRecords(f"the batch has {size} bytes, but {header.size} by its length field")


def _check_size(size: int, rules: Rules) -> None:
    if size > rules.message_bytes_max:
        raise ApiError(
            Error.MESSAGE_TOO_LARGE,
            f"{size} bytes are more than the {rules.message_bytes_max} a batch may have",
        )


def _check_records(batch: Buffer, header: BatchHeader, rules: Rules) -> None:
    body = read_body(batch, 0, header, body_bytes_max=rules.body_bytes_max)
    count, base_timestamp = header.record_count, header.base_timestamp
    if not are_whole(body, count, base_timestamp):
        decode_numbers(body, count, 0, base_timestamp)  # which says what is wrong
        raise _invalid("the offset deltas of the batch's records do not count from 0 on")


def _check_keys(batch: Buffer, header: BatchHeader, rules: Rules) -> None:
    body = read_body(batch, 0, header, body_bytes_max=rules.body_bytes_max)
    if find_null_key(body, header.record_count) is None:
        return
    faults = [
        RecordFault(index, "has no key, and the topic is compacted")
        for index, record in enumerate(decode_records(body, header.record_count))
        if record.key is None
    ]
    raise InvalidRecords(Error.INVALID_RECORD, faults)


def _with_max_timestamp(
    batch: Buffer, header: BatchHeader, rules: Rules
) -> tuple[Buffer, BatchHeader]:
    """The batch with its max timestamp set from its records, if the producer did not set it.

    Kafka's brokers always set it, so clients need not: Sarama sent -1 until 2025. Lookups by time,
    retention and the expiry of idempotent producers use it.
    """
    if header.max_timestamp >= header.base_timestamp:
        return batch, header
    records = read_records(batch, 0, header, body_bytes_max=rules.body_bytes_max)
    newest_ms = max(record.timestamp for record in records)
    if newest_ms == header.max_timestamp:  # the base timestamp need not be a record's
        return batch, header
    mended = bytearray(batch)
    batch_format.set_max_timestamp(mended, 0, newest_ms)
    return mended, batch_format.read_header(mended)


def _check_timestamps(batch: Buffer, header: BatchHeader, rules: Rules, now_ms: int) -> None:
    """Check the records' timestamps. Only the newest is in the header; for others, decode all."""
    newest_ms = now_ms + rules.timestamp_after_max_ms
    is_too_new = header.max_timestamp > newest_ms
    if not is_too_new and rules.timestamp_before_max_ms == NO_LIMIT:
        return
    oldest_ms = now_ms - rules.timestamp_before_max_ms
    records = read_records(batch, 0, header, body_bytes_max=rules.body_bytes_max)
    faults = [
        RecordFault(index, f"has timestamp {at}, not within [{oldest_ms}, {newest_ms}]")
        for index, at in enumerate(record.timestamp for record in records)
        if at != NO_TIMESTAMP and not oldest_ms <= at <= newest_ms
    ]
    if faults:
        raise InvalidRecords(Error.INVALID_TIMESTAMP, faults)
    if is_too_new:
        raise ApiError(
            Error.INVALID_TIMESTAMP,
            f"the batch's max timestamp {header.max_timestamp} is above {newest_ms}",
        )


# --- message sets -------------------------------------------------------------------------------


def _checked_messages(records: Buffer, rules: Rules) -> Iterator[Message]:
    """The messages of a set, wrappers unopened; all of one magic, and a wrapper must be alone."""
    first: Message | None = None
    may_be_too_large = len(records) > rules.message_bytes_max
    for message in message_set.iter_messages(records):
        if may_be_too_large:
            _check_size(message.size, rules)
        if message.is_log_append_time:
            raise ApiError(Error.INVALID_TIMESTAMP, "a producer does not set log append time")
        if first is None:
            first = message
        elif message.magic != first.magic:
            raise _invalid(f"magic {message.magic} after magic {first.magic} in a message set")
        elif first.is_wrapper or message.is_wrapper:
            raise _invalid("a compressed message set must be the only one")
        yield message


def _invalid(detail: str) -> ApiError:
    return ApiError(Error.INVALID_RECORD, detail)
