"""Reading back: the scan after a crash, and finding a record by its timestamp or offset.

Everything is in the page cache. The yardstick of the scan reads the same bytes in the same pieces
and computes their CRC, without parsing them.
"""

from __future__ import annotations

import os
import random
import shutil
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial

from log_world import (
    BATCH_RECORDS,
    LEADER_EPOCH,
    START_MS,
    Place,
    create_logs,
    log_directory,
    make_batch,
    settle,
    speeds,
    tell,
)
from measuring import Row

from kdist.records.batch import Batch, read_header
from kdist.runtime.steps import run_steps
from kdist.storage.loading import SavedOffsets, load_log
from kdist.storage.log import Log
from kdist.storage.reading import read
from kdist.storage.time_lookup import finding_by_timestamp
from kdist.wire.crc32c import crc32c

SCAN_BUDGET = 1e9  # bytes per second
FIND_BUDGET_NS = 1_000_000
PIECE_BYTES = 256 * 1024
BATCH_BYTES = 65_536
YARDSTICK = "pread and CRC"
FIND_YARDSTICK = "pread and CRC at a known place"


@contextmanager
def filled_log(place: Place, size: int, batch_bytes: int) -> Iterator[Log]:
    """A log of about `size` bytes, its records 1 ms apart, written to the disk and in the cache."""
    path = f"{place.path}/filled"
    try:
        with log_directory(path) as directory:
            (log,) = create_logs(directory, 1)
            for number in range(size // batch_bytes):
                batch = make_batch(batch_bytes, number)
                log.append_as_leader([Batch(read_header(batch), batch)], LEADER_EPOCH, START_MS)
            settle(place)
            yield log
    finally:
        shutil.rmtree(path)


# --- the scan after a crash ---------------------------------------------------------------------


def measure_scans(place: Place) -> list[Row]:
    """Bytes per second when a log without the clean marker is loaded, from its first batch on."""
    return [
        *_measure_scan(place, place.scaled(1 << 30, 1 << 20), 65_536, SCAN_BUDGET),
        *_measure_scan(place, place.scaled(128 << 20, 1 << 20), 4096, None),
        *_measure_scan(place, place.scaled(64 << 20, 1 << 20), 1024, None),
    ]


def _measure_scan(place: Place, size: int, batch_bytes: int, budget: float | None) -> list[Row]:
    tell(f"recovery scan: {size >> 20:,} MiB in batches of {batch_bytes >> 10} KiB")
    with filled_log(place, size, batch_bytes) as log:
        log.close()
        size = log.size
        found = speeds(
            place, {"kdist": partial(scan_sample, log), YARDSTICK: partial(raw_sample, log)}, size
        )
    rows = []
    for clock in ("CPU", "wall"):
        rates = {name: getattr(each, clock.lower()) for name, each in found.items()}
        rows += [
            Row(
                f"scan, {batch_bytes >> 10} KiB batches, {clock}",
                name,
                rate,
                "B/s",
                {YARDSTICK: rate / rates[YARDSTICK]},
            )
            for name, rate in rates.items()
        ]
    if budget is not None:
        is_met = rows[0].per_second >= budget
        rows[0] = rows[0]._replace(budget=f"{budget / 1e9:.0f} G B/s", is_met=is_met)
    return rows


@contextmanager
def scan_sample(log: Log) -> Iterator[Callable[[], object]]:
    """Load the log as after a crash with nothing known to be synced, its indexes lost."""
    for index in (log.active.offset_index, log.active.time_index):
        if os.path.exists(index.path):
            os.unlink(index.path)
    loaded: list[Log] = []

    def work() -> None:
        loaded.append(
            run_steps(
                load_log(
                    log.context,
                    log.partition,
                    log.directory,
                    log.settings,
                    SavedOffsets(),
                    is_clean=False,
                    now_ms=START_MS,
                )
            )
        )

    yield work
    assert loaded[0].end_offset == log.end_offset
    loaded[0].close()


@contextmanager
def raw_sample(log: Log) -> Iterator[Callable[[], object]]:
    """Read the log's file in pieces and compute the CRC of each."""
    descriptor = os.open(log.active.path, os.O_RDONLY)

    def work() -> None:
        position = 0
        while data := os.pread(descriptor, PIECE_BYTES, position):
            crc32c(data)
            position += len(data)

    try:
        yield work
    finally:
        os.close(descriptor)


# --- one record ---------------------------------------------------------------------------------


def measure_finds(place: Place) -> list[Row]:
    """How long it takes to find one of 1,000 random records in 1 GiB, by the wall clock."""
    size, lookups = place.scaled(1 << 30, 2 << 20), place.scaled(1000, 50)
    tell(f"find: {lookups:,} records in {size >> 20:,} MiB")
    dice = random.Random(1)
    with filled_log(place, size, BATCH_BYTES) as log:
        log.prepare_stop()  # so that its indexes are fully in their files, as after a stop
        log.close_idle()
        offsets = [dice.randrange(log.end_offset) for _ in range(lookups)]
        taken = {
            "kdist by timestamp": time_each(by_timestamp, log, offsets),
            "kdist by offset": time_each(by_offset, log, offsets),
            FIND_YARDSTICK: time_each(by_position, log, offsets),
        }
    return _find_rows(taken)


def time_each(find: Callable[[Log, int], None], log: Log, offsets: Sequence[int]) -> list[int]:
    """Nanoseconds that each lookup takes, after one round to warm up."""
    for offset in offsets:
        find(log, offset)
    taken = []
    for offset in offsets:
        start = time.perf_counter_ns()
        find(log, offset)
        taken.append(time.perf_counter_ns() - start)
    return taken


def by_timestamp(log: Log, offset: int) -> None:
    """The record of a timestamp: its batch is found, checked and decoded."""
    found = run_steps(finding_by_timestamp(log, START_MS + offset))
    assert found is not None
    assert found.offset == offset


def by_offset(log: Log, offset: int) -> None:
    """The slice of the log that answers a fetch from `offset`."""
    found = read(log, offset, 1 << 20)
    assert found is not None
    found.release()


def by_position(log: Log, offset: int) -> None:
    """Read the batch of an offset from its known position, and compute its CRC."""
    batch = offset // BATCH_RECORDS[BATCH_BYTES] * log.size // log.end_offset
    crc32c(log.active.file.read(batch, BATCH_BYTES))


def _find_rows(taken: dict[str, list[int]]) -> list[Row]:
    yardstick_ns = statistics.median(taken[FIND_YARDSTICK])
    rows = []
    for name, times in taken.items():
        for label, ns in (
            ("median", statistics.median(times)),
            ("p99", statistics.quantiles(times, n=100)[98]),
        ):
            row = Row(
                f"find, wall, {label}",
                name,
                1e9 / ns,
                "records/s",
                {FIND_YARDSTICK: yardstick_ns / ns},
            )
            if name == "kdist by timestamp":
                budget = f"under 1 ms, took {ns / 1e6:.3f}"
                row = row._replace(budget=budget, is_met=ns < FIND_BUDGET_NS)
            rows.append(row)
    return rows
