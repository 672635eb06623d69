"""Checksum libraries side by side, on a memoryview of a batch: GB/s, and ratio to the first.

CRC-32C is that of record batches, CRC-32 that of message sets. Libraries that are not installed
are left out. The decision is docs/decisions/0002-libraries.md.
"""

from __future__ import annotations

import statistics
import time
import zlib
from collections.abc import Callable, Iterator
from typing import Any

from kdist.wire import crc32c

SIZES = {"100 B": 100, "64 KiB": 65_536, "1 MiB": 1_048_576}
REPEATS = 7
BYTES_PER_REPEAT = 8_000_000


def candidates() -> Iterator[tuple[str, Callable[[Any], int]]]:
    if crc32c.hardware:
        yield "CRC-32C crc32c", crc32c.hardware
    try:
        import google_crc32c
    except ImportError:
        pass  # only a yardstick: it takes bytes, so a memoryview must be copied first
    else:
        yield "CRC-32C google-crc32c", lambda view: google_crc32c.value(bytes(view))
    yield "CRC-32C crcmod", crc32c.software
    yield "CRC-32  zlib", zlib.crc32


def median_seconds(call: Callable[[Any], int], view: memoryview) -> float:
    calls = max(1, BYTES_PER_REPEAT // len(view) // 10)
    times = []
    for _ in range(REPEATS):
        start = time.perf_counter()
        for _ in range(calls):
            call(view)
        times.append((time.perf_counter() - start) / calls)
    return statistics.median(times)


def main() -> None:
    first: dict[str, float] = {}
    for name, call in candidates():
        cells = ""
        for label, size in SIZES.items():
            seconds = median_seconds(call, memoryview(bytes(range(256)) * (size // 256 + 1))[:size])
            ratio = first.setdefault(label, seconds) / seconds
            cells += f"   {label} {size / seconds / 1e9:6.2f} GB/s {ratio:6.3f}x"
        print(f"{name:22}{cells}")


if __name__ == "__main__":
    main()
