"""Validation of a produced record set before it is appended (pure).

A batch of magic 2 is checked by its header and CRC, and record by record if it is not compressed;
then it is passed on unchanged. It is not decompressed unless the topic's rules need that, or its
header leaves out or cannot have the newest timestamp (design D5); then it is checked likewise, by a
thread unless it is small. Message sets of old clients are converted first. Not here: sequence
numbers, which need the producer's state, and offsets, which the log assigns.

Not checked, unlike in Kafka: the records of a compressed batch unless it is decompressed anyway.
Source: Kafka's `ProduceRequest.validateRecords`, `UnifiedLog.analyzeAndValidateRecords` and
`LogValidator`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from functools import partial
from itertools import islice
from typing import NamedTuple

from kdist.errors import ApiError, CorruptRecords, Error
from kdist.model import NO_TIMESTAMP
from kdist.records import batch as batch_format
from kdist.records import message_set
from kdist.records.batch import Batch, BatchHeader, TimestampType
from kdist.records.build import (
    BODY_BYTES_MAX,
    BRIEF_BODY_BYTES,
    body_numbers,
    read_body,
    read_brief_body,
)
from kdist.records.codec import body_summary, check_batch, decode_keys, decode_numbers
from kdist.records.compression import CODEC_MASK, Codec
from kdist.records.convert import up_converting, with_body
from kdist.records.message_set import Message
from kdist.runtime.steps import Steps, in_thread
from kdist.wire.primitives import Buffer

NO_LIMIT = (1 << 63) - 1  # the default of both timestamp limits, in ms

# What a batch is unpacked to at most, if its topic takes no larger ones anyway: honest batches are
# as small, or shrink less. Else two kilobytes of zeros would cost as much as thousands of batches.
_BODY_BYTES_MIN = 4 << 20
_USUAL_RATIO_MAX = 128
# Of a batch without a codec that the event loop checks: 4 ms, if its records have no bytes.
_BRIEF_BATCH_BYTES = 4 << 20
_FAULTS_MAX = 1000  # that an answer names

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

    brief_bytes_max: int = dataclasses.field(init=False)
    """Of a batch that is checked on the event loop: its CRC, and a look at each record."""
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
        brief_bytes_max = min(self.message_bytes_max, _BRIEF_BATCH_BYTES)
        object.__setattr__(self, "brief_bytes_max", brief_bytes_max)

    def body_bytes_max_of(self, packed_bytes: int) -> int:
        """The limit for the body of a compressed batch of this size: several times what is usual.

        What the topic would take uncompressed is always within it.
        """
        usual = max(_BODY_BYTES_MIN, self.message_bytes_max, _USUAL_RATIO_MAX * packed_bytes)
        return min(self.body_bytes_max, usual)

    @property
    def is_append_time(self) -> bool:
        """The broker stamps its own time on every batch."""
        return self.timestamp_type == TimestampType.LOG_APPEND_TIME


class TakesLong(Exception):
    """A batch would have to be unpacked that would hold the event loop for too long."""


class RecordFault(NamedTuple):
    """A record that broke a rule, as reported in responses of Produce 8 and later."""

    batch_index: int
    reason: str


class InvalidRecords(ApiError):
    """INVALID_RECORD or INVALID_TIMESTAMP, with the first of the records that caused it."""

    def __init__(self, error: Error, faults: list[RecordFault]) -> None:
        super().__init__(error, f"record {faults[0].batch_index} {faults[0].reason}")
        self.faults = faults


def validating(records: Buffer, rules: Rules, api_version: int, now_ms: int) -> Steps[list[Batch]]:
    """The batches of one partition's `records` in a Produce of `api_version`, ready to append.

    One batch since version 3; before that, as many as `up_converting` makes of a message set, none
    for an empty one. An unchanged batch is a view of `records`, or a copy if `records` is read-only
    or there is more than one step. Log append time and the topic's codec are applied. After the
    first step `records` is not used any more.

    Raises `ApiError`: CORRUPT_MESSAGE (size, CRC, old formats), MESSAGE_TOO_LARGE,
    INVALID_RECORD, INVALID_TIMESTAMP, UNSUPPORTED_COMPRESSION_TYPE (zstd before version 7),
    TRANSACTIONAL_ID_AUTHORIZATION_FAILED (any transactional batch).
    """
    if rules.is_plain and (batch := plain_batch(records, rules, api_version)) is not None:
        return [batch]
    magic = _magic(records, api_version)
    if magic == batch_format.MAGIC:
        try:
            return [_accept(records, rules, api_version, now_ms, is_brief=True)]
        except TakesLong:
            kept = bytearray(records)
        accept = partial(_accept, kept, rules, api_version, now_ms)
        return [(yield from in_thread(accept))]
    if api_version >= _FIRST_VERSION_OF_BATCHES:
        raise _invalid(f"Produce {api_version} takes no records of magic {magic}")
    size_max = rules.body_bytes_max_of(len(records))
    messages = _checked_messages(records, rules)
    batches = yield from up_converting(messages, size_max, rules.codec)
    accepted = []
    for batch_made in batches:
        accepted.append(_accept(batch_made, rules, _FIRST_VERSION_OF_ZSTD, now_ms))
        if len(batches) > 1:
            yield None
    return accepted


def plain_batch(records: Buffer, rules: Rules, api_version: int) -> Batch | None:
    """The one batch of a produce, if it passes every check of `_checked_header`.

    None for anything else: `validating` then finds out what it is. `rules` must be plain.
    """
    size, size_max = len(records), rules.brief_bytes_max
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


def _accept(
    batch: Buffer, rules: Rules, api_version: int, now_ms: int, *, is_brief: bool = False
) -> Batch:
    """The batch, if it may be appended. `TakesLong` if that cannot be said briefly, but has to."""
    header = _checked_header(batch, rules, api_version)
    newest_ms = header.max_timestamp
    try:
        if _must_look(header, rules, now_ms):
            body = _body(batch, header, rules, is_brief=is_brief)
            newest_ms = _check_records(body, header, rules, now_ms)
            if rules.codec is not None and rules.codec != header.codec:
                if is_brief and len(body) > BRIEF_BODY_BYTES:
                    raise TakesLong
                batch = with_body(header, body, rules.codec)
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
    elif newest_ms != header.max_timestamp:
        batch_format.set_max_timestamp(view, 0, newest_ms)
        header = batch_format.read_header(view)
    return Batch(header, view)


def _must_look(header: BatchHeader, rules: Rules, now_ms: int) -> bool:
    """Whether the batch's records are looked at."""
    if not header.codec or rules.is_compacted or rules.validates_compressed:
        return True
    if rules.codec is not None and rules.codec != header.codec:
        return True
    return not rules.is_append_time and not (
        batch_format.has_likely_max_timestamp(header)
        and rules.timestamp_before_max_ms == NO_LIMIT
        and header.max_timestamp <= now_ms + rules.timestamp_after_max_ms
    )


