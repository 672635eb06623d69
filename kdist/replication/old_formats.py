"""Stored batches for consumers that know only message sets: Fetch before version 4.

The bytes are read, decoded and encoded again on the loop, by records, within a budget for each
answer: old clients pay for being old, and nobody else waits long for them.
"""

from __future__ import annotations

import functools
import struct

from kdist.errors import ApiError
from kdist.records.batch import HEADER_SIZE, is_partial, read_header
from kdist.records.convert import Budget, down_convert
from kdist.runtime.heap import keep_freed_blocks
from kdist.storage.reading import Slice
from kdist.wire.varint import Buffer

# A broker without old clients has no such blocks, and keeps none.
_keep_freed_blocks = functools.cache(keep_freed_blocks)

_MESSAGE_PREFIX = struct.Struct(">qi")  # offset and size


def message_set_of(part: Slice, magic: int, fetch_offset: int, budget: Budget) -> bytes:
    """What `part` holds, as messages of `magic` from `fetch_offset` on; `part` is not released.

    If not even its first batch is whole, then a message that is not: its size tells the consumer
    that what it may fetch is too little. Nothing, once `budget` is spent. Raises as `down_convert`
    if nothing could be converted.
    """
    if budget.is_spent:
        return b""
    _keep_freed_blocks()
    batches = part.read()
    if is_partial(batches, 0):
        size = read_header(batches).size if len(batches) >= HEADER_SIZE else HEADER_SIZE
        return _MESSAGE_PREFIX.pack(fetch_offset, size)
    converted: list[Buffer] = []
    try:
        # What came before it raises stays.
        converted.extend(down_convert(batches, magic, fetch_offset, budget))
    except ApiError:
        if not converted:
            raise
    return b"".join(converted)
