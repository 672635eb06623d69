"""Conversion between record formats (pure): magic 0 and 1 up to 2, 2 down, and codec to codec.

    produced message sets     `up_converting`, since only batches are stored
    batches for old clients   `down_convert`
    fetched message sets      `iter_fetched`, so that readers deal with one format only

Down-conversion loses headers, and to magic 0 also timestamps, which an up-conversion gives as -1.
Keys and values, null or empty, always survive. What a broker does goes in steps, as records are
decoded and encoded one by one; threads unpack and compress. Down-conversion holds one batch in
memory, and stops when its `Budget` is spent.
Source: KIP-31, KIP-32, KIP-98, KIP-110, Kafka's `LogValidator` and `RecordsUtil.downConvert`.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

from kdist.errors import ApiError, CorruptRecords, Error, ProtocolError
from kdist.model import NO_OFFSET, NO_TIMESTAMP
from kdist.records.batch import (
    HEADER_SIZE,
    LENGTH_PREFIX_SIZE,
    MAGIC,
    MAGIC_POSITION,
    BatchHeader,
    assembled,
    crc_fault,
    header_fault,
    iter_headers,
    read_header,
    stamp_append_time,
)
from kdist.records.build import (
    BODY_BYTES_MAX,
    build_batch,
    decode_body,
    read_body,
    read_brief_body,
)
from kdist.records.codec import find_plain_span
from kdist.records.compression import CODEC_MASK, Codec, compress
from kdist.records.message_set import (
    BRIEF_BYTES,
    BRIEF_CONTENT_BYTES,
    Message,
    Piece,
    find_end,
    inner_records,
    iter_messages,
    open_message,
    open_wrapper,
    writing_message_set,
)
from kdist.records.record import INT64_MAX, Record
from kdist.runtime.steps import Steps, in_thread
from kdist.wire.primitives import Buffer, get_signed32

# For `Budget.spend`, which counts uncompressed bytes.
_BATCH_BYTES = 4 << 10  # the fixed cost of a batch, in bytes that take as long
_COMPRESSED_WEIGHT = 4

_PIECE_RECORDS = 500  # are decoded or encoded in one step: some 2 ms
_PIECE_BYTES = 512 << 10  # likewise
_BATCH_RECORDS = 10_000  # are encoded in one step, as a batch
_BRIEF_RUN_BYTES = 4 << 20  # are encoded on the event loop, if not compressed
_BRIEF_PACKED_BYTES = 4 << 10  # of a wrapper that is opened on the event loop

_MADE_BYTES = 256 << 10  # of a batch made of fetched messages: within a log's default size limit
_MESSAGE_BYTES = 34  # without key and value


# --- produced message sets ----------------------------------------------------------------------


def up_converting(
    messages: Iterable[Message], size_max: int, codec: Codec | None = None
) -> Steps[list[bytearray]]:
    """Messages of magic 0 or 1, also mixed, as batches: one per wrapper, one per run of others.

    But none has more than 10,000 records. Every batch has consecutive offsets from 0, for the log
    to assign. It keeps its wrapper's codec, unless `codec` is given. Raises `CorruptRecords` for a
    wrapper that is damaged or holds more than `size_max` bytes.
    """
    batches: list[bytearray] = []
    for is_wrapper, run in itertools.groupby(messages, lambda message: message.is_wrapper):
        if not is_wrapper:
            yield from _batches_of(run, Codec.NONE if codec is None else codec, batches)
            continue
        for wrapper in run:
            opened = partial(open_wrapper, wrapper, size_max)
            if len(wrapper.value or b"") > _BRIEF_PACKED_BYTES:
                content, base_offset = yield from in_thread(opened)
            else:
                content, base_offset = opened()
            records = inner_records(wrapper, content, base_offset)
            is_large = len(content) > BRIEF_CONTENT_BYTES
            own = wrapper.codec if codec is None else codec
            yield from _batches_of(records, own, batches, is_large=is_large)
    return batches


def _batches_of(
    records: Iterable[Record | Message],
    codec: Codec,
    batches: list[bytearray],
    *,
    is_large: bool = False,
) -> Steps[None]:
    """Add the batches that records or messages make; a thread reads them if they are large."""
    left = iter(records)
    while True:
        run: list[Record | Message] = []
        run_bytes = 0
        while len(run) < _BATCH_RECORDS:
            take = partial(_take, left, min(_PIECE_RECORDS, _BATCH_RECORDS - len(run)))
            piece, piece_bytes = (yield from in_thread(take)) if is_large else take()
            if not piece:
                break
            if run:
                yield None
            run += piece
            run_bytes += piece_bytes
        if not run:
            return
        if batches:
            yield None
        is_brief = codec == Codec.NONE or (len(run) <= _PIECE_RECORDS and run_bytes <= BRIEF_BYTES)
        if is_brief and run_bytes <= _BRIEF_RUN_BYTES:
            batches.append(batch_of(run, codec))
        else:
            batches.append((yield from in_thread(partial(batch_of, run, codec))))


def _take(left: Iterator[Record | Message], count_max: int) -> tuple[list[Record | Message], int]:
    """The next records, as many as are a step, and the bytes of their values."""
    taken: list[Record | Message] = []
    size = 0
    for record in left:
        taken.append(record)
        size += len(record.value or b"")
        if len(taken) == count_max or size >= _PIECE_BYTES:
            break
    return taken, size


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


# --- batches for old clients --------------------------------------------------------------------


@dataclass(slots=True)
class Budget:
    """How much may be down-converted for one fetch response: 10 to 20 ms of the event loop.

    A record takes 1 µs, a byte 3 ns and a batch 4 µs; a byte four times that if compressed. The
    last batch may exceed the budget, up to the limits for any batch: a few compressed kilobytes can
    hold gigabytes. The loop does it in steps, and has threads unpack and compress.
    """

    records: int = 15_000
    bytes: int = 4 << 20
    batch_records_max: int = 500_000
    batch_bytes_max: int = 64 << 20

    @property
    def is_spent(self) -> bool:
        """Nothing more may be converted for this response."""
        return self.records <= 0 or self.bytes <= 0

    def spend(self, body_bytes: int, codec: Codec) -> None:
        """Count a batch that was converted, but for its records."""
        weight = 1 if codec == Codec.NONE else _COMPRESSED_WEIGHT
        self.bytes -= weight * (_BATCH_BYTES + body_bytes)


def down_convert(
    batches: Buffer, magic: int, fetch_offset: int, budget: Budget
) -> Iterator[Steps[bytes]]:
    """Stored batches as message sets of `magic`, one for each batch, with the same offsets.

    Each comes as the steps that make it, to be done before the next is asked for; it may be empty.

    Control batches are left out, since old consumers do not know them, and so is a last batch that
    is incomplete. Records of an uncompressed batch below `fetch_offset` are dropped: old librdkafka
    relies on that; so is a compressed batch that has no others. Ends when `budget` is spent; of the
    last batch only as many records are converted as were left in it, and the consumer's next fetch
    goes on after those.

    Raises `CorruptRecords`, also for a batch of more than the budget's `batch_bytes_max`;
    MESSAGE_TOO_LARGE for one of more than `batch_records_max`; UNSUPPORTED_COMPRESSION_TYPE for a
    zstd batch. Sets made before that can be sent.
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
        yield _down_convert_batch(batches, position, header, magic, fetch_offset, budget)