def _body(batch: Buffer, header: BatchHeader, rules: Rules, *, is_brief: bool) -> Buffer:
    """The batch's records, unpacked. `TakesLong` if it has to be brief, and cannot be."""
    size_max = rules.body_bytes_max_of(len(batch))
    if not is_brief:
        return read_body(batch, 0, header, body_bytes_max=size_max)
    body = read_brief_body(batch, 0, header, body_bytes_max=size_max)
    if body is None or len(body) > _BRIEF_BATCH_BYTES:
        raise TakesLong
    return body


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
    fault = batch_format.producer_fault(header, memoryview(batch)[batch_format.HEADER_SIZE :])
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


def _check_records(body: Buffer, header: BatchHeader, rules: Rules, now_ms: int) -> int:
    """Check the records; return the newest one's timestamp.

    Kafka's brokers always set the max timestamp, so clients need not: Sarama sent -1 until 2025.
    Lookups by time, retention and the expiry of idempotent producers use it.
    """
    count, base_timestamp = header.record_count, header.base_timestamp
    summary = body_summary(body, count, base_timestamp)
    if summary is None:
        decode_numbers(body, count, 0, base_timestamp)  # which says what is wrong
        raise _invalid("the offset deltas of the batch's records do not count from 0 on")
    if rules.is_compacted and summary.lacks_keys:
        faults = (
            RecordFault(index, "has no key, and the topic is compacted")
            for index, key in enumerate(decode_keys(body, count))
            if key is None
        )
        _refuse_for(Error.INVALID_RECORD, faults)
    if not rules.is_append_time:
        _check_timestamps(body, header, summary.newest_ms, rules, now_ms)
    return summary.newest_ms


def _check_timestamps(
    body: Buffer, header: BatchHeader, newest_ms: int, rules: Rules, now_ms: int
) -> None:
    """Check the records' timestamps, and the header's max timestamp."""
    latest_ms = now_ms + rules.timestamp_after_max_ms
    is_too_new = max(header.max_timestamp, newest_ms) > latest_ms
    if not is_too_new and rules.timestamp_before_max_ms == NO_LIMIT:
        return
    earliest_ms = now_ms - rules.timestamp_before_max_ms
    _, timestamps = body_numbers(body, header)
    faults = (
        RecordFault(index, f"has timestamp {at}, not within [{earliest_ms}, {latest_ms}]")
        for index, at in enumerate(timestamps)
        if at != NO_TIMESTAMP and not earliest_ms <= at <= latest_ms
    )
    if is_too_new or min(timestamps) < earliest_ms:
        _refuse_for(Error.INVALID_TIMESTAMP, faults)
    if is_too_new:
        raise ApiError(
            Error.INVALID_TIMESTAMP,
            f"the batch's max timestamp {header.max_timestamp} is above {latest_ms}",
        )


def _refuse_for(error: Error, faults: Iterator[RecordFault]) -> None:
    """Raise the error with the first of the faults, if there are any."""
    found = list(islice(faults, _FAULTS_MAX))
    if found:
        raise InvalidRecords(error, found)


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
