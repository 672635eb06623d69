"""Tools for drills: the lab's faults, playbooks, and waiting for conditions."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from lab.shell import wait_until
from tests.deploy.client import all_replicas, out_of_sync, setting_s
from tests.deploy.deployed import ROOT, Broker, Cluster, ansible_environment

WAIT_S = 120.0
QUICK_S = 10.0
"""The longest that partitions may take no records where nobody has to be waited for. It takes
tenths of a second; a machine that does much else besides may take as many seconds."""

NOTES = ROOT / ".cache" / "drills.txt"
"""What the drills have measured, a line each."""

_BIN = Path(sys.executable).parent


@dataclass(frozen=True)
class Run:
    """A playbook's run: its exit status, its output, and the number of changed tasks per host."""

    status: int
    said: str
    changed: dict[str, int]

    @property
    def words(self) -> str:
        """What it said, without the breaks of long lines."""
        return " ".join(self.said.split())

    def worked(self) -> Run:
        """Assert that the playbook succeeded; returns the run."""
        assert self.status == 0, self.said[-4000:]
        return self

    def failed(self) -> Run:
        """Assert that the playbook failed; returns the run."""
        assert self.status != 0, self.said[-4000:]
        return self


class Play:
    """A playbook that runs in the background, and what it has said so far."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self._said = ""

    def reaches(self, pattern: str) -> re.Match[str]:
        """Return once a line of it matches, such as the name of a task that begins."""
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._said += line
            if found := re.search(pattern, line):
                return found
        raise AssertionError(f"{pattern} was not reached: {self._said[-4000:]}")

    def kill(self) -> Run:
        """SIGKILL; whatever it has started on hosts goes on."""
        self._process.send_signal(signal.SIGKILL)
        return self.end()

    def end(self) -> Run:
        """Return once it has ended."""
        assert self._process.stdout is not None
        with self._process.stdout as rest:
            self._said += rest.read()
        return Run(self._process.wait(), self._said, recap(self._said))


class Lab:
    """The lab's faults, and the playbooks that repair them."""

    def __init__(self, inventory: Path) -> None:
        self.inventory = inventory

    def do(self, *arguments: str) -> str:
        """Run a command of the lab, such as `pull k2`; it must succeed."""
        done = subprocess.run(
            [sys.executable, "-m", "lab", *arguments],
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, f"lab {' '.join(arguments)}: {done.stdout}{done.stderr}"
        return done.stdout

    def start(self, playbook: str, *arguments: str) -> Play:
        """Start a playbook in the background."""
        command = [_BIN / "ansible-playbook", "--inventory", self.inventory]
        process = subprocess.Popen(
            [*command, f"playbooks/{playbook}.yml", *arguments],
            cwd=ROOT,
            # Else a task is named once a host has finished it, and not when it begins.
            env=ansible_environment() | {"ANSIBLE_DISPLAY_SKIPPED_HOSTS": "1"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        return Play(process)

    def play(self, playbook: str, *arguments: str) -> Run:
        """Run a playbook to its end."""
        return self.start(playbook, *arguments).end()


def note(measured: str) -> None:
    """Keep a line for the end of the run."""
    with NOTES.open("a", encoding="utf-8") as file:
        file.write(f"{measured}\n")


def next_version(version: str) -> str:
    """The version that the drills upgrade to: the same source tree under another version (pure)."""
    return f"{version}+drill"


def recap(said: str) -> dict[str, int]:
    """The number of changed tasks per host, from the recap at the end of a play's output (pure)."""
    lines = said.rpartition("PLAY RECAP")[2].splitlines()
    rows = [line.split() for line in lines if " changed=" in line]
    return {row[0]: int(row[3].partition("=")[2]) for row in rows}


def pids(brokers: Iterable[Broker]) -> dict[Broker, int]:
    """The pid of each broker's main process."""
    return {broker: broker.pid() for broker in brokers}


def await_well(brokers: Iterable[Broker], timeout_s: float = WAIT_S) -> None:
    """Return once all of them are healthy."""
    for broker in brokers:
        await_that(partial(_is_well, broker), f"broker {broker} to serve", timeout_s)


def _is_well(broker: Broker) -> bool:
    return broker.is_well


def await_in_sync(cluster: Cluster, timeout_s: float = WAIT_S) -> None:
    """Return once every partition has all its replicas in the ISR; nobody has to help."""
    await_that(
        lambda: out_of_sync(all_replicas(cluster.bootstrap)) == [],
        f"all replicas of {cluster} to be in sync",
        timeout_s,
    )


def seconds(cluster: Cluster, setting: str) -> float:
    """A setting of milliseconds that the cluster's brokers have."""
    return setting_s(cluster.bootstrap, cluster.brokers[0].id, setting)


def await_that(condition: Callable[[], bool], what: str, timeout_s: float = WAIT_S) -> None:
    """Return once the condition holds; on timeout, `what` says what was waited for."""
    wait_until(condition, timeout_s, what)
