"""Which partition a key belongs to, as Java's producer has it (pure).

Records of one key stay in one partition, whichever client writes them: so the hash is Java's,
32-bit murmur2 with Kafka's seed, its sign bit cleared. Source: Kafka's `Utils.murmur2`.

Many keys of one length are hashed at once, in the lanes of one large integer: 64 bits for each, so
that a product of 32 bits has room. Python does arithmetic on those in C.

    lane    63       32 31        0     after a multiplication, the upper half is masked off
"""

from __future__ import annotations

import functools
import struct
from collections.abc import Callable, Sequence

_SEED = 0x9747B28C
_M = 0x5BD1E995
_MASK = 0xFFFFFFFF
_LANE_BYTES = 8
_LANES_MIN = 4  # for fewer keys the one-by-one way is as fast
_LANES_MAX = 256  # beyond the core's first cache it gets slower
_REMEMBERED_BYTES_MAX = 128

Partitioner = Callable[[bytes | None, int], int]
"""An application's own choice: of a key, None if there is none, and a topic's partition count."""


def murmur2(data: bytes) -> int:
    """The hash, unsigned.

    >>> murmur2(b"user-7")
    696778364
    """
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


def murmur2_many(keys: Sequence[bytes]) -> list[int]:
    """The hashes of keys of one length: in lanes, seven times as fast as one by one.

    >>> murmur2_many([b"user-7", b"user-8"]) == [murmur2(b"user-7"), murmur2(b"user-8")]
    True
    """
    hashes: list[int] = []
    for start in range(0, len(keys), _LANES_MAX):
        hashes += _hash_lanes(keys[start : start + _LANES_MAX])
    return hashes


def _hash_lanes(keys: Sequence[bytes]) -> tuple[int, ...]:
    count, size = len(keys), len(keys[0])
    ones = _ones(count)
    mask = ones * _MASK
    h = ones * (_SEED ^ size)
    words = -(-size // 4)
    joined = b"".join([key.ljust(words * 4, b"\0") for key in keys] if size % 4 else keys)
    lanes = bytearray(count * _LANE_BYTES)
    view = memoryview(lanes).cast("I")
    columns = memoryview(joined).cast("I")
    for word in range(words):
        view[::2] = columns[word::words]
        k = int.from_bytes(lanes, "little")
        if word < size // 4:
            k = k * _M & mask
            k = ((k ^ (k >> 24 & mask)) * _M) & mask
            h = h * _M & mask ^ k
        else:
            h = (h ^ k) * _M & mask
    h = (h ^ (h >> 13 & mask)) * _M & mask
    h ^= h >> 15 & mask
    return struct.unpack(f"<{2 * count}I", h.to_bytes(count * _LANE_BYTES, "little"))[::2]


@functools.lru_cache(maxsize=_LANES_MAX)
def _ones(count: int) -> int:
    return int.from_bytes(b"\1\0\0\0\0\0\0\0" * count, "little")


# The hash takes 10 µs in Python, and keys come again. Long ones would fill the memory.
_remembered = functools.lru_cache(maxsize=1 << 16)(murmur2)


def partition_for(key: bytes, count: int) -> int:
    """The partition of a key in a topic of `count` partitions.

    >>> partition_for(b"user-7", 12)
    8
    """
    hashed = _remembered(key) if len(key) <= _REMEMBERED_BYTES_MAX else murmur2(key)
    return (hashed & 0x7FFFFFFF) % count


def partitions_for(keys: Sequence[bytes | None], count: int) -> list[int | None]:
    """The partition of each key in a topic of `count` partitions; None where there is no key.

    >>> partitions_for([b"user-7", None], 12)
    [8, None]
    """
    found: dict[bytes | None, int | None] = {None: None}
    by_size: dict[int, list[bytes]] = {}
    for key in set(keys):
        if key is not None:
            by_size.setdefault(len(key), []).append(key)
    for size, same in by_size.items():
        if size and len(same) >= _LANES_MIN:
            hashes = murmur2_many(same)
        else:
            hashes = [murmur2(key) for key in same]
        found.update(
            (key, (hashed & 0x7FFFFFFF) % count) for key, hashed in zip(same, hashes, strict=True)
        )
    return [found[key] for key in keys]
