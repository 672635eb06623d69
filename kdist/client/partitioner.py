"""Which partition a key belongs to, as Java's producer has it (pure).

Records of one key stay in one partition, whichever client writes them: so the hash is Java's,
32-bit murmur2 with Kafka's seed, its sign bit cleared. Source: Kafka's `Utils.murmur2`.
"""

from __future__ import annotations

import functools
import struct

_SEED = 0x9747B28C
_M = 0x5BD1E995
_MASK = 0xFFFFFFFF


def murmur2(data: bytes) -> int:
    """The hash, unsigned."""
    size = len(data)
    h = _SEED ^ size
    whole = size & ~3
    for (k,) in struct.iter_unpack("<I", data[:whole]):
        k = k * _M & _MASK
        k = (k ^ k >> 24) * _M & _MASK
        h = h * _M & _MASK ^ k
    if size > whole:
        h = (h ^ int.from_bytes(data[whole:], "little")) * _M & _MASK
    h = (h ^ h >> 13) * _M & _MASK
    return h ^ h >> 15


@functools.lru_cache(maxsize=1 << 16)  # the hash takes 10 µs in Python, and keys come again
def partition_for(key: bytes, count: int) -> int:
    """The partition of a key in a topic of `count` partitions."""
    return (murmur2(key) & 0x7FFFFFFF) % count
