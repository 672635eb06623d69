"""A look at each record of a produced batch in plain Python: the reference for `_compiled_walk.py`.

A batch with the right checksum may still have broken records, because of a fault in its producer.
Stored, it would stop every consumer that meets it.
"""

from __future__ import annotations

from kdist.errors import CorruptRecords
from kdist.records._reference import decode_numbers
from kdist.wire.varint import Buffer


def are_whole(body: Buffer, count: int, base_timestamp: int) -> bool:
    """Whether `body` is exactly `count` records, at least one, that can be read.

    Their lengths fit into each other, their offset deltas count from 0 on, and their timestamps
    have 64 bits.
    """
    try:
        offsets, _ = decode_numbers(body, count, 0, base_timestamp)
    except CorruptRecords:
        return False
    return bool(count) and offsets[-1] == count - 1  # that they increase was checked
