"""Servers to be measured and the C program that loads them, each on a core of its own.

The C programs under `peer/` are compiled here. Servers print "ready" once they listen. A
server's CPU time is read from the kernel's schedstat, in nanoseconds.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

SOURCES = Path(__file__).parent / "peer"


class Load(NamedTuple):
    """What to send: `rate` is requests a second, or 0 for as many as the server answers."""

    connections: int
    depth: int
    frame: bytes
    rate: float = 0


class Result(NamedTuple):
    """What one run of a load measured, and the CPU time it cost the server."""

    requests: int
    bytes: int
    seconds: float
    p50_us: int
    p99_us: int
    server_cpu_seconds: float


class Server(NamedTuple):
    """A process that listens on a port."""

    name: str
    port: int
    process: subprocess.Popen[str]

    def cpu_ns(self) -> int:
        """CPU time of its one thread."""
        return int(Path(f"/proc/{self.process.pid}/schedstat").read_text().split()[0])


def build(directory: Path) -> None:
    """Compile the yardstick and the load into `directory`."""
    for name in ("server", "load"):
        source, program = SOURCES / f"{name}.c", directory / name
        subprocess.run(["gcc", "-O2", "-msse4.2", "-o", program, source], check=True)


def free_port() -> int:
    """A port that is free now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def cores() -> tuple[int, int]:
    """The server's core and the load's; the same where there is only one."""
    found = sorted(os.sched_getaffinity(0))
    return found[0], found[-1]


@contextlib.contextmanager
def running(name: str, command: Sequence[str], port: int) -> Iterator[Server]:
    """Start a server on its core, wait until it is ready, and kill it at the end."""
    pinned = ["taskset", "-c", str(cores()[0]), *command]
    with subprocess.Popen(pinned, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            if process.stdout.readline() != "ready\n":
                raise RuntimeError(f"{name} did not start")
            yield Server(name, port, process)
        finally:
            process.kill()


def run_load(directory: Path, server: Server, load: Load, seconds: float) -> Result:
    """Run a load against a server; its result."""
    frame = directory / "frame"
    frame.write_bytes(load.frame)
    numbers = (server.port, load.connections, load.depth, seconds, load.rate)
    before = server.cpu_ns()
    done = subprocess.run(
        ["taskset", "-c", str(cores()[1]), directory / "load", *map(str, numbers), frame],
        stdout=subprocess.PIPE,
        check=True,
    )
    spent = (server.cpu_ns() - before) / 1e9
    return Result(**json.loads(done.stdout), server_cpu_seconds=spent)
