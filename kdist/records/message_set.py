"""Message sets, magic 0 and 1: the record formats of clients and brokers before 0.11 (pure).

A message set is a sequence of messages, with no frame around them and no count:

    at  bytes  field                     at  bytes  field
     0      8  offset                    17      1  attributes
     8      4  size: bytes from 12       18      8  timestamp, ms, -1 none (magic 1 only)
    12      4  CRC-32 of all from 16     ...   4+k  key length, -1 null, and key
    16      1  magic, 0 or 1             ...   4+v  value length, -1 null, and value

Attributes, from the lowest bit: 0-2 codec, 3 log append time (magic 1 only). Big endian.

A message with a codec is a wrapper: its value is a compressed message set of messages without a
codec. The wrapper's offset is its last message's. Inner offsets are absolute in magic 0; in magic 1
they are relative, so that the leader can assign offsets without recompressing. A wrapper's log
append time applies to all its messages. Not here: magic 2 (`batch`), and conversion (`convert`).
Source: KIP-31 (relative offsets), KIP-32 (timestamps).
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import NamedTuple

from kdist.errors import CorruptRecords
from kdist.model import NO_TIMESTAMP
from kdist.records.batch import MAGIC, MAGIC_POSITION
from kdist.records.compression import CODEC_MASK, Codec, codec_of, compress, decompress, lz4
from kdist.records.record import Record
from kdist.runtime.steps import Steps, in_thread
from kdist.wire.primitives import Buffer

_PREFIX = struct.Struct(">qi")  # offset, size
_HEADER = struct.Struct(">qiIbb")  # offset, size, CRC, magic, attributes
_PREFIX_AND_CRC = struct.Struct(">qiI")  # all before the bytes that the CRC covers
_CHECKED = struct.Struct(">bb")  # magic, attributes: the first bytes that the CRC covers
_TIMESTAMP = struct.Struct(">q")
_LENGTH = struct.Struct(">i")
_NULL = _LENGTH.pack(-1)  # instead of a length
_CHECKED_POSITION = 16  # the CRC covers everything from here to the end of the message

SIZE_MIN = (14, 22)  # the size field of a message without key and value, by magic
MAGIC_MAX = 1
BRIEF_CONTENT_BYTES = 1 << 20  # of a wrapper, to be copied or read on the event loop
_PIECE_BYTES_MAX = 1 << 20  # that the event loop decodes and encodes in a step
BRIEF_BYTES = 64 << 10  # of a message set that is compressed in less than a millisecond or two
LOG_APPEND_TIME = 0x08


class Message(NamedTuple):
    """One message as stored in its set; a wrapper's `value` is the compressed inner set."""

    offset: int
    magic: int
    attributes: int
    timestamp: int
    key: bytes | None
    value: bytes | None

    @property
    def size(self) -> int:
        """Its size in a set in bytes, with the offset and size fields."""
        return _PREFIX.size + SIZE_MIN[self.magic] + len(self.key or b"") + len(self.value or b"")

    @property
    def is_wrapper(self) -> bool:
        """The value is a compressed message set."""
        return bool(self.attributes & CODEC_MASK)

    @property
    def codec(self) -> Codec:
        """The wrapper's codec; CorruptRecords for one that magic 0 and 1 do not have."""
        codec = codec_of(self.attributes)
        if codec == Codec.ZSTD:
            raise CorruptRecords(f"zstd does not exist in magic {self.magic}")
        return codec

    @property
    def is_log_append_time(self) -> bool:
        """The leader set the timestamp; a wrapper's applies to all messages in it."""
        return self.magic > 0 and bool(self.attributes & LOG_APPEND_TIME)


# --- reading ------------------------------------------------------------------------------------


def iter_messages(
    buffer: Buffer, *, may_end_partial: bool = False, check_crcs: bool = True
) -> Iterator[Message]:
    """The messages of a set in order, wrappers unopened, each checked against its CRC.

    With `may_end_partial`, as in a fetch response cut by a byte limit, an incomplete last message
    ends the iteration. Any other fault raises `CorruptRecords`.
    """
    data = bytes(buffer)  # slices of bytes cost a third of a memoryview's
    return _iter_messages(data, may_end_partial, check_crcs)


