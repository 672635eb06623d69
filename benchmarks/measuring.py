"""How every benchmark here times: warmed up, the garbage collector off, the median of five.

Contenders are timed in turn within each of the five rounds, so that a slow moment of the machine
affects all of them: only ratios within one run are meaningful.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

ROUNDS = 5
_PIECE_BYTES = 1 << 20
ROUND_NS = 100_000_000  # what one contender's round should take


class Row(NamedTuple):
    """One contender's result, the ratios of its rate to those of yardsticks, and its budget."""

    task: str
    contender: str
    per_second: float
    unit: str
    ratios: Mapping[str, float] = {}
    budget: str = ""
    is_met: bool | None = None

    @property
    def verdict(self) -> str:
        """Whether the budget is met, in a word; empty without a budget."""
        return {None: "", True: "met", False: "MISSED"}[self.is_met]


class Contender(NamedTuple):
    """`work` does `units` units; `clean`, which is not timed, removes what it left behind."""

    work: Callable[[], object]
    units: int
    clean: Callable[[], object] = lambda: None


def rates(
    contenders: Mapping[str, Contender], clock_ns: Callable[[], int] = time.perf_counter_ns
) -> dict[str, float]:
    """Units per second of each contender: the median of its five rounds.

    For work that only computes, pass `time.thread_time_ns` as the clock: it leaves out the time
    that other processes have the core.
    """
    repeats = {name: _repeats(contender, clock_ns) for name, contender in contenders.items()}
    seconds: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(ROUNDS):
        for name, contender in contenders.items():
            seconds[name].append(_time_ns(contender, repeats[name], clock_ns) / repeats[name] / 1e9)
    return {
        name: contender.units / statistics.median(seconds[name])
        for name, contender in contenders.items()
    }


def _repeats(contender: Contender, clock_ns: Callable[[], int]) -> int:
    """How often the work fits in a round; finding that out also warms up."""
    repeats = 1
    while True:
        taken_ns = _time_ns(contender, repeats, clock_ns)
        if taken_ns * 2 > ROUND_NS:
            return max(1, round(repeats * ROUND_NS / taken_ns))
        repeats *= 2


def _time_ns(contender: Contender, repeats: int, clock_ns: Callable[[], int]) -> int:
    work = contender.work
    gc.collect()
    gc.disable()
    try:
        start = clock_ns()
        for _ in range(repeats):
            work()
        return clock_ns() - start
    finally:
        gc.enable()
        contender.clean()


def make_room(size: int) -> None:
    """Write out all dirty data, and make sure that the page cache can grow by `size` bytes.

    Otherwise a sample that writes pays for those before it. On a virtual machine, memory not used
    lately may be with the host; getting it back made the first contender's appends ten times as
    slow. So a temporary file claims it first. (Mapping as much memory did not always help.)
    """
    with tempfile.TemporaryFile() as scratch:
        for _ in range(0, size, _PIECE_BYTES):
            scratch.write(bytes(_PIECE_BYTES))
    os.sync()


def cpu_ns(pid: int) -> int:
    """CPU time of all the process's current threads."""
    total_ns = 0
    for each in Path(f"/proc/{pid}/task").glob("*/schedstat"):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it just ended
            total_ns += int(each.read_text().split()[0])
    return total_ns


def resident_bytes(pid: int) -> int:
    """The resident memory of a process."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.partition("VmRSS:")[2].split()[0]) << 10


def show(rows: list[Row], *, as_json: bool) -> None:
    """Print the rows, for programs or people."""
    print(json.dumps(as_dicts(rows), indent=2) if as_json else table(rows))


def as_dicts(rows: list[Row]) -> list[dict[str, object]]:
    """The rows for JSON."""
    return [row._asdict() | {"verdict": row.verdict} for row in rows]


def table(rows: list[Row]) -> str:
    """The rows as lines for people."""
    lines = [("task", "contender", "rate", "ratios", "budget", "")]
    for row in rows:
        ratios = ", ".join(f"{ratio:.2f} x {name}" for name, ratio in row.ratios.items())
        rate = quantity(row.per_second, row.unit)
        lines.append((row.task, row.contender, rate, ratios, row.budget, row.verdict))
    widths = [max(len(line[i]) for line in lines) for i in range(6)]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    )


def quantity(number: float, unit: str) -> str:
    """A number for people: `quantity(20e6, "records/s")` is " 20.00 M records/s"."""
    for size, prefix in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if number >= size:
            return f"{number / size:6.2f} {prefix} {unit}"
    return f"{number:6.2f} {unit}"
