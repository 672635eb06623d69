"""Fetched records as batches of magic 2, whatever format the log was written in (pure).

Brokers from 0.11 to 3.x keep message sets that were written to older versions, and return them
unconverted even to a consumer that can read batches. Here they become batches of magic 2 with the
same offsets, keys, values and timestamps, so that readers deal with one format only:

    a wrapper                  batches of its codec, so that they take no more memory than it did
    other messages in a row    batches without a codec
    a gap between offsets      begins another batch, as does another log append time
    256 KiB of messages        likewise: such a batch is within a log's default size limit

Not here: produced message sets, whose offsets do not matter (`convert`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain, groupby
from typing import NamedTuple

from kdist.errors import CorruptRecords
from kdist.records.batch import (
    HEADER_SIZE,
    LENGTH_PREFIX_SIZE,
    MAGIC,
    MAGIC_POSITION,
    BatchHeader,
    header_fault,
    read_header,
    stamp_append_time,
)
from kdist.records.build import BODY_BYTES_MAX
from kdist.records.codec import find_plain_span
from kdist.records.compression import Codec
from kdist.records.convert import batch_of
from kdist.records.message_set import Message, find_end, iter_messages, open_message
from kdist.records.record import INT64_MAX, Record
from kdist.wire.varint import Buffer

_BATCH_BYTES = 256 << 10
_MESSAGE_BYTES = 34  # without key and value


def iter_fetched(
    buffer: Buffer, offset: int, *, check_crcs: bool = True
) -> Iterator[tuple[Buffer, int, BatchHeader]]:
    """Each batch in order: the buffer that holds it, its position there, and its header.

    A stored batch is in `buffer`, with its CRC unchecked; one made from messages has a buffer of
    its own. Messages before `offset` are left out. An incomplete batch or message at the end, cut
    by the response's limit, ends the iteration. Raises `CorruptRecords` at a damaged one.
    """
    for found in iter_runs(buffer, offset, 0, check_crcs=check_crcs):
        yield found[:3]


def iter_runs(
    buffer: Buffer, offset: int, span_bytes_max: int, *, check_crcs: bool = True
) -> Iterator[tuple[Buffer, int, BatchHeader, int]]:
    """As `iter_fetched`, but successive batches that can be read as one come as one run.

    A run has at most `span_bytes_max` bytes, and a header as if it were one batch. The last item is
    its number of batches, whose CRCs were checked if `check_crcs`; 0 is a single batch, unchecked.
    """
    view = memoryview(buffer)
    at, end = 0, len(buffer)
    while at < end:
        left = end - at
        if left >= HEADER_SIZE:
            header = read_header(buffer, at)
            if header.magic >= MAGIC:
                if header.size > left:
                    return
                fault = header_fault(header, left)
                if fault:
                    raise CorruptRecords(f"the batch at byte {at}: {fault}")
                batch_count = 0
                if span_bytes_max:
                    batch_count, size, count = find_plain_span(view, at, span_bytes_max, check_crcs)
                if batch_count > 1:
                    header = _of_all(header, size, count)
                yield buffer, at, header, batch_count
                at += header.size
                continue
        elif left <= MAGIC_POSITION or buffer[at + MAGIC_POSITION] >= MAGIC:
            return
        messages_end = find_end(buffer, at)
        for batch in _made(view[at:messages_end], offset, check_crcs):
            yield batch, 0, read_header(batch), 0
        at = messages_end


def _of_all(first: BatchHeader, size: int, record_count: int) -> BatchHeader:
    return first._replace(
        batch_length=size - LENGTH_PREFIX_SIZE,
        last_offset_delta=record_count - 1,
        record_count=record_count,
    )


def _made(message_set: memoryview, offset: int, check_crcs: bool) -> Iterator[bytearray]:
    messages = iter_messages(message_set, may_end_partial=True, check_crcs=check_crcs)
    wanted = (message for message in messages if message.offset >= offset)
    for kind, several in groupby(wanted, _kind):
        opened = (open_message(each, BODY_BYTES_MAX, check_crcs=check_crcs) for each in several)
        for records in _dense(chain.from_iterable(opened), offset):
            batch = batch_of(records, kind.codec, base_offset=records[0].offset)
            if kind.append_time_ms is not None:
                stamp_append_time(batch, 0, kind.append_time_ms)
            yield batch


class _Kind(NamedTuple):
    """What messages must have in common to share a batch."""

    wrapper_offset: int | None
    codec: Codec
    append_time_ms: int | None


def _kind(message: Message) -> _Kind:
    append_time_ms = message.timestamp if message.is_log_append_time else None
    if message.is_wrapper:
        return _Kind(message.offset, message.codec, append_time_ms)
    return _Kind(None, Codec.NONE, append_time_ms)


def _dense(records: Iterable[Record], offset: int) -> Iterator[list[Record]]:
    """The records of one batch after another: each without gaps, and not too large.

    Records before `offset` are left out: a wrapper may begin with some. Those before a damaged one
    are yielded before it raises.
    """
    run: list[Record] = []
    size_bytes = 0
    try:
        for record in records:
            if record.offset < offset:
                continue
            if record.offset == INT64_MAX:
                raise CorruptRecords("a message has the last offset of all")
            own_bytes = _MESSAGE_BYTES + len(record.key or b"") + len(record.value or b"")
            size_bytes += own_bytes
            if run and (size_bytes > _BATCH_BYTES or record.offset != run[-1].offset + 1):
                yield run
                run, size_bytes = [], own_bytes
            run.append(record)
    except CorruptRecords:
        if run:
            yield run
        raise
    if run:
        yield run