def _iter_messages(
    data: bytes | memoryview, may_end_partial: bool, check_crcs: bool
) -> Iterator[Message]:
    position = 0
    while position < len(data):
        left = len(data) - position
        size = _PREFIX.unpack_from(data, position)[1] if left >= _PREFIX.size else 0
        end = position + _PREFIX.size + size
        if may_end_partial and (left < _PREFIX.size or end > len(data)):
            return
        if left < _PREFIX.size or size < SIZE_MIN[0] or end > len(data):
            raise CorruptRecords(f"a message of {size} bytes does not fit in the {left} left")
        yield _read_message(data, position, end, check_crcs)
        position = end


def find_end(buffer: Buffer, position: int) -> int:
    """Where the messages from `position` on end: at the first batch, or at the buffer's end.

    By sizes and magic alone: faults in the messages are found when they are iterated.
    """
    end = len(buffer)
    while position + MAGIC_POSITION < end and buffer[position + MAGIC_POSITION] <= MAGIC_MAX:
        size = _PREFIX.unpack_from(buffer, position)[1]
        if size < SIZE_MIN[0]:
            break
        position += _PREFIX.size + size
    at_batch = position + MAGIC_POSITION < end and buffer[position + MAGIC_POSITION] == MAGIC
    return position if at_batch else end


def _read_message(data: bytes | memoryview, start: int, end: int, check_crc: bool) -> Message:
    offset, _, crc, magic, attributes = _HEADER.unpack_from(data, start)
    if check_crc and (computed := zlib.crc32(data[start + _CHECKED_POSITION : end])) != crc:
        raise CorruptRecords(f"message CRC is {crc:08x} but its bytes give {computed:08x}")
    if not 0 <= magic <= MAGIC_MAX:
        raise CorruptRecords(f"message of magic {magic} in a message set")
    if end - start < _PREFIX.size + SIZE_MIN[magic]:
        raise CorruptRecords(f"message of {end - start} bytes is too small for magic {magic}")
    position = start + _HEADER.size
    timestamp = NO_TIMESTAMP
    if magic > 0:
        (timestamp,) = _TIMESTAMP.unpack_from(data, position)
        position += _TIMESTAMP.size
    key, position = _read_bytes(data, position, end)
    value, position = _read_bytes(data, position, end)
    if position != end:
        raise CorruptRecords(f"message has {end - position} bytes after its value")
    return Message(offset, magic, attributes, timestamp, key, value)


def _read_bytes(data: bytes | memoryview, position: int, end: int) -> tuple[bytes | None, int]:
    start = position + _LENGTH.size
    if start > end:
        raise CorruptRecords("message ends within a length")
    (length,) = _LENGTH.unpack_from(data, position)
    if length < 0:
        return None, start
    if start + length > end:
        raise CorruptRecords(f"{length} bytes of key or value reach past the end of their message")
    return bytes(data[start : start + length]), start + length


def open_message(message: Message, size_max: int, *, check_crcs: bool = True) -> Iterator[Record]:
    """The records of one message: itself, or those in a wrapper with their absolute offsets."""
    if not message.is_wrapper:
        yield Record(message.offset, message.timestamp, message.key, message.value)
        return
    content, base_offset = open_wrapper(message, size_max)
    yield from inner_records(message, content, base_offset, check_crcs=check_crcs)


def inner_records(
    wrapper: Message, content: Buffer, base_offset: int, *, check_crcs: bool = True
) -> Iterator[Record]:
    """The records in a wrapper, which `open_wrapper` has opened."""
    # What a wrapper holds may be tens of megabytes, which take long to copy.
    data = bytes(content) if len(content) <= BRIEF_CONTENT_BYTES else memoryview(content)
    for inner in _iter_messages(data, False, check_crcs):
        if inner.is_wrapper:
            raise CorruptRecords("a wrapper within a wrapper")
        if inner.magic != wrapper.magic:
            raise CorruptRecords(f"magic {inner.magic} in a wrapper of magic {wrapper.magic}")
        timestamp = wrapper.timestamp if wrapper.is_log_append_time else inner.timestamp
        yield Record(base_offset + inner.offset, timestamp, inner.key, inner.value)


