"""A separate lab for the lab's own tests: two hosts and a disk, beside any lab that is running."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lab.place import DEFAULT_HOME, ROOT, Place
from lab.shell import run, wait_until

_WAIT_S = 30.0
_COMMAND_S = 900.0  # the first `up` on a machine makes the base image

INVENTORY = """
all:
  vars: {lab_network: 198.18.1.0/24, lab_disk_size_mib: 300}
  children:
    dc1:
      hosts:
        f1: {kdist_address: 198.18.1.11}
        f2:
          kdist_address: 198.18.1.12
          kdist_disks: [{id: d01, device: /dev/disk/by-id/kdist-f2-d01}]
"""


class FaultsLab:
    """Runs the lab's command line, in a directory that nobody else uses."""

    def __init__(self, scratch: Path) -> None:
        # Short, since ssh's sockets are in it; and one for each pytest worker.
        home = Path("/var/lib") / f"kdist-lab-{os.environ.get('PYTEST_XDIST_WORKER', 'test')}"
        self.place = Place(home, Place.of_environment().images)
        inventory = scratch / "hosts.yml"
        inventory.write_text(INVENTORY, encoding="utf-8")
        self.environment = {
            **os.environ,
            "KDIST_LAB_DIR": str(home),
            "KDIST_LAB_IMAGES": str(self.place.images),
            "KDIST_LAB_INVENTORY": str(inventory),
        }

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        """Start a command of the lab in the background."""
        return subprocess.Popen(
            [sys.executable, "-m", "lab", *arguments],
            cwd=ROOT,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def try_to(self, *arguments: str) -> tuple[int, str]:
        """Run a command of the lab; its exit status and output."""
        command = self.start(*arguments)
        said, _ = command.communicate(timeout=_COMMAND_S)
        return command.returncode, said.strip()

    def do(self, *arguments: str) -> str:
        """Run a command of the lab, which must succeed; its output."""
        status, said = self.try_to(*arguments)
        assert status == 0, f"lab {' '.join(arguments)}: {said}"
        return said

    def inside(self, host: str, script: str) -> str:
        """Run a script on a host; its output."""
        return self.do("ssh", host, script)

    def status(self) -> dict[str, Any]:
        """`status --json`."""
        answer: dict[str, Any] = json.loads(self.do("status", "--json"))
        return answer

    def state(self, host: str) -> str:
        """The host's state."""
        return str(self.status()["hosts"][host]["state"])

    def hears(self, host: str, other: str) -> bool:
        """Whether one host gets an answer from another."""
        return self.try_to("ssh", host, f"ping -c 1 -W 1 {other}")[0] == 0

    def new_disk(self) -> None:
        """A blank disk in f2, with a filesystem on /data/d01 that is mounted at each start."""
        self.inside("f2", "umount -l /data/d01 2>/dev/null; sed -i d /etc/fstab")
        self.do("disk", "swap", "f2", "d01")
        self.inside(
            "f2",
            "set -e; disk=/dev/disk/by-id/kdist-f2-d01; mkfs.xfs -q $disk; mkdir -p /data/d01;"
            'echo "UUID=$(blkid -s UUID -o value $disk) /data/d01 xfs noatime,nofail 0 0"'
            " >/etc/fstab; mount /data/d01",
        )

    def await_output(self, host: str, script: str, wanted: str) -> None:
        """Return once the output of a script on the host is the wanted one."""
        wait_until(lambda: self.try_to("ssh", host, script)[1] == wanted, _WAIT_S, wanted)

    def await_trace(self, kind: str) -> None:
        """Return once the lab has left a trace of this kind."""
        wait_until(lambda: kind in self.traces(), _WAIT_S, f"the first {kind}")

    def traces(self) -> dict[str, Sequence[str]]:
        """Everything on this machine that is named after the lab, by kind; empty kinds left out."""
        mounts = Path("/proc/self/mountinfo").read_text(encoding="utf-8").splitlines()
        found = {
            "loop": run("losetup", "--list", "--noheadings").splitlines(),
            "mount": mounts,
            "netns": run("ip", "netns", "list").splitlines(),
            "cgroup": [str(path) for path in Path("/sys/fs/cgroup").glob("*/*")],
            "process": run("ps", "-eo", "args").splitlines(),
            "directory": [str(path) for path in DEFAULT_HOME.parent.iterdir()],
        }
        name = self.place.name
        ours = {kind: [line for line in lines if name in line] for kind, lines in found.items()}
        return {kind: lines for kind, lines in ours.items() if lines}
