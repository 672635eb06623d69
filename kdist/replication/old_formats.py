"""Down-conversion: stored batches as message sets for old consumers, Fetch before version 4.

Records are decoded and encoded again, within a budget per answer, so that old clients do not hold
up others for long. This is done on the event loop, but for gzip, which takes ten times as long, in
a thread: nearly all of that time is in zlib, which releases the interpreter lock.
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
"""For each partition of a fetch its slice, if there is one, and the fetch offset."""

MessageSets = list[bytes | ApiError]


def convert(
    tasks: Tasks,
    asked: Asked,
    magic: int,
    converted: Callable[[MessageSets], None],
    failed: Callable[[BaseException], None],
) -> None:
    """Convert and release the slices; call `converted` with each partition's message set or error.

    It is called at once or, if conversion takes long, when a thread has done it. If the thread
    fails, `failed` is called instead, and the fetch is not answered. Raises `DiskFailed`.
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
    """The records of `part` as messages of `magic` from `fetch_offset` on. Does not release `part`.

    If even its first batch is incomplete, the result is a partial message, whose size tells the
    consumer that its fetch size is too small. Empty once `budget` is spent. Raises as
    `down_convert` if nothing could be converted.
    """
    if budget.is_spent:
        return b""
    _keep_freed_blocks()
    batches = part.read(budget.bytes)  # more would exceed it
    if is_partial(batches, 0) and len(batches) < part.size:
        batches = part.read()
    if is_partial(batches, 0):
        size = read_header(batches).size if len(batches) >= HEADER_SIZE else HEADER_SIZE
        return _MESSAGE_PREFIX.pack(fetch_offset, size)
    converted: list[Buffer] = []
    try:
        # Keeps what was converted before an error.
        converted.extend(down_convert(batches, magic, fetch_offset, budget))
    except ApiError:
        if not converted:
            raise
    return b"".join(converted)
