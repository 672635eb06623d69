"""The package network against a C program that makes the same system calls: `make bench-network`.

Both servers run at once, on one core, and are loaded in turn from the other. Ratios compare
requests per second of CPU time (medians of the rounds), since the machine is shared. `+ us` is the
CPU time per request above the C program's. A missed budget is reported but is not a failure.
"""

from __future__ import annotations

import argparse
import contextlib
import statistics
import struct
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import measuring
from measuring import Row, show
from network_peers import Load, Result, Server, build, free_port, run_load, running

FETCH_BYTES = 1 << 20
FILE_BYTES = 256 << 20


class Task(NamedTuple):
    """A load, the unit of its results, and the lowest ratio that meets the budget."""

    name: str
    load: Load
    unit: str
    bytes_each: int  # 1 to count requests
    ratio_min: float


def frame(key: int, size: int) -> bytes:
    """A request of `size` bytes after its size field."""
    return struct.pack(">ihhi", size, key, 0, 7) + b"r" * (size - 8)


def _tasks() -> Iterator[Task]:
    for connections in (1, 10, 50):
        name = f"echo 100 B, {connections} connections"
        yield Task(name, Load(connections, 1, frame(18, 100)), "requests/CPU s", 1, 0.4)
    yield Task("echo 100 B, 10 x 100", Load(10, 100, frame(18, 100)), "requests/CPU s", 1, 0.4)
    for connections in (1, 10, 50):
        name = f"append 100 B, {connections} connections"
        yield Task(name, Load(connections, 1, frame(0, 100)), "requests/CPU s", 1, 0.4)
    for kib in (64, 1024):
        size = kib << 10
        name = f"append {kib} KiB, 2 connections"
        yield Task(name, Load(2, 4, frame(0, size)), "B/CPU s", size, 0.75)
    for connections in (1, 2, 4):
        name = f"sendfile 1 MiB, {connections} consumers"
        yield Task(name, Load(connections, 2, frame(1, 100)), "B/CPU s", FETCH_BYTES, 0.85)


TASKS = {task.name: task for task in _tasks()}


@contextlib.contextmanager
def servers(directory: Path) -> Iterator[list[Server]]:
    """The C program and kdist's package network, each with a file of its own in the page cache."""
    with contextlib.ExitStack() as stack:
        started = []
        program = str(Path(__file__).with_name("network_server.py"))
        for name, command in (
            ("C", [str(directory / "server")]),
            ("kdist", [sys.executable, program]),
        ):
            path, port = directory / f"{name}.log", free_port()
            path.write_bytes(bytes(FILE_BYTES))
            arguments = [*command, str(port), str(path), str(FETCH_BYTES)]
            started.append(stack.enter_context(running(name, arguments, port)))
        yield started


def measure(directory: Path, task: Task, seconds: float, both: list[Server]) -> list[Row]:
    """The rows of one task."""
    found: dict[str, list[Result]] = {server.name: [] for server in both}
    for _ in range(measuring.ROUNDS):
        for server in both:
            found[server.name].append(run_load(directory, server, task.load, seconds))
    cost = {
        name: statistics.median(each.server_cpu_seconds / max(1, each.requests) for each in results)
        for name, results in found.items()
    }
    ratio = cost["C"] / cost["kdist"]
    above_us = (cost["kdist"] - cost["C"]) * 1e6
    rates = {name: task.bytes_each / each for name, each in cost.items()}
    return [
        Row(task.name, "C", rates["C"], task.unit),
        Row(
            task.name,
            f"kdist, + {above_us:.1f} us",
            rates["kdist"],
            task.unit,
            {"C": ratio},
            f"{task.ratio_min:.2f} x C",
            ratio >= task.ratio_min,
        ),
    ]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="tiny rounds: does it run at all?")
    parser.add_argument("--json", action="store_true", help="JSON instead of a table")
    parser.add_argument("--only", metavar="NAME", default="", help="tasks that begin with NAME")
    parser.add_argument(
        "--directory", metavar="DIR", default=".", help="work below DIR (default: here)"
    )
    arguments = parser.parse_args()
    seconds = 0.1 if arguments.quick else 0.7
    with tempfile.TemporaryDirectory(prefix=".bench-network-", dir=arguments.directory) as path:
        directory = Path(path).absolute()
        build(directory)
        with servers(directory) as both:
            rows = [
                row
                for name, task in TASKS.items()
                if name.startswith(arguments.only)
                for row in measure(directory, task, seconds, both)
            ]
    show(rows, as_json=arguments.json)


if __name__ == "__main__":
    main()
