"""Stored batches for consumers that know only message sets: Fetch before version 4.

The bytes are read, decoded and encoded again, by records, within a budget for each answer: old
clients pay for being old, and nobody else waits long for them. That is done on the loop; with gzip,
which takes ten times as long, by a thread: nearly all of it is in zlib, which does not hold up the
interpreter.
"""

from __future__ import annotations

import functools
import struct
from collections.abc import Callable, Sequence

from kdist.errors import ApiError
from kdist.records.batch import HEADER_SIZE, is_partial, read_header
from kdist.records.convert import Budget, TakesLong, down_convert
from kdist.runtime.heap import keep_freed_blocks
from kdist.runtime.tasks import Tasks
from kdist.storage.reading import Slice
from kdist.wire.varint import Buffer

# A broker without old clients has no such blocks, and keeps none.
_keep_freed_blocks = functools.cache(keep_freed_blocks)

_MESSAGE_PREFIX = struct.Struct(">qi")  # offset and size


Asked = Sequence[tuple[object, int]]
"""For each partition of a fetch its slice, if there is one, and from what offset it was asked."""

MessageSets = list[bytes | ApiError]


def convert(
    tasks: Tasks,
    asked: Asked,
    magic: int,
    converted: Callable[[MessageSets], None],
    failed: Callable[[BaseException], None],
) -> None:
    """Call `converted` with each partition's message set, or why there is none; release slices.

    At once, or if that takes long when a thread is through. `failed` hears of what went wrong
    there, and nobody is answered then. Raises `DiskFailed`.
    """
    message_sets: MessageSets = []

    def ended(error: BaseException | None) -> None:
        for part, _ in asked:
            if isinstance(part, Slice):
                part.release()
        if error is None:
            converted(message_sets)
        else:
            failed(error)

    try:
        message_sets += _message_sets(asked, magic, Budget(has_time=False))
    except TakesLong:
        tasks.run_blocking(
            lambda: message_sets.extend(_message_sets(asked, magic, Budget())), ended
        )
    else:
        ended(None)


def _message_sets(asked: Asked, magic: int, budget: Budget) -> MessageSets:
    message_sets: MessageSets = []
    for part, offset in asked:
        try:
            message_set = b""
            if isinstance(part, Slice):
                message_set = message_set_of(part, magic, offset, budget)
            message_sets.append(message_set)
        except ApiError as error:
            message_sets.append(error)
    return message_sets


def message_set_of(part: Slice, magic: int, fetch_offset: int, budget: Budget) -> bytes:
    """What `part` holds, as messages of `magic` from `fetch_offset` on; `part` is not released.

    If not even its first batch is whole, then a message that is not: its size tells the consumer
    that what it may fetch is too little. Nothing, once `budget` is spent. Raises as `down_convert`
    if nothing could be converted.
    """
    if budget.is_spent:
        return b""
    _keep_freed_blocks()
    batches = part.read(budget.bytes)  # behind those it is spent
    if is_partial(batches, 0) and len(batches) < part.size:
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
