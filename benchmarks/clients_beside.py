"""kdist's clients beside those of another checkout: `bench_clients.py --beside DIR`.

Each sample is a process of its own that imports kdist from one of the trees. The other tree is
measured twice in each round: how its two medians differ is what the machine's noise makes of
nothing. `--instructions` has callgrind count instead, which noise does not reach.

`python clients_beside.py TASK [counts]`, a task in JSON, is such a process; it prints its figures.
"""

from __future__ import annotations

import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from client_samples import Meter, Options, Taken, fill, read, sent, topic, values
from consumer_contenders import BATCHES, ONE_BY_ONE
from latency_contenders import LATENCIES, quantile
from measuring import Row
from producer_contenders import SENDING, Load

from kdist.records import codec

HERE = Path(__file__).resolve()
THIS, OTHER, AGAIN = "kdist", "other kdist", "other kdist again"
INSTRUCTIONS_RATIO_MAX = 1.03
READ_S = 1800  # under valgrind all takes some fifty times as long
_TOTAL = re.compile(r"^totals: (\d+)", re.MULTILINE)
_SENDERS = {name: each for name, each in SENDING.items() if name.startswith(THIS)}
_READERS = {name: each for name, each in {**BATCHES, **ONE_BY_ONE}.items() if name.startswith(THIS)}
_LATENCY = "kdist latency"
INTERVAL_S = 0.001
QUANTILES = {"median": 0.5, "p99": 0.99}
SIZES = {100: (300_000, 500_000), 1024: (150_000, 300_000)}  # how many are sent, and read
COUNTED = {100: (20_000, 20_000)}


class Task(NamedTuple):
    """What one process does with one contender."""

    address: str
    contender: str
    count: int
    size: int = 100
    topic: str = ""  # to read from


# --- the process that measures ------------------------------------------------------------------


class Counting(Meter):
    """Has callgrind, under which this process runs, count between `begin` and `taken` only."""

    def begin(self) -> None:
        super().begin()
        self._control("--instr=on")

    def taken(self, count: int) -> Taken:
        self._control("--instr=off")
        return super().taken(count)

    def _control(self, action: str) -> None:
        words = ["callgrind_control", action, str(os.getpid())]
        subprocess.run(words, check=True, capture_output=True)


def measure(task: Task, meter: Meter) -> dict[str, float]:
    """Nanoseconds by figure, for one message."""
    if task.contender == _LATENCY:
        with topic(task.address, 1) as name:
            lasted_s = LATENCIES[THIS](task.address, name, task.count, INTERVAL_S)
        return {each: quantile(lasted_s, part) * 1e9 for each, part in QUANTILES.items()}
    if task.contender in _SENDERS:
        load = Load(values(task.size, task.count), "1", "none")
        taken = sent(task.address, _SENDERS[task.contender][0], load, meter)
    else:
        taken = read(task.address, _READERS[task.contender], task.topic, task.count, meter)
    return {figure: seconds * 1e9 for figure, seconds in taken._asdict().items()}


# --- the one that compares ----------------------------------------------------------------------


def tasks(options: Options, sizes: Mapping[int, tuple[int, int]]) -> Iterator[tuple[str, Task]]:
    """All tasks with their names; `sizes` gives how many records of a size are sent and read."""
    for size, (send_count, read_count) in sizes.items():
        for name, (_, part) in _SENDERS.items():
            count = int(send_count * options.share) // part
            yield f"{name}, {size} B", Task(options.address, name, count, size)
        with topic(options.address, 1) as filled:
            count = int(read_count * options.share)
            fill(options.address, filled, "none", values(size, count))
            for name in _READERS:
                task = Task(options.address, name, count, size, topic=filled)
                yield f"{name}, {size} B", task
    yield "latency at 1,000/s", Task(options.address, _LATENCY, int(5_000 * options.share))


def rows(options: Options, wanted: str, other: Path, *, counts: bool) -> Iterator[Row]:
    """Every task's figures: of the other tree, of it again, and of this one."""
    trees = {OTHER: other, AGAIN: other, THIS: HERE.parent.parent}
    if counts:
        trees.pop(AGAIN)  # it would differ by nothing
    for name, task in tasks(options, COUNTED if counts else SIZES):
        if wanted not in name or options.only not in name:
            continue
        if counts and task.contender == _LATENCY:
            continue
        samples: dict[str, list[dict[str, float]]] = {each: [] for each in trees}
        for number in range(options.rounds):
            order = list(trees.items())
            for tree, path in order if number % 2 else reversed(order):
                samples[tree].append((_counted if counts else _run)(task, path))
                print(".", end="", file=sys.stderr, flush=True)
        yield from _compared(name, samples)


def _compared(task: str, samples: Mapping[str, list[dict[str, float]]]) -> Iterator[Row]:
    """A row for each figure and tree; the ratios are to the other tree."""
    for figure in samples[OTHER][0]:
        medians = {
            tree: statistics.median(each[figure] for each in found)
            for tree, found in samples.items()
        }
        for tree, taken in medians.items():
            ratio = taken / medians[OTHER]
            is_judged = figure == "instructions" and tree == THIS
            yield Row(
                f"{task}: {figure}",
                tree,
                taken,
                "instructions" if figure == "instructions" else "ns",
                {} if tree == OTHER else {OTHER: ratio},
                f"at most {INSTRUCTIONS_RATIO_MAX:.2f}" if is_judged else "",
                ratio <= INSTRUCTIONS_RATIO_MAX if is_judged else None,
            )


def _counted(task: Task, tree: Path) -> dict[str, float]:
    """Instructions for a record; the process turns the counting on and off itself."""
    with tempfile.TemporaryDirectory() as counts:
        wrapper = (
            *("valgrind", "--quiet", "--tool=callgrind", "--instr-atstart=no"),
            f"--callgrind-out-file={counts}/count",
        )
        _run(task, tree, *wrapper)
        texts = [each.read_text() for each in Path(counts).glob("count*")]
    total = max(int(found[1]) for text in texts if (found := _TOTAL.search(text)))
    return {"instructions": total / task.count}


def _run(task: Task, tree: Path, *wrapper: str) -> dict[str, float]:
    words = [
        *wrapper,
        sys.executable,
        str(HERE),
        json.dumps(task),
        *(["counts"] if wrapper else []),
    ]
    environment = {**os.environ, "PYTHONPATH": str(tree.resolve())}
    done = subprocess.run(
        words, env=environment, stdout=subprocess.PIPE, timeout=READ_S, check=True, text=True
    )
    told: dict[str, float] = json.loads(done.stdout)
    return told


if __name__ == "__main__":
    if codec.IMPLEMENTATION != "compiled":
        sys.exit(f"{codec.__file__}: this tree's codec is not built; `make setup` there builds it")
    given = Task(*json.loads(sys.argv[1]))
    print(json.dumps(measure(given, Counting() if sys.argv[2:] else Meter())))
