"""Compression libraries side by side, on payloads like a producer's.

Prints one table per codec: MB/s of uncompressed data in both directions, medians of many calls on
one thread, ratios to kdist's own functions, and whether a call lets other threads run. How a
library can bound its output is taken from its documentation, not measured. Libraries that are not
installed are left out. The decision is docs/decisions/0002-libraries.md.
"""

from __future__ import annotations

import functools
import importlib
import json
import random
import statistics
import threading
import time
from collections.abc import Callable
from typing import Any, NamedTuple

from kdist.records import compression
from kdist.records.compression import Codec

SIZES = {"64 KiB": 65_536, "1 MiB": 1_048_576}
LARGE_SIZE = 32 * 1_048_576  # one call takes long enough to show whether it holds the GIL
CALLS_MIN = 7
SECONDS_MIN = 0.15


class Candidate(NamedTuple):
    """One implementation of one codec. Calls take memoryviews; `unpack` gets the unpacked size."""

    name: str
    codec: Codec
    bound: str
    pack: Callable[[memoryview], Any]
    unpack: Callable[[memoryview, int], Any]


def kept(codec: Codec, bound: str) -> Candidate:
    return Candidate(
        "kdist",
        codec,
        bound,
        lambda data: compression.compress(codec, data),
        lambda packed, size: compression.decompress(codec, packed, size),
    )


def candidates() -> list[Candidate]:
    """kdist's own first, then what each installed library offers."""
    own = [kept(codec, "size_max") for codec in list(Codec)[1:]]
    return own + [
        row
        for make in (of_zlib, of_isal, of_cramjam, of_lz4, of_snappy, of_zstandard)
        for row in make()
    ]


def library(name: str) -> Any:
    """The module, or None where it is not installed."""
    try:
        return importlib.import_module(name)
    except ImportError:
        return None


def of_zlib() -> list[Candidate]:
    zlib = library("zlib")
    return [gzip_candidate("zlib level 6", zlib, 6), gzip_candidate("zlib level 1", zlib, 1)]


def of_isal() -> list[Candidate]:
    isal = library("isal.isal_zlib")
    return [gzip_candidate("isal level 1", isal, 1)] if isal else []


def gzip_candidate(name: str, zlib: Any, level: int) -> Candidate:
    def pack(data: memoryview) -> bytes:
        stream = zlib.compressobj(level, wbits=31)
        return bytes(stream.compress(data) + stream.flush())

    def unpack(packed: memoryview, size: int) -> Any:
        return zlib.decompressobj(31).decompress(packed, size + 1)

    return Candidate(name, Codec.GZIP, "max_length", pack, unpack)


def of_cramjam() -> list[Candidate]:
    cramjam = library("cramjam")
    if not cramjam:
        return []
    variants = {
        Codec.GZIP: (lambda d: cramjam.gzip.compress(d, 6), cramjam.gzip.decompress_into),
        Codec.SNAPPY: (cramjam.snappy.compress_raw, cramjam.snappy.decompress_raw_into),
        Codec.LZ4: (cramjam.lz4.compress, cramjam.lz4.decompress_into),
        Codec.ZSTD: (lambda d: cramjam.zstd.compress(d, 3), cramjam.zstd.decompress_into),
    }
    return [
        Candidate(
            "cramjam",
            codec,
            "fixed output buffer",
            pack,
            lambda packed, size, into=into: into(packed, room(size)),
        )
        for codec, (pack, into) in variants.items()
    ]


@functools.cache
def room(size: int) -> bytearray:
    """A buffer that is reused for unpacking."""
    return bytearray(size)


def of_lz4() -> list[Candidate]:
    lz4 = library("lz4.frame")
    if not lz4:
        return []
    return [
        Candidate(
            "lz4",
            Codec.LZ4,
            "max_length",
            lambda data: lz4.compress(data, block_linked=False),
            lambda packed, size: lz4.LZ4FrameDecompressor().decompress(packed, size + 1),
        )
    ]


