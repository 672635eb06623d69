"""Walking through a whole segment: sound batches, old messages, and damage.

`scan.py` stops at the first fault, as recovery must. A tool has to tell how far the damage reaches
and what follows it, so the walk here searches for the next batch whose header and CRC are good.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from kdist.errors import CorruptRecords
from kdist.records.batch import (
    CHECKED_POSITION,
    HEADER_SIZE,
    LENGTH_PREFIX_SIZE,
    BatchHeader,
    header_fault,
    read_header,
)
from kdist.records.message_set import MAGIC_MAX, Message, iter_messages
from kdist.runtime.files import File
from kdist.storage.scan import DamagedSegment, ScannedBatch, walk_batches
from kdist.wire.crc32c import crc32c

_READ_BYTES = 1 << 20
_OLD_MESSAGE_BYTES_MAX = 1 << 28
_OLD_MESSAGE_BYTES_MIN = 26


class Damage(NamedTuple):
    """Bytes that are not a sound batch, from position `start` to `end`.

    An empty range: the batch there is sound, but its offset does not follow.
    """

    start: int
    end: int
    reason: str
    header: BatchHeader | None
    """What is in the header's place, if its fields make sense."""
    is_torn: bool
    """The file ends inside this batch, as after a crash or during an append."""


class OldMessage(NamedTuple):
    """A message of magic 0 or 1, or a compressed wrapper of several, whose CRC is good."""

    position: int
    size: int
    message: Message


Scanned = ScannedBatch | OldMessage | Damage


def survey(file: File, start: int, end: int, offset_min: int) -> Iterator[Scanned]:
    """Everything in a segment's file from `start`, where a batch must begin, to `end`.

    No base offset may be below `offset_min`, the segment's. Memory: one batch, but at least 1 MiB.
    """
    position = start
    while position < end:
        try:
            for batch in walk_batches(file, position, end, base_offset=offset_min):
                yield batch
                position, offset_min = batch.position + batch.header.size, batch.header.next_offset
        except DamagedSegment as fault:
            found = _explain(file, fault, end, offset_min)
            yield found
            if isinstance(found, OldMessage):
                position, offset_min = found.position + found.size, found.message.offset + 1
            else:
                position = found.end
                if found.end == found.start and found.header is not None:
                    offset_min = found.header.base_offset


def _explain(file: File, fault: DamagedSegment, end: int, offset_min: int) -> OldMessage | Damage:
    position = fault.position
    head = file.read(position, min(HEADER_SIZE, end - position))
    header = read_header(head) if len(head) == HEADER_SIZE else None
    old = _read_old_message(file, position, end)
    if old is not None:
        return old
    is_sound = header is not None and header_fault(header, end - position) is None
    if (
        header is not None
        and is_sound
        and header.base_offset < offset_min
        and _is_crc_good(file, position, header)
    ):
        return Damage(position, position, fault.reason, header, is_torn=False)
    following = _find_next(file, position, end, header if is_sound else None, offset_min)
    is_torn = following == end and _reaches_end(file, position, end, header)
    return Damage(position, following, fault.reason, header if is_sound else None, is_torn)


def _read_old_message(file: File, position: int, end: int) -> OldMessage | None:
    head = file.read(position, min(_OLD_MESSAGE_BYTES_MIN, end - position))
    if len(head) < _OLD_MESSAGE_BYTES_MIN or head[16] > MAGIC_MAX:
        return None
    size = LENGTH_PREFIX_SIZE + int.from_bytes(head[8:12], "big", signed=True)
    if not _OLD_MESSAGE_BYTES_MIN <= size <= min(end - position, _OLD_MESSAGE_BYTES_MAX):
        return None
    try:
        (message,) = iter_messages(file.read(position, size))
    except CorruptRecords:
        return None
    return OldMessage(position, size, message)


def _reaches_end(file: File, position: int, end: int, header: BatchHeader | None) -> bool:
    """Whether `position` seems to hold the beginning of a batch that the file's end cuts off."""
    if header is None or (header.magic == 2 and header.size > end - position):
        return True
    return _is_zero(file, position, end)  # preallocated and not yet written


def _is_zero(file: File, position: int, end: int) -> bool:
    for start in range(position, end, _READ_BYTES):
        data = file.read(start, min(_READ_BYTES, end - start))
        if data.count(0) != len(data):
            return False
    return True


# --- the next sound batch -----------------------------------------------------------------------


def _find_next(
    file: File, position: int, end: int, header: BatchHeader | None, offset_min: int
) -> int:
    """The position of the first sound batch after the damage at `position`; `end` if none."""
    if header is not None:
        following = position + header.size
        if following == end or _is_batch(file, following, end, offset_min):
            return following
    # The 32 high bits of the next offset, a length that is not negative, the magic, and two fields
    # whose first byte is 0 in any real batch: random bytes match one time in 2**57.
    pattern = re.compile(
        b"(?s)(?=" + re.escape((offset_min >> 32).to_bytes(4, "big")) + rb"....[\x00-\x7f]"
        rb".{7}\x02.{4}\x00.\x00)"
    )
    for start in range(position + 1, end, _READ_BYTES):
        data = file.read(start, min(_READ_BYTES + HEADER_SIZE, end - start))
        for match in pattern.finditer(data):
            if _is_batch(file, start + match.start(), end, offset_min):
                return start + match.start()
    return end


def _is_batch(file: File, position: int, end: int, offset_min: int) -> bool:
    head = file.read(position, min(HEADER_SIZE, end - position))
    if len(head) < HEADER_SIZE:
        return False
    header = read_header(head)
    if header_fault(header, end - position) or header.base_offset < offset_min:
        return False
    return _is_crc_good(file, position, header)


def _is_crc_good(file: File, position: int, header: BatchHeader) -> bool:
    end, value = position + header.size, 0
    for start in range(position + CHECKED_POSITION, end, _READ_BYTES):
        value = crc32c(file.read(start, min(_READ_BYTES, end - start)), value)
    return value == header.crc
