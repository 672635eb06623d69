"""Compressed data with random damage: it is data or corrupt, within the bound, and takes no time.

Each seed packs some data in one of the framings that writers use, and changes it: bits, cuts,
repeats, and parts of other data in between.
"""

from __future__ import annotations

import gzip
import random
import time
from collections.abc import Callable
from typing import Any

import lz4.frame
import pytest
import snappy
import zstandard

from kdist.errors import CorruptRecords
from kdist.records.compression import Codec, compress, decompress
from kdist.records.frames import lz4_bound, zstd_bound
from tests.examples import first_of

SIZE_MAX = 1 << 20
MUTATIONS = 200
# What the densest data of this size takes is a tenth of it. CPU time, so that load does not count.
CPU_S_MAX = 0.2

Pack = Callable[[bytes], bytes]


def lz4_frame(**options: Any) -> Pack:
    return lambda data: bytes(lz4.frame.compress(data, **options))


WRITERS: list[tuple[Codec, Pack]] = [
    *((codec, lambda data, codec=codec: compress(codec, data)) for codec in list(Codec)[1:]),
    (Codec.GZIP, lambda data: gzip.compress(data[:999]) + gzip.compress(data[999:])),
    (Codec.SNAPPY, lambda data: bytes(snappy.compress(data))),
    (Codec.LZ4, lz4_frame(block_linked=True, content_checksum=True, store_size=True)),
    (Codec.LZ4, lz4_frame(block_size=7, block_checksum=True)),
    (Codec.ZSTD, lambda data: zstandard.ZstdCompressor(19, write_checksum=True).compress(data)),
    (
        Codec.ZSTD,
        lambda data: b"".join(map(zstandard.ZstdCompressor(1).compress, (data[:999], data[999:]))),
    ),
]


def contents(rng: random.Random) -> bytes:
    size = rng.choice([0, 1, 100, 5000, 150_000])
    return rng.choice([bytes(size), rng.randbytes(size), rng.randbytes(50) * (size // 50)])


def damaged(rng: random.Random, packed: bytes, other: bytes) -> bytes:
    data = bytearray(packed)
    for _ in range(rng.randrange(1, 4)):
        at, to = sorted(rng.randrange(len(data) + 1) for _ in range(2))
        kind = rng.randrange(5)
        if kind == 0 and at < len(data):
            data[at] ^= 1 << rng.randrange(8)
        elif kind == 1:
            del data[at : min(to, at + rng.choice([1, 4, len(data)]))]
        elif kind == 2:
            data[at:at] = bytes(data[at : min(to, at + 64)]) * rng.randrange(1, 2000)
        elif kind == 3:
            data[at:to] = other[at:to]
        elif at + 4 <= len(data):
            data[at : at + 4] = rng.choice([b"\xff\xff\xff\x7f", bytes(4), b"\xff" * 4])
    return bytes(data)


@pytest.mark.parametrize("number", range(len(WRITERS)))
@pytest.mark.parametrize("seed", first_of(range(5)))
def test_damaged_data_is_data_or_corrupt_and_soon_known_as_either(number: int, seed: int) -> None:
    codec, pack = WRITERS[number]
    rng = random.Random(1000 * seed + number)
    for _ in range(MUTATIONS):
        data = contents(rng)
        packed = pack(data)
        assert decompress(codec, packed, max(len(data), SIZE_MAX)) == data
        mutant = damaged(rng, packed, compress(codec, contents(rng)))
        began = time.process_time()
        try:
            unpacked = decompress(codec, mutant, SIZE_MAX)
        except CorruptRecords:
            unpacked = b""
        assert time.process_time() - began < CPU_S_MAX
        assert len(unpacked) <= SIZE_MAX
        bound = {Codec.LZ4: lz4_bound, Codec.ZSTD: zstd_bound}.get(codec)
        known = bound(mutant) if bound else None
        assert known is None or len(unpacked) <= known