def of_snappy() -> list[Candidate]:
    snappy = library("snappy")
    if not snappy:
        return []
    return [
        Candidate(
            "python-snappy (cramjam within)",
            Codec.SNAPPY,
            "no",
            snappy.compress,
            lambda packed, _: snappy.uncompress(packed),
        )
    ]


def of_zstandard() -> list[Candidate]:
    zstandard = library("zstandard")
    if not zstandard:
        return []

    def unpack(packed: memoryview, size: int) -> Any:
        return zstandard.ZstdDecompressor().stream_reader(packed).read(size + 1)

    return [
        Candidate(
            "zstandard",
            Codec.ZSTD,
            "read(size), silent about a cut",
            lambda data: zstandard.ZstdCompressor(level=3).compress(data),
            unpack,
        )
    ]


# --- measuring ----------------------------------------------------------------------------------


def payload(size: int) -> bytes:
    """JSON records of 100 bytes, as a web site's activity log has them; the same on every run."""
    dice = random.Random(size)
    records = []
    for number in range(size // 100 + 1):
        record = {
            "id": number,
            "user": f"u{dice.randrange(10**6):06}",
            "at": 1_700_000_000_000 + number * 7,
            "event": dice.choice(["view", "click", "buy"]),
            "page": f"/item/{dice.randrange(10**5)}",
        }
        records.append(json.dumps(record).encode().ljust(100))
    return b"".join(records)[:size]


def median_seconds(call: Callable[[], Any]) -> float:
    call()
    times: list[float] = []
    while len(times) < CALLS_MIN or sum(times) < SECONDS_MIN:
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def lets_others_run(call: Callable[[], Any]) -> bool:
    """Whether the call releases the GIL: this thread never pauses for half the call's duration.

    A busy machine causes pauses too, so one of five tries without a pause is proof.
    """
    start = time.perf_counter()
    call()
    alone = time.perf_counter() - start
    return any(longest_gap_beside(call) < alone / 2 for _ in range(5))


def longest_gap_beside(call: Callable[[], Any]) -> float:
    worker = threading.Thread(target=call)
    last, gap = time.perf_counter(), 0.0
    worker.start()
    while worker.is_alive():
        now = time.perf_counter()
        last, gap = now, max(gap, now - last)
    return gap


def speed(call: Callable[[], Any], size: int) -> float:
    """MB of uncompressed data per second."""
    return size / 1e6 / median_seconds(call)


def print_row(row: Candidate, large: memoryview, own: dict[tuple[str, str], float]) -> None:
    """One line per payload; `own` keeps the first candidate's speeds, for comparison."""
    packed_large = memoryview(bytes(row.pack(large)))
    others = "run" if lets_others_run(lambda: row.unpack(packed_large, LARGE_SIZE)) else "wait"
    for label, size in SIZES.items():
        shrunk, speeds = measure(row, memoryview(payload(size)))
        cells = "".join(
            f"{value:8.0f} {value / own.setdefault((label, way), value):5.2f}x"
            for way, value in speeds.items()
        )
        print(f"{row.name:31}{label:>8}{shrunk:9.0%}{cells}  {others:7}{row.bound}")


def measure(row: Candidate, data: memoryview) -> tuple[float, dict[str, float]]:
    """The compressed size as a share of the original, and the speed in each direction."""
    packed = memoryview(bytes(row.pack(data)))
    return len(packed) / len(data), {
        "pack": speed(lambda: row.pack(data), len(data)),
        "unpack": speed(lambda: row.unpack(packed, len(data)), len(data)),
    }


def main() -> None:
    large = memoryview(payload(LARGE_SIZE))
    rows = candidates()
    for codec in list(Codec)[1:]:
        print(f"\n{codec.name.lower()}: MB/s of uncompressed data, and ratio to kdist's")
        print(f"{'':31}{'payload':>8}{'size':>9}{'pack':>15}{'unpack':>15}  others bound")
        own: dict[tuple[str, str], float] = {}
        for row in rows:
            if row.codec == codec:
                print_row(row, large, own)


if __name__ == "__main__":
    main()
