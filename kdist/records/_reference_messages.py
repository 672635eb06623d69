"""Whole message sets in plain Python: the reference for `_compiled_messages.py`.

The format is in `message_set.py`. Both functions deal with messages without a codec, such as a
wrapper's uncompressed content.
"""

from __future__ import annotations

from typing import NamedTuple

from kdist.errors import CorruptRecords
from kdist.records._reference import decode_records
from kdist.records.batch import BatchHeader
from kdist.records.compression import Codec
from kdist.records.message_set import iter_messages, write_plain
from kdist.wire.varint import Buffer


class Columns(NamedTuple):
    """The columns of a set's messages, from which a batch is built."""

    values: list[bytes | None]
    keys: list[bytes | None]
    timestamps: list[int]


class Written(NamedTuple):
    """Encoded messages, and what a wrapper of them needs to know."""

    content: Buffer
    record_count: int
    last_offset: int
    max_timestamp: int


def read_columns(messages: Buffer, magic: int) -> Columns | None:
    """The columns of a set that is not empty, if all its messages have `magic` and no attributes.

    None for any other set, also a damaged one: `iter_messages` then finds out why.
    """
    try:
        found = list(iter_messages(messages))
    except CorruptRecords:
        return None
    if not found or any(each.magic != magic or each.attributes for each in found):
        return None
    return Columns(
        [each.value for each in found],
        [each.key for each in found],
        [each.timestamp for each in found],
    )


def write_messages(
    body: Buffer, header: BatchHeader, magic: int, lowest_offset: int, count_max: int
) -> Written | None:
    """The records of a batch from `lowest_offset` on, at most `count_max`, as messages of `magic`.

    `body` is decompressed. For a wrapper of magic 1, offsets are relative to the first message's.
    None if there are no such records. Raises `CorruptRecords` as `decode_records`, which checks all
    records of the batch.
    """
    append_time_ms = header.max_timestamp if header.is_log_append_time else None
    records = decode_records(
        body, header.record_count, header.base_offset, header.base_timestamp, append_time_ms
    )
    wanted = [record for record in records if record.offset >= lowest_offset][:count_max]
    if not wanted:
        return None
    is_relative = magic > 0 and header.codec != Codec.NONE
    content = write_plain(
        wanted,
        magic,
        is_append_time=header.is_log_append_time,
        base_offset=wanted[0].offset if is_relative else 0,
    )
    newest_ms = max(record.timestamp for record in wanted)
    return Written(content, len(wanted), wanted[-1].offset, newest_ms)