def open_wrapper(wrapper: Message, size_max: int) -> tuple[Buffer, int]:
    """The inner set, at most `size_max` bytes, and what to add to its offsets."""
    packed = wrapper.value
    if packed is None:
        raise CorruptRecords("a wrapper without a value")
    if wrapper.magic == 0 and wrapper.codec == Codec.LZ4:
        packed = lz4.mend_checksum(packed)
    content = decompress(wrapper.codec, packed, size_max)
    if not content:
        raise CorruptRecords("a wrapper with nothing in it")
    return content, _inner_base_offset(wrapper, content)


def _inner_base_offset(wrapper: Message, content: Buffer) -> int:
    """What to add to inner offsets: 0 in magic 0, where they are absolute.

    Also 0 for old librdkafka, which leaves the wrapper's own offset at 0.
    """
    if wrapper.magic == 0 or wrapper.offset == 0:
        return 0
    last_offset = _last_offset(content)
    if last_offset > wrapper.offset:
        raise CorruptRecords(f"wrapper offset {wrapper.offset} is below {last_offset} within")
    return wrapper.offset - last_offset


def _last_offset(content: Buffer) -> int:
    """The last message's offset, by sizes alone; faults are found when the set is iterated."""
    offset = position = 0
    while position + _PREFIX.size <= len(content):
        offset, size = _PREFIX.unpack_from(content, position)
        position += _PREFIX.size + max(size, 0)
    return offset


# --- writing ------------------------------------------------------------------------------------


class Piece(NamedTuple):
    """Some records of a message set, which a call decodes from so many bytes."""

    size: int
    decode: Callable[[], Sequence[Record]]


def writing_message_set(
    pieces: Iterable[Piece],
    magic: int,
    codec: Codec,
    *,
    append_time_ms: int | None = None,
) -> Steps[bytes]:
    """Records as a message set: plain messages, or with a `codec` one wrapper of them all.

    With `append_time_ms` the messages have this log append time. Headers are dropped, and in magic
    0 timestamps, as these formats have none. Without records the set is empty. Each piece takes a
    step, and those that hold megabytes a thread.
    """
    assert 0 <= magic <= MAGIC_MAX
    assert codec != Codec.ZSTD, "zstd does not exist in magic 0 and 1"
    append_time = LOG_APPEND_TIME if append_time_ms is not None and magic > 0 else 0
    base_offset: int | None = None if codec != Codec.NONE and magic > 0 else 0
    last_offset = newest = NO_TIMESTAMP
    contents = []

    def encode(decode: Callable[[], Sequence[Record]]) -> None:
        nonlocal base_offset, last_offset, newest
        records = _stamped(decode(), append_time_ms)
        if not records:
            return
        if base_offset is None:
            base_offset = records[0].offset
        contents.append(
            b"".join(
                write_message(offset - base_offset, magic, append_time, timestamp, key, value)
                for offset, timestamp, key, value, _ in records
            )
        )
        last_offset = records[-1].offset
        newest = max(newest, max(record.timestamp for record in records))

    for number, (size, decode) in enumerate(pieces):
        if number:
            yield None
        if size > _PIECE_BYTES_MAX:
            yield from in_thread(partial(encode, decode))
        else:
            encode(decode)
    content = b"".join(contents)
    if codec == Codec.NONE or not content:
        return content
    if len(content) > BRIEF_BYTES:
        packed = yield from in_thread(partial(compress, codec, content))
    else:
        packed = compress(codec, content)
    if magic == 0 and codec == Codec.LZ4:
        packed = lz4.break_checksum(packed)
    return write_message(last_offset, magic, codec | append_time, newest, None, packed)


def _stamped(records: Sequence[Record], append_time_ms: int | None) -> Sequence[Record]:
    if append_time_ms is None:
        return records
    return [record._replace(timestamp=append_time_ms) for record in records]


def write_message(
    offset: int,
    magic: int,
    attributes: int,
    timestamp: int,
    key: bytes | None,
    value: bytes | None,
) -> bytes:
    """The bytes of one message, with its CRC."""
    head = _CHECKED.pack(magic, attributes)
    if magic > 0:
        head += _TIMESTAMP.pack(timestamp)
    head += _NULL if key is None else _LENGTH.pack(len(key)) + key
    head += _NULL if value is None else _LENGTH.pack(len(value))
    value = value or b""
    crc = zlib.crc32(value, zlib.crc32(head))
    return b"".join((_PREFIX_AND_CRC.pack(offset, 4 + len(head) + len(value), crc), head, value))
