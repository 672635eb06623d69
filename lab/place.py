"""The lab's directory, and the names derived from it (pure but for `Place.of_environment`).

The last component of the directory's path is the lab's name, which its network namespace, cgroups
and units carry. So everything of a lab can be found by name, and `down` needs no record of what an
`up` that died had done. Two directories are two labs; they may share base images.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
"""The source tree that the lab is run from."""

DEFAULT_HOME = Path("/var/lib/kdist-lab")
BRIDGE = "lab0"
"""The bridge that connects the hosts; its name is private to the lab's network namespace."""


@dataclass(frozen=True)
class Place:
    """A lab's directory `home`, and `images`, where the base images are."""

    home: Path
    images: Path

    @classmethod
    def of_environment(cls) -> Place:
        """From KDIST_LAB_DIR (or /var/lib/kdist-lab) and KDIST_LAB_IMAGES (or `base` in it)."""
        home = Path(os.environ.get("KDIST_LAB_DIR") or DEFAULT_HOME).absolute()
        return cls(home, Path(os.environ.get("KDIST_LAB_IMAGES") or home / "base").absolute())

    @property
    def name(self) -> str:
        """The name of the lab's network namespace and cgroups, and the prefix of its units'."""
        return self.home.name

    @property
    def netns(self) -> Path:
        """The file that `ip netns` binds the lab's network namespace to."""
        return Path("/run/netns") / self.name

    @property
    def lock(self) -> Path:
        """The lock file, held by the process that is changing the lab; it names that process."""
        return self.home / "lock"

    @property
    def ssh(self) -> Path:
        """The directory of the lab's keys and the sockets of open connections."""
        return self.home / "ssh"

    @property
    def ssh_config(self) -> Path:
        """The ssh configuration with which ssh, Ansible and testinfra reach the hosts."""
        return self.home / "ssh_config"

    @property
    def hosts(self) -> Path:
        """The directory with a subdirectory for each host: its files, disks and console log."""
        return self.home / "hosts"

    def root(self, host: str) -> Path:
        """The mount point of the host's root: its own changes as an overlay on the base image."""
        return self.hosts / host / "root"

    def console(self, host: str) -> Path:
        """The log of the host's console, with its boot messages."""
        return self.hosts / host / "console.log"

    def disk_image(self, host: str, disk: str) -> Path:
        """The file that backs the host's disk."""
        return self.hosts / host / "disks" / f"{disk}.img"

    def empty_slot(self, host: str, disk: str) -> Path:
        """A marker file: the disk was pulled, and has not been replaced yet."""
        return self.hosts / host / "disks" / f"{disk}.pulled"

    def unit(self, host: str) -> str:
        """The service that runs the host, where this machine uses systemd and cgroups version 2."""
        return f"{self.name}-{host}.service"
