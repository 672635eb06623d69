"""What the broker's benchmark runs on: a broker with a real ZooKeeper, and the C program.

The broker is `kdist broker` as installed, with default settings. Of this run's loaded processes
only the C program shares its core, and only one of the two is loaded at a time. The broker's CPU
time is that of all its threads.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import broker_frames as frames
import measuring
from network_peers import Server, cores, free_port, running

from kdist.cli.shared.client_settings import Clients
from kdist.cli.shared.connecting import ask_cluster
from kdist.cli.standalone.zookeeper_server import ServerSettings, start_server
from kdist.client.admin.topics import create_topic, delete_topic
from kdist.runtime.disk import Disk

OTHER = "other kdist"  # the broker of another checkout, which is measured beside this one's
READY_S = 30.0
_POLL_S = 0.02
_TOLD_BYTES = 2000  # of the broker's log, printed when a run fails
_LOADED_IN_FLIGHT_BYTES = 4 << 20

_numbers = itertools.count(1)


class Broker(Server):
    """A `kdist broker` that is ready."""

    __slots__ = ()

    def cpu_ns(self) -> int:
        """CPU time of all its threads."""
        return measuring.cpu_ns(self.process.pid)

    def connect(self) -> socket.socket:
        """A new connection to the broker, which the caller closes."""
        return socket.create_connection(("127.0.0.1", self.port), timeout=READY_S)

    def ask(self, frame: bytes, fetched_bytes: int = 0) -> int:
        """Send a request and check the answer; the answer's size in bytes."""
        with self.connect() as connection:
            answer = frames.exchange(connection, frame)
        frames.check_answer(frame, answer, fetched_bytes)
        return len(answer)

    def fill(self, topic: str, batch: bytes, count: int) -> None:
        """Produce a batch to `topic` `count` times."""
        frame = frames.produce_frame(topic, batch)
        in_flight_max = max(1, _LOADED_IN_FLIGHT_BYTES // len(frame))
        with self.connect() as connection:
            for start in range(0, count, in_flight_max):
                sent = min(in_flight_max, count - start)
                connection.sendall(frame * sent)
                for _ in range(sent):
                    frames.check_answer(frame, frames.receive(connection))


@contextlib.contextmanager
def zookeeper(directory: Path) -> Iterator[str]:
    """A real ZooKeeper; its address."""
    directory.mkdir()
    settings = ServerSettings(str(directory), free_port())
    server = asyncio.run(start_server(settings, Disk(), os.environ))
    try:
        asyncio.run(server.wait_until_ready())
        yield settings.address
    finally:
        asyncio.run(server.stop())


@contextlib.contextmanager
def kdist_broker(
    directory: Path, connect: str, *wrapper: str, tree: Path | None = None
) -> Iterator[Broker]:
    """A broker on the server's core; `wrapper` is a command that runs it, such as a profiler.

    With `tree`, another checkout of kdist after its `make setup`, the broker is that one's.
    """
    port, logs = free_port(), directory / "logs"
    logs.mkdir(parents=True)
    config, diagnostics = directory / "broker.properties", directory / "broker.log"
    config.write_text(
        f"broker.id=1\nlog.dir={logs}\nlisteners=PLAINTEXT://127.0.0.1:{port}\n"
        f"zookeeper.connect={connect}\n"
    )
    python = sys.executable if tree is None else str(tree.absolute() / ".venv/bin/python")
    program = [python, "-m", "kdist.cli", "broker", "--config", str(config)]
    command = ["taskset", "-c", str(cores()[0]), *wrapper, *program]
    with (
        diagnostics.open("wb") as log,
        subprocess.Popen(command, stdout=log, stderr=log, text=True, cwd=tree) as process,
    ):
        try:
            wait_until_ready(process, diagnostics)
            yield Broker("kdist" if tree is None else OTHER, port, process)
        except RuntimeError:
            print(diagnostics.read_text()[-_TOLD_BYTES:], file=sys.stderr)
            raise
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(READY_S)


def wait_until_ready(process: subprocess.Popen[str], diagnostics: Path) -> None:
    end_s = time.monotonic() + READY_S
    while ": ready: " not in diagnostics.read_text():
        if process.poll() is not None or time.monotonic() > end_s:
            raise RuntimeError(f"the broker did not start:\n{diagnostics.read_text()}")
        time.sleep(_POLL_S)


@contextlib.contextmanager
def c_program(directory: Path, file_bytes: int, fetch_bytes: int) -> Iterator[Server]:
    """The yardstick, on a file of its own that holds `file_bytes` in the page cache."""
    path, port = directory / "C.log", free_port()
    path.write_bytes(bytes(file_bytes))
    command = [str(directory / "server"), str(port), str(path), str(fetch_bytes)]
    try:
        with running("C", command, port) as server:
            yield server
    finally:
        path.unlink()


@contextlib.contextmanager
def topic(brokers: Sequence[Broker]) -> Iterator[str]:
    """A new topic with one partition on each of these brokers, deleted at the end."""
    addresses, name = [f"127.0.0.1:{each.port}" for each in brokers], f"benchmark-{next(_numbers)}"
    for address in addresses:
        ask_cluster(Clients.at(address), lambda cluster: create_topic(cluster, name, partitions=1))
    try:
        yield name
    finally:
        for address in addresses:
            ask_cluster(Clients.at(address), lambda cluster: delete_topic(cluster, name))
