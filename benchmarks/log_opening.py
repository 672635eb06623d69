"""Opening a directory of many clean partitions, in a process of its own: time, memory, descriptors.

    .venv/bin/python benchmarks/log_opening.py DIRECTORY      opens it, prints JSON, closes it

Each partition has one batch of 3 KB and all the files that a clean stop leaves. Names and inodes
are in the kernel's cache. The yardstick asks `os.stat` about each of these files.
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import subprocess
import sys
import time

from log_world import (
    LEADER_EPOCH,
    START_MS,
    Place,
    create_logs,
    log_directory,
    make_batch,
    settle,
    tell,
)
from measuring import ROUNDS, Row

from kdist.records.batch import Batch, read_header
from kdist.runtime.unix import raise_limit

SECONDS_MAX = 5
MEGABYTES_MAX = 500
YARDSTICK = "os.stat of each file"


def measure_opening(place: Place) -> list[Row]:
    """Partitions opened per second of the wall clock, medians of five processes."""
    count = place.scaled(10_000, 50)
    path = f"{place.path}/many"
    tell(f"open {count:,} clean partitions: creating them")
    try:
        fill(path, count)
        settle(place)
        tell(f"open {count:,} clean partitions: {ROUNDS} processes")
        reports = [open_in_child(path) for _ in range(ROUNDS + 1)][1:]
    finally:
        shutil.rmtree(path)
    assert {report["partitions"] for report in reports} == {count}
    return _rows(count, {name: statistics.median(r[name] for r in reports) for name in reports[0]})


def _rows(count: int, found: dict[str, float]) -> list[Row]:
    wall_s, peak = found["wall_s"], found["peak_mb"]
    opened = Row(
        "open, wall",
        "kdist",
        count / wall_s,
        "partitions/s",
        {YARDSTICK: found["stat_s"] / wall_s},
        f"{SECONDS_MAX} s for 10,000, took {wall_s:.2f} (CPU {found['cpu_s']:.2f})",
        wall_s <= SECONDS_MAX * count / 10_000,
    )
    stat = Row("open, wall", YARDSTICK, count / found["stat_s"], "partitions/s", {YARDSTICK: 1.0})
    memory = Row(
        "open, memory",
        "kdist",
        peak,
        "MB",
        {"before opening": peak / found["start_mb"]},
        f"{MEGABYTES_MAX} MB",
        peak <= MEGABYTES_MAX,
    )
    descriptors = Row("open, descriptors", "kdist", found["descriptors"], "more than before")
    return [opened, stat, memory, descriptors]


def fill(path: str, count: int) -> None:
    """Make a log directory of `count` partitions, and close it cleanly."""
    batch = make_batch(4096)
    with log_directory(path) as directory:
        for log in create_logs(directory, count):
            log.append_as_leader([Batch(read_header(batch), batch)], LEADER_EPOCH, START_MS)
            log.close_idle()
        directory.close()


def open_in_child(path: str) -> dict[str, float]:
    """What a new process reports of opening the directory."""
    done = subprocess.run(
        [sys.executable, __file__, path], check=True, stdout=subprocess.PIPE, text=True
    )
    report: dict[str, float] = json.loads(done.stdout)
    return report


# --- in the child -------------------------------------------------------------------------------


def main() -> None:
    """Open the directory, report, and close it cleanly, so that the next process finds the same."""
    path = sys.argv[1]
    raise_limit()
    start_mb, descriptors = peak_mb(), open_descriptors()
    start = time.perf_counter()
    stat_all(path)
    stat_s = time.perf_counter() - start
    start, start_cpu = time.perf_counter(), time.thread_time()
    with log_directory(path) as directory:
        report = {
            "wall_s": time.perf_counter() - start,
            "cpu_s": time.thread_time() - start_cpu,
            "stat_s": stat_s,
            "partitions": len(directory.logs),
            "start_mb": start_mb,
            "peak_mb": peak_mb(),
            "descriptors": open_descriptors() - descriptors,
        }
        directory.close()
    print(json.dumps(report))


def peak_mb() -> float:
    """The largest resident set of this program so far, in MB; getrusage would tell the parent's."""
    with open("/proc/self/status", encoding="ascii") as status:
        lines = dict(line.split(":", 1) for line in status)
    return int(lines["VmHWM"].split()[0]) * 1024 / 1e6


def open_descriptors() -> int:
    """How many files this process has open."""
    return len(os.listdir("/proc/self/fd"))


def stat_all(path: str) -> None:
    """Ask the kernel about each file below `path`."""
    for partition in os.listdir(path):
        if os.path.isdir(f"{path}/{partition}"):
            for name in os.listdir(f"{path}/{partition}"):
                os.stat(f"{path}/{partition}/{name}")


if __name__ == "__main__":
    main()
