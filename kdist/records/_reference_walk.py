"""A look at each record of a produced batch in plain Python: the reference for `_compiled_walk.py`.

A batch with the right checksum may still have broken records, because of a fault in its producer.
Stored, it would stop every consumer that meets it.
"""

from __future__ import annotations

from typing import NamedTuple

from kdist.errors import CorruptRecords
from kdist.records._reference import decode_numbers, find_null_key
from kdist.wire.varint import Buffer


class BodySummary(NamedTuple):
    """What a walk over the records of a body finds besides that they are whole."""

    newest_ms: int
    """The largest timestamp."""
    lacks_keys: bool
    """Whether a record has no key."""


def are_whole(body: Buffer, count: int, base_timestamp: int) -> bool:
    """Whether `body_summary` has one."""
    return body_summary(body, count, base_timestamp) is not None


def body_summary(body: Buffer, count: int, base_timestamp: int) -> BodySummary | None:
    """A summary of exactly `count` records, at least one; None if they cannot be read.

    Their lengths must fit into each other, their offset deltas count from 0 on, and their
    timestamps have 64 bits.
    """
    try:
        offsets, timestamps = decode_numbers(body, count, 0, base_timestamp)
        if not offsets or offsets[-1] != count - 1:  # that they increase was checked
            return None
        return BodySummary(max(timestamps), find_null_key(body, count) is not None)
    except CorruptRecords:
        return None
