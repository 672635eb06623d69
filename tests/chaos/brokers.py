"""Broker processes, each on a host and a disk of its own: kdist's, or Apache Kafka's as a peer."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
import uuid
from pathlib import Path

from tests.chaos.disk import Disk
from tests.chaos.network import Link
from tests.chaos.result import Plan
from tests.integration.peer.kafka_peer import QUICK_JVM, java_command

KDIST, KAFKA = "kdist", "kafka"
PORT = 9092
SESSION_TIMEOUT_MS = 6_000
READY_S = 90.0
RESTART_S = 1.0
STOPPED_S = 60.0
END_SESSION_S = 30.0
METRICS_S = 10.0

SETTINGS = {
    "listeners": "PLAINTEXT://{address}:9092",
    "num.partitions": "6",
    "default.replication.factor": "3",
    "min.insync.replicas": "2",
    "offsets.topic.num.partitions": "3",
    "offsets.topic.replication.factor": "3",
    "group.initial.rebalance.delay.ms": "0",
    "auto.create.topics.enable": "false",
    "zookeeper.session.timeout.ms": str(SESSION_TIMEOUT_MS),
    "zookeeper.connection.timeout.ms": "60000",
    "replica.lag.time.max.ms": "5000",
    "leader.imbalance.check.interval.seconds": "5",
    "log.segment.bytes": "1000000",
}
_OF_KDIST = {
    "log.dir": "{log}",
    "broker.host": "host{id}",
    "log.dir.reserved.bytes": "0",
    "http.address": "{address}:8080",
}
_OF_KAFKA = {"log.dirs": "{log}", "num.io.threads": "2", "num.network.threads": "2"}

# Where the broker reads which boot of its host it is in, it finds what the harness says.
_BOOTED = 'mount --bind "$1" /proc/sys/kernel/random/boot_id && shift && exec "$@"'


class Broker:
    """A broker with its host, disk and directory; what it says is in `log`."""

    def __init__(self, number: int, plan: Plan, connect: str) -> None:
        directory = plan.directory
        self.id = number
        self.kind = plan.kind
        self.link = Link(number)
        self.disk = Disk(directory, f"disk{number}")
        self.log = directory / f"broker{number}.log"
        self.unexpected: list[str] = []
        self._boot = directory / f"boot{number}"
        self._boot_host()
        self._file = directory / f"broker{number}.properties"
        settings = SETTINGS | (_OF_KDIST if self.kind == KDIST else _OF_KAFKA)
        settings |= {"broker.id": str(number), "zookeeper.connect": connect}
        if plan.is_flushed:
            settings["log.flush.before.expose"] = "true"
        names = {"address": self.link.address, "log": self.disk.log_directory, "id": number}
        self._file.write_text("".join(f"{k}={v.format(**names)}\n" for k, v in settings.items()))
        self._process: subprocess.Popen[bytes] | None = None
        self._said_before = 0

    @property
    def address(self) -> str:
        return f"{self.link.address}:{PORT}"

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def _boot_host(self) -> None:
        self._boot.write_text(f"{uuid.uuid4()}\n")

    def _entered(self, *command: str) -> list[str]:
        return self.link.entered("sh", "-c", _BOOTED, "sh", str(self._boot), *command)

    def begin(self) -> None:
        """Start it and wait for nothing."""
        assert not self.is_running
        if self.kind == KDIST:
            command = [sys.executable, "-m", "kdist.cli", "broker", "--config", str(self._file)]
        else:
            command = java_command("kafka.Kafka", str(self._file), jvm=QUICK_JVM)
        with self.log.open("ab") as log:
            self._said_before = log.tell()
            self._process = subprocess.Popen(
                self._entered(*command), stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )

    def wait_until_ready(self) -> None:
        """Return once it says that it is; a broker that ends instead is unexpected."""
        end_s = time.monotonic() + READY_S
        while not self._is_ready():
            if not self.is_running and self.kind == KAFKA:
                time.sleep(RESTART_S)  # its last session has not expired: its supervisor goes on
                self.begin()
            elif not self.is_running:
                self.unexpected.append(f"ended while it started: {self.said()[-300:]}")
                return
            if time.monotonic() > end_s:
                self.unexpected.append(f"not ready in {READY_S:.0f} s: {self.said()[-300:]}")
                return
            time.sleep(0.05)

    def _is_ready(self) -> bool:
        if self.kind == KDIST:
            return ": ready: " in self.said()
        with socket.socket() as probe:
            return probe.connect_ex((self.link.address, PORT)) == 0

    def said(self) -> str:
        """What it has said since it was last started."""
        with self.log.open("rb") as log:
            log.seek(self._said_before)
            return log.read().decode(errors="replace")

    def start(self) -> None:
        """Start it and wait until it is ready."""
        self.begin()
        self.wait_until_ready()

    def stop(self) -> None:
        """SIGTERM, and wait for its end, which shall be an orderly one."""
        status = self._end(signal.SIGTERM)
        if status != (0 if self.kind == KDIST else 143):  # a JVM's status after SIGTERM
            self.unexpected.append(f"stopped with status {status}")

    def kill(self) -> None:
        """SIGKILL, and wait until it is gone."""
        self._end(signal.SIGKILL)

    def _end(self, how: signal.Signals) -> int:
        assert self._process is not None
        if self._process.poll() is not None:
            self.unexpected.append(f"had ended with status {self._process.returncode}")
        else:
            self._process.send_signal(how)
        status = self._process.wait(STOPPED_S)
        self._process = None
        return status

    def wait_for_end(self) -> int | None:
        """Wait until it ends by itself; its status, None if it does not."""
        assert self._process is not None
        try:
            status = self._process.wait(STOPPED_S)
        except subprocess.TimeoutExpired:
            return None
        self._process = None
        return status

    def signal(self, what: signal.Signals) -> None:
        """Stop or continue it."""
        assert self._process is not None
        self._process.send_signal(what)

    def save_metrics(self, path: Path) -> None:
        """What it counts, for whoever looks for the reason of a trouble."""
        if self.kind == KDIST:
            url = f"http://{self.link.address}:8080/metrics"
            try:
                with urllib.request.urlopen(url, timeout=METRICS_S) as answer:
                    path.write_bytes(answer.read())
            except OSError as error:
                path.write_text(f"{error}\n")

    def end_session(self) -> None:
        """What the unit's ExecStopPost does once the process is gone; Kafka has nothing like it."""
        if self.kind == KDIST:
            command = (sys.executable, "-m", "kdist.cli", "end-session", "--config")
            with self.log.open("ab") as log:  # a dead disk or ZooKeeper away may have it fail
                subprocess.run(
                    self._entered(*command, str(self._file)),
                    timeout=END_SESSION_S,
                    check=False,
                    stdout=log,
                    stderr=log,
                )

    def lose_power(self) -> None:
        """Its host goes down: silence, and what was not synced is lost."""
        self.link.unplug()
        self.disk.die()
        self.kill()

    def boot(self) -> None:
        """The host comes up again, in another boot, with its disk."""
        self.disk.come_back()
        self._boot_host()
        self.link.plug()


def environment() -> None:
    """What all processes that the harness starts have."""
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
