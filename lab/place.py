"""Where the lab keeps what it makes, and what it is called (pure but for `Place.of_environment`).

The directory's last name is the lab's: its network namespace, its cgroups and its units have it.
So all that belongs to a lab is found by looking, and `down` needs no record of what an `up` that
died had done. Two directories are two labs; they may share base images.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
"""The tree that the lab is run from."""

DEFAULT_HOME = Path("/var/lib/kdist-lab")
BRIDGE = "lab0"
"""The switch that the hosts hang on; its name is private to the lab's network namespace."""


@dataclass(frozen=True)
class Place:
    """A lab's directory `home`, and `images`, where the base images are."""

    home: Path
    images: Path

    @classmethod
    def of_environment(cls) -> Place:
        """What KDIST_LAB_DIR and KDIST_LAB_IMAGES say, or /var/lib/kdist-lab and `base` in it."""
        home = Path(os.environ.get("KDIST_LAB_DIR") or DEFAULT_HOME).absolute()
        return cls(home, Path(os.environ.get("KDIST_LAB_IMAGES") or home / "base").absolute())

    @property
    def name(self) -> str:
        """What netns, cgroups and units of this lab are called."""
        return self.home.name

    @property
    def netns(self) -> Path:
        """The file that holds the lab's network namespace, as `ip netns` has it."""
        return Path("/run/netns") / self.name

    @property
    def lock(self) -> Path:
        """Held by who is changing the lab; says who."""
        return self.home / "lock"

    @property
    def ssh(self) -> Path:
        """The directory of the lab's keys and the sockets of open connections."""
        return self.home / "ssh"

    @property
    def ssh_config(self) -> Path:
        """What ssh, Ansible and testinfra are given to reach the hosts."""
        return self.home / "ssh_config"

    @property
    def hosts(self) -> Path:
        """A directory for each host: its files, its disks, its console."""
        return self.home / "hosts"

    def root(self, host: str) -> Path:
        """The host's root: what it changed, over the base image."""
        return self.hosts / host / "root"

    def console(self, host: str) -> Path:
        """What the host says while it starts."""
        return self.hosts / host / "console.log"

    def disk_image(self, host: str, disk: str) -> Path:
        """The file that is the host's disk."""
        return self.hosts / host / "disks" / f"{disk}.img"

    def empty_slot(self, host: str, disk: str) -> Path:
        """A mark: the disk was pulled, and none has come in its place."""
        return self.hosts / host / "disks" / f"{disk}.pulled"

    def unit(self, host: str) -> str:
        """The service that the host is, where this machine runs systemd."""
        return f"{self.name}-{host}.service"
