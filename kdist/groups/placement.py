"""Which partition of `__consumer_offsets` keeps a group: Java's hash of its name (pure)."""

from __future__ import annotations

import struct

INT32_MIN = -(1 << 31)
_UNIT = struct.Struct("<H")
_MASK = 0xFFFF_FFFF


def partition_for(group_id: str, partitions: int) -> int:
    """The group's partition, out of `partitions`. Every broker and tool must compute the same."""
    code = java_hash(group_id)
    return (0 if code == INT32_MIN else abs(code)) % partitions  # as Kafka: abs(MIN) overflows


def java_hash(text: str) -> int:
    """Java's `String.hashCode`: over UTF-16 code units, wrapping at 32 bits, signed."""
    units = text.encode("utf-16-le", "surrogatepass")
    code = 0
    for (unit,) in _UNIT.iter_unpack(units):
        code = code * 31 + unit & _MASK
    return code - (1 << 32) if code >> 31 else code
