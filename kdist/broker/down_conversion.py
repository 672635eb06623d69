"""Down-conversion: stored batches as message sets for old consumers, Fetch before version 4.

Records are decoded and encoded again, in steps and within a budget per answer, so that old clients
do not hold up others for long.
"""

from __future__ import annotations

import functools
import struct
from collections.abc import Callable, Sequence

from kdist.errors import ApiError, Error
from kdist.records.batch import HEADER_SIZE, is_partial, read_header
from kdist.records.convert import Budget, down_convert
from kdist.runtime.steps import LongWork, Steps, in_thread
from kdist.runtime.unix import keep_freed_blocks
from kdist.storage.reading import Slice
from kdist.wire.primitives import Buffer

# A broker without old clients has no such blocks, and keeps none.
_keep_freed_blocks = functools.cache(keep_freed_blocks)

_MESSAGE_PREFIX = struct.Struct(">qi")  # offset and size
_STEP_RECORDS = 500  # some 2 ms
_STEP_BYTES = 512 << 10  # as `Budget` counts them


Asked = Sequence[tuple[object, int]]
"""For each partition of a fetch its slice, if there is one, and the fetch offset."""

MessageSets = list[bytes | ApiError]


def convert(
    conversions: LongWork,
    asked: Asked,
    magic: int,
    has_room: Callable[[], bool],
    converted: Callable[[MessageSets], None],
    failed: Callable[[BaseException], None],
) -> None:
    """Convert and release the slices; call `converted` with each partition's message set or error.

    It is called at once or, if conversion takes long, later. After an unexpected error `failed` is
    called instead, and the fetch is not answered. Nothing is converted if the client has no room
    once it would begin: many may wait that were sent without waiting for an answer.
    """
    conversions.begin(_message_sets(asked, magic, has_room), converted, failed)


def _message_sets(asked: Asked, magic: int, has_room: Callable[[], bool]) -> Steps[MessageSets]:
    message_sets: MessageSets = []
    try:
        budget = Budget() if has_room() else Budget(records=0)
        for part, offset in asked:
            try:
                message_set = b""
                if isinstance(part, Slice):
                    message_set = yield from converting(part, magic, offset, budget)
                message_sets.append(message_set)
            except ApiError as error:
                message_sets.append(ApiError(error.error, error.detail))  # without its frames
            if isinstance(part, Slice) and part.generation != part.segment.generation:
                # Cut off meanwhile, by an unclean election: what was read may be another leader's.
                message_sets[-1] = ApiError(Error.NOT_LEADER_OR_FOLLOWER)
    finally:
        for part, _ in asked:
            if isinstance(part, Slice):
                part.release()
    return message_sets


def converting(part: Slice, magic: int, fetch_offset: int, budget: Budget) -> Steps[bytes]:
    """The records of `part` as messages of `magic` from `fetch_offset` on. Does not release `part`.

    If even its first batch is incomplete, or all in it was removed from that offset on, the result
    is a partial message, whose size tells the consumer that its fetch size is too small. Empty once
    `budget` is spent. Raises as `down_convert` if nothing could be converted.
    """
    if budget.is_spent:
        return b""
    _keep_freed_blocks()
    batches = part.read(budget.bytes)  # more would exceed it
    if is_partial(batches, 0) and len(batches) < part.size:
        batches = yield from in_thread(part.read)
    if is_partial(batches, 0):
        size = read_header(batches).size if len(batches) >= HEADER_SIZE else HEADER_SIZE
        return _MESSAGE_PREFIX.pack(fetch_offset, size)
    converted: list[Buffer] = []
    pause_at = _pause_after(budget)
    try:
        for steps in down_convert(batches, magic, fetch_offset, budget):
            message_set = yield from steps
            if message_set:  # so what was converted before an error is kept
                converted.append(message_set)
            if budget.records < pause_at[0] or budget.bytes < pause_at[1]:
                yield None
                pause_at = _pause_after(budget)
    except ApiError:
        if not converted:
            raise
    if not converted and not budget.is_spent:
        return _MESSAGE_PREFIX.pack(fetch_offset, read_header(batches).size)
    return b"".join(converted)


def _pause_after(budget: Budget) -> tuple[int, int]:
    """What is left of the budget, records and bytes, when a step is over."""
    return budget.records - _STEP_RECORDS, budget.bytes - _STEP_BYTES