def _down_convert_batch(
    batches: Buffer,
    position: int,
    header: BatchHeader,
    magic: int,
    fetch_offset: int,
    budget: Budget,
) -> Steps[bytes]:
    codec, size_max = Codec(header.codec), budget.batch_bytes_max
    body: Buffer | None
    if codec == Codec.NONE:
        body = read_body(batches, position, header)
    else:
        body = read_brief_body(batches, position, header, body_bytes_max=size_max)
    if body is None:
        read = partial(read_body, batches, position, header, body_bytes_max=size_max)
        body = yield from in_thread(read)
    is_dropped = codec == Codec.NONE or header.record_count > budget.records
    lowest_offset = fetch_offset if is_dropped else header.base_offset
    append_time_ms = header.max_timestamp if header.is_log_append_time else None
    last_offset = NO_OFFSET

    def decode(piece: memoryview, record_count: int) -> list[Record]:
        nonlocal last_offset
        found = decode_body(piece, header._replace(record_count=record_count))
        records = [each for each in found if each.offset >= lowest_offset][: budget.records]
        budget.records -= len(records)
        if records:
            last_offset = records[-1].offset
        return records

    def pieces() -> Iterator[Piece]:
        for piece, record_count in _pieces(memoryview(body), header.record_count):
            yield Piece(len(piece), partial(decode, piece, record_count))
            if budget.records <= 0:
                return

    written = writing_message_set(pieces(), magic, codec, append_time_ms=append_time_ms)
    message_set = yield from written
    budget.spend(len(body), codec)
    return message_set if last_offset >= fetch_offset else b""


def _pieces(body: memoryview, record_count: int) -> Iterator[tuple[memoryview, int]]:
    """Successive parts of a body and their numbers of records: a step each, or one large record."""
    start = end = count = 0
    for number in range(1, record_count + 1):
        try:
            size, end = get_signed32(body, end)
        except ProtocolError as error:
            raise CorruptRecords(str(error)) from None
        if not 0 <= size <= len(body) - end:
            raise CorruptRecords(f"a record of {size} bytes at byte {end} of {len(body)}")
        end += size
        count += 1
        if count == _PIECE_RECORDS or end - start >= _PIECE_BYTES or number == record_count:
            yield body[start:end], count
            start, count = end, 0
    if end != len(body):
        raise CorruptRecords(f"{len(body) - end} bytes are left behind {record_count} records")


# --- fetched message sets -----------------------------------------------------------------------
#
# Brokers from 0.11 to 3.x keep message sets that were written to older versions, and return them
# unconverted even to a consumer that can read batches. Here they become batches of magic 2 with the
# same offsets, keys, values and timestamps:
#
#     a wrapper                  batches of its codec, so that they take no more memory than it did
#     other messages in a row    batches without a codec
#     a gap between offsets      begins another batch, as does another log append time
#     256 KiB of messages        likewise


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
    for kind, several in itertools.groupby(wanted, _kind):
        opened = (open_message(each, BODY_BYTES_MAX, check_crcs=check_crcs) for each in several)
        for records in _dense(itertools.chain.from_iterable(opened), offset):
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
            if run and (size_bytes > _MADE_BYTES or record.offset != run[-1].offset + 1):
                yield run
                run, size_bytes = [], own_bytes
            run.append(record)
    except CorruptRecords:
        if run:
            yield run
        raise
    if run:
        yield run


# --- codec to codec -----------------------------------------------------------------------------


def with_body(header: BatchHeader, body: Buffer, codec: Codec) -> bytearray:
    """A batch with this header and body, which is compressed with `codec` without decoding it."""
    attributes = header.attributes & ~CODEC_MASK | codec
    return assembled(header._replace(attributes=attributes), compress(codec, body))
