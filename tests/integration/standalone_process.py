"""Runs `kdist standalone` as a process for tests, which stop it as a user would."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
KDIST = [sys.executable, "-m", "kdist.cli"]
TIMEOUT_S = 60


def free_ports(count: int) -> int:
    """A port P such that all ports from P - 1 to P + count - 1 are free at this moment.

    They are below the ephemeral range, so that no connection takes one before a run is restarted,
    and apart from those of `zookeeper_server.free_port`.
    """
    while True:
        first = random.randrange(10_100, 14_900)
        with contextlib.ExitStack() as held, contextlib.suppress(OSError):
            for port in range(first - 1, first + count):
                held.enter_context(socket.socket()).bind(("127.0.0.1", port))
            return first


class Standalone:
    """One run, with its data directory and port. Its children's pids are known once it is ready."""

    def __init__(self, data: Path, *options: object, port: int | None = None) -> None:
        self.port = port or free_ports(3)
        self.data = data
        self.pids: dict[str, int] = {}
        words = [*KDIST, "standalone", "--data", str(data), "--port", str(self.port)]
        self.process = subprocess.Popen(
            [*words, *map(str, options)],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def wait_until_ready(self) -> Standalone:
        """Wait for its line of JSON; it must have been started with --json."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, self.end()
        services = json.loads(line)["services"]
        self.pids = {service["name"]: service["pid"] for service in services}
        self.addresses = {service["name"]: service["address"] for service in services}
        return self

    def wait_for(self, path: Path) -> None:
        """Wait until a file exists that the process creates while it starts."""
        while not path.exists():
            assert self.process.poll() is None, self.end()
            time.sleep(0.005)

    def stop(self, how: signal.Signals = signal.SIGINT) -> tuple[int, str, str]:
        """Signal the process, not its children, which are not of its terminal; then `end`."""
        self.process.send_signal(how)
        return self.end()

    def end(self) -> tuple[int, str, str]:
        """Wait until the process ends; its exit status, standard output and standard error."""
        output, errors = self.process.communicate(timeout=TIMEOUT_S)
        return self.process.returncode, output, errors

    def run(self, *arguments: object, text: str = "") -> str:
        """Run another kdist command on this cluster, which must succeed; its output."""
        done = subprocess.run(
            [*KDIST, *map(str, arguments)],
            cwd=ROOT,
            env={**os.environ, "KDIST_BROKER": f"127.0.0.1:{self.port}"},
            input=text,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def living(self) -> list[str]:
        """Names of the children that still exist."""
        return [name for name, pid in self.pids.items() if Path(f"/proc/{pid}").exists()]


@contextlib.contextmanager
def standalone(data: Path, *options: object, port: int | None = None) -> Iterator[Standalone]:
    """A run that is ready; its processes are ended whatever happens."""
    run = Standalone(data, "--json", *options, port=port)
    try:
        yield run.wait_until_ready()
    finally:
        if run.process.poll() is None:
            run.stop()
        for name in run.living():
            os.kill(run.pids[name], signal.SIGKILL)
