"""An ensemble of three ZooKeeper servers, each of which can be killed, stopped and started."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
from pathlib import Path

from kdist.cli.standalone.zookeeper_server import MAIN_CLASS, find_jars
from kdist.runtime.disk import Disk
from kdist.runtime.programs import find_java
from tests.chaos.network import ZOOKEEPER

SERVERS = 3
TICK_MS = 500  # sessions may last 1 to 10 s
READY_S = 60.0
_PORT, _QUORUM_PORT, _ELECTION_PORT = 2180, 2280, 2380  # each server adds its number
_JVM = ("-Xms32m", "-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:-UsePerfData")


class Server:
    """One server and its directory."""

    def __init__(self, number: int, directory: Path) -> None:
        self.number = number
        self.port = _PORT + number
        self._directory = directory / f"zookeeper{number}"
        (self._directory / "data").mkdir(parents=True)
        (self._directory / "data" / "myid").write_text(f"{number}\n")
        rows = {
            "tickTime": TICK_MS,
            "initLimit": 20,
            "syncLimit": 6,
            "dataDir": self._directory / "data",
            "clientPort": self.port,
            "clientPortAddress": ZOOKEEPER,
            "maxClientCnxns": 0,
            "admin.enableServer": "false",
            "4lw.commands.whitelist": "srvr",
        }
        for n in range(1, SERVERS + 1):
            rows[f"server.{n}"] = f"{ZOOKEEPER}:{_QUORUM_PORT + n}:{_ELECTION_PORT + n}"
        self._configuration = self._directory / "zoo.cfg"
        self._configuration.write_text("".join(f"{k}={v}\n" for k, v in rows.items()))
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it and wait for nothing."""
        files = Disk()
        with (self._directory / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [
                    *(find_java(files, os.environ, "ZooKeeper"), *_JVM),
                    *("-Dzookeeper.forceSync=no", "-cp", f"{find_jars(files)}/*"),
                    *(MAIN_CLASS, str(self._configuration)),
                ],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )

    def kill(self) -> None:
        """End it if it runs."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def signal(self, what: signal.Signals) -> None:
        """Stop or continue it."""
        assert self._process is not None
        self._process.send_signal(what)

    def mode(self) -> str:
        """`leader`, `follower`, or nothing if it does not serve."""
        try:
            with socket.create_connection((ZOOKEEPER, self.port), timeout=1) as asking:
                asking.sendall(b"srvr")
                answer = b"".join(iter(lambda: asking.recv(4096), b"")).decode()
        except OSError:
            return ""
        return next((line[6:] for line in answer.splitlines() if line.startswith("Mode: ")), "")


class Ensemble:
    """The servers."""

    def __init__(self, directory: Path) -> None:
        self.servers = [Server(n, directory) for n in range(1, SERVERS + 1)]
        self.connect = ",".join(f"{ZOOKEEPER}:{each.port}" for each in self.servers)

    def start(self) -> None:
        """Start all that do not run, and wait until they serve."""
        for each in self.servers:
            each.kill()
            each.start()
        self.wait()

    def wait(self) -> None:
        """Return once all serve."""
        end_s = time.monotonic() + READY_S
        while not all(each.mode() for each in self.servers):
            assert time.monotonic() < end_s, "ZooKeeper's servers found no leader"
            time.sleep(0.1)

    def leader(self) -> Server:
        """The one that leads now."""
        return next(each for each in self.servers if each.mode() == "leader")

    def kill(self) -> None:
        """End all."""
        for each in self.servers:
            each.kill()
