"""Tools for drills: the lab's faults, playbooks, and waiting for conditions."""

from __future__ import annotations

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

_BIN = Path(sys.executable).parent


@dataclass(frozen=True)
class Run:
    """A playbook's run: its exit status, its output, and the number of changed tasks per host."""

    status: int
    said: str
    changed: dict[str, int]

    def worked(self) -> Run:
        """Assert that the playbook succeeded; returns the run."""
        assert self.status == 0, self.said[-4000:]
        return self

    def failed(self) -> Run:
        """Assert that the playbook failed; returns the run."""
        assert self.status != 0, self.said[-4000:]
        return self


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

    def start(self, playbook: str, *arguments: str) -> subprocess.Popen[str]:
        """Start a playbook in the background."""
        command = [_BIN / "ansible-playbook", "--inventory", self.inventory]
        return subprocess.Popen(
            [*command, f"playbooks/{playbook}.yml", *arguments],
            cwd=ROOT,
            env=ansible_environment(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def play(self, playbook: str, *arguments: str) -> Run:
        """Run a playbook to its end."""
        running = self.start(playbook, *arguments)
        said, _ = running.communicate()
        return Run(running.returncode, said, recap(said))


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
