"""The log and the record codec: what they cost beside the bare system calls, as ratios in one run.

    .venv/bin/python benchmarks/bench_log.py [--quick] [--json] [--directory DIR] [--only NAME]

Medians of five rounds after a warm-up round, contenders in turn. "CPU" is the working thread's CPU
time, kernel time included; "wall" is elapsed time, other processes and the disk included. Ratios
and rates per core are judged by CPU, as the machine is shared; durations by wall clock. A missed
budget is reported but is not a failure: the exit status is 0. docs/benchmarks/log.md has results.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import signal
import sys
import tempfile
from collections.abc import Callable

import bench_codec
import measuring
from log_appends import measure_appends
from log_flushes import measure_flushes
from log_lookups import measure_finds, measure_scans
from log_opening import measure_opening
from log_world import Place, filesystem, tell
from measuring import Row, as_dicts, table

from kdist.runtime.unix import raise_limit


def measure_codec(_place: Place) -> list[Row]:
    """The rows of bench_codec.py."""
    tell("codec")
    return bench_codec.measure()


TASKS: dict[str, Callable[[Place], list[Row]]] = {
    "append": measure_appends,
    "codec": measure_codec,
    "scan": measure_scans,
    "open": measure_opening,
    "find": measure_finds,
    "flush": measure_flushes,
}


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="tiny sizes: does it run at all?")
    parser.add_argument("--json", action="store_true", help="one JSON object instead of a table")
    parser.add_argument(
        "--directory", metavar="DIR", default=".", help="work below DIR (default: here)"
    )
    parser.add_argument("--only", metavar="NAME", choices=TASKS, help=f"one of {', '.join(TASKS)}")
    return parser.parse_args()


def measure(place: Place, only: str | None) -> list[Row]:
    """All rows, or those of one task."""
    return [row for name in TASKS if only in (None, name) for row in TASKS[name](place)]


def describe(directory: str) -> str:
    """The machine, in a line."""
    return (
        f"{filesystem(directory)}, {os.cpu_count()} cores, Linux {platform.release()},"
        f" Python {platform.python_version()}"
    )


def report(rows: list[Row], machine: str) -> str:
    """The rows for people, and how many budgets were missed."""
    judged = [row for row in rows if row.is_met is not None]
    missed = [f"  {row.task}, {row.contender}" for row in judged if not row.is_met]
    verdict = f"{len(judged) - len(missed)} of {len(judged)} budgets met"
    return "\n".join(
        [machine, "", table(rows), "", verdict + ("; missed:" if missed else ""), *missed]
    )


def main() -> int:
    """Measure, print, clean up; 130 after Ctrl-C."""
    arguments = parse_arguments()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # clean up as after Ctrl-C
    if arguments.quick:
        measuring.ROUND_NS //= 1000
    raise_limit()
    machine = describe(arguments.directory)
    tell(machine)
    try:
        with tempfile.TemporaryDirectory(prefix=".bench-log-", dir=arguments.directory) as path:
            rows = measure(Place(os.path.abspath(path), arguments.quick), arguments.only)
    except KeyboardInterrupt:
        tell("interrupted; nothing is left behind")
        return 130
    if arguments.json:
        print(json.dumps({"machine": machine, "rows": as_dicts(rows)}, indent=2))
    else:
        print(report(rows, machine))
    return 0


if __name__ == "__main__":
    sys.exit(main())
