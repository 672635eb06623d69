"""Mapping keys to partitions in plain Python: the reference for `_compiled_keys.py`.

All records of a key belong in one partition, whichever client writes them: so the hash is that of
Java's producer, 32-bit murmur2 with Kafka's seed, its sign bit cleared. Source: Kafka's
`Utils.murmur2`.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

SEED = 0x9747B28C
M = 0x5BD1E995
_MASK = 0xFFFFFFFF


def murmur2(data: bytes) -> int:
    """The hash, unsigned.

    >>> murmur2(b"user-7")
    696778364
    """
    size = len(data)
    h = SEED ^ size
    whole = size & ~3
    for (k,) in struct.iter_unpack("<I", data[:whole]):
        k = k * M & _MASK
        k = (k ^ k >> 24) * M & _MASK
        h = h * M & _MASK ^ k
    if size > whole:
        h = (h ^ int.from_bytes(data[whole:], "little")) * M & _MASK
    h = (h ^ h >> 13) * M & _MASK
    return h ^ h >> 15


def partition_for(key: bytes, count: int) -> int:
    """The partition of a key in a topic of `count` partitions.

    >>> partition_for(b"user-7", 12)
    8
    """
    return (murmur2(key) & 0x7FFFFFFF) % count


def partitions_for(keys: Sequence[bytes | None], count: int) -> list[int | None]:
    """The partition of each key in a topic of `count` partitions; None where there is no key.

    >>> partitions_for([b"user-7", None], 12)
    [8, None]
    """
    return [None if key is None else partition_for(key, count) for key in keys]
