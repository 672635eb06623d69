"""Flushing several logs with little dirty data: one syncfs against one fdatasync each.

`SYNC_FILESYSTEM_FROM` in kdist/storage/flushing.py should be the number of logs from which syncfs
is faster. Both contenders are `flush_now`, forced one way or the other. A syncfs writes all dirty
data of the filesystem, so each is measured alone, and beside a log that is not flushed and has as
much dirty data as early writeback allows. Run this where nothing else writes. Rates are by wall
clock, since the disk does the work.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from unittest import mock

from log_world import (
    LEADER_EPOCH,
    START_MS,
    Place,
    Sample,
    create_logs,
    log_directory,
    make_batch,
    speeds,
    tell,
)
from measuring import Row

from kdist.config.storage import StorageSettings
from kdist.records.batch import Batch, read_header
from kdist.storage import flushing
from kdist.storage.directory import LogDirectory
from kdist.storage.log import Log

LOGS = (2, 4, 8, 16, 64, 256)
YARDSTICK = "fdatasync each"
DIRTY_BYTES = 8 << 20
BATCH_BYTES = 4096
NO_WRITEBACK = StorageSettings(writeback_step_bytes=0)


def measure_flushes(place: Place) -> list[Row]:
    """Flushes per second, for each number of logs, of 4 KiB in each log."""
    rows = []
    path = f"{place.path}/flushes"
    try:
        # Early writeback is off: it would write some of the data that must be dirty.
        with log_directory(path, settings=NO_WRITEBACK) as directory:
            other, *logs = create_logs(directory, 1 + place.scaled(max(LOGS), 4))
            for number in LOGS:
                if number <= len(logs):
                    tell(f"flush {number} logs")
                    rows += _measure(place, directory, logs[:number], None)
                    rows += _measure(place, directory, logs[:number], other)
    finally:
        shutil.rmtree(path)
    return rows


def _measure(
    place: Place, directory: LogDirectory, logs: Sequence[Log], other: Log | None
) -> list[Row]:
    dirtied = (other, place.scaled(DIRTY_BYTES, 65_536)) if other else None
    samples: dict[str, Sample] = {
        "syncfs": partial(flush_sample, directory, logs, dirtied, 0),
        YARDSTICK: partial(flush_sample, directory, logs, dirtied, len(logs) + 1),
    }
    found = speeds(place, samples, 1)
    beside = f" beside {DIRTY_BYTES >> 20} MiB" if other else ""
    return [
        Row(
            f"flush {len(logs)} logs{beside}, wall",
            name,
            each.wall,
            "flushes/s",
            {YARDSTICK: each.wall / found[YARDSTICK].wall},
        )
        for name, each in found.items()
    ]


@contextmanager
def flush_sample(
    directory: LogDirectory,
    logs: Sequence[Log],
    dirtied: tuple[Log, int] | None,
    sync_filesystem_from: int,
) -> Iterator[Callable[[], None]]:
    """Flush one new batch in each log, but not the bytes appended to the log of `dirtied`."""
    if dirtied is not None:
        other, size = dirtied
        fill(other, size // BATCH_BYTES)
    for log in logs:
        fill(log, 1)
    with mock.patch.object(flushing, "SYNC_FILESYSTEM_FROM", sync_filesystem_from):
        yield lambda: flushing.flush_now(directory.files, directory.path, logs)


def fill(log: Log, count: int) -> None:
    """Append `count` batches of 4 KiB."""
    batch = make_batch(BATCH_BYTES)
    for _ in range(count):
        log.append_as_leader([Batch(read_header(batch), batch)], LEADER_EPOCH, START_MS)
