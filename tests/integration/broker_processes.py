"""Brokers as processes: `kdist broker` on directories and ports of their own, for tests.

Only processes that were started here are ever signalled. `settled` waits for a condition.

Sessions do not lapse, however busy the machine is; a test of what happens when they do takes
BRIEF_SESSIONS. A `zookeeper_host` with PATIENT_TICK_MS allows for both.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from tests.integration.zookeeper_server import PATIENT_SESSION_TIMEOUT_MS, free_port

READY_S = 20.0
STOPPED_S = 20.0
SETTLED_S = 30.0

SETTINGS = {
    "num.partitions": "4",
    "offsets.topic.num.partitions": "5",
    "group.initial.rebalance.delay.ms": "0",
    "group.min.session.timeout.ms": "100",
    "zookeeper.session.timeout.ms": str(PATIENT_SESSION_TIMEOUT_MS),
    "zookeeper.connection.timeout.ms": "10000",
    "log.dir.reserved.bytes": "0",
}
BRIEF_SESSIONS = {"zookeeper_session_timeout_ms": "1500"}

T = TypeVar("T")


def settled(look: Callable[[], T | None], within_s: float = SETTLED_S) -> T:
    """Poll `look` until its result is truthy; returns it."""
    end_s = time.monotonic() + within_s
    while True:
        found = look()
        if found:
            return found
        assert time.monotonic() < end_s, "it did not happen in time"
        time.sleep(0.05)


class BrokerProcess:
    """One broker: its settings file, its directory, and its process while it runs."""

    def __init__(self, broker_id: int, directory: Path, connect: str, **settings: str) -> None:
        self.id = broker_id
        self.port = free_port()
        self.directory = directory / f"d{broker_id}"
        self.directory.mkdir(exist_ok=True)
        self.file = directory / f"broker-{broker_id}.properties"
        self.log = directory / f"broker-{broker_id}.log"
        self.settings = {
            "broker.id": str(broker_id),
            "log.dir": str(self.directory),
            "listeners": f"PLAINTEXT://127.0.0.1:{self.port}",
            "broker.host": f"machine-{broker_id}",
            "zookeeper.connect": connect,
            **SETTINGS,
            **{name.replace("_", "."): value for name, value in settings.items()},
        }
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def process(self) -> subprocess.Popen[bytes]:
        assert self._process is not None, "start it first"
        return self._process

    @property
    def address(self) -> str:
        """Of its first listener."""
        return self.settings["listeners"].split(",")[0].rpartition("/")[2]

    @property
    def text(self) -> str:
        """What the last run has logged."""
        return self.log.read_text()

    def begin(self) -> subprocess.Popen[bytes]:
        """Start the process and wait for nothing."""
        lines = (f"{name}={value}\n" for name, value in self.settings.items())
        self.file.write_text("".join(lines))
        with self.log.open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "kdist.cli", "broker", "--config", str(self.file)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        return self._process

    def start(self) -> None:
        """Start it and wait until it is ready."""
        process = self.begin()
        settled(lambda: process.poll() is not None or ": ready: " in self.text)
        assert process.poll() is None, self.text

    def run(self) -> tuple[int, str]:
        """Start it and wait for its end: the exit status, and what it said."""
        return self.begin().wait(READY_S), self.text

    def stop(self, how: signal.Signals = signal.SIGTERM) -> int:
        """Signal it and wait for its end; the exit status."""
        self.process.send_signal(how)
        return self.process.wait(STOPPED_S)

    def end(self) -> None:
        """Kill it if it runs."""
        if self._process is not None and self._process.poll() is None:
            self._process.kill()
            self._process.wait(STOPPED_S)


@contextmanager
def broker_processes(
    count: int, directory: Path, connect: str, **settings: str
) -> Iterator[list[BrokerProcess]]:
    """Running brokers 1 to `count` of one cluster."""
    brokers = [BrokerProcess(n, directory, connect, **settings) for n in range(1, count + 1)]
    try:
        for broker in brokers:
            broker.start()
        yield brokers
    finally:
        for broker in brokers:
            broker.end()
