"""Which data disk is on which block device: sdb is d01 (pure).

The kernel and the node exporter know devices, kdist its disks. A disk that has died keeps its name,
which alerts about its device need, until another one is mounted in its place.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from kdist.runtime.host import Space

_PARTITION = re.compile(r"(?P<disk>(?:[shv]|xv)d[a-z]+)\d+|(?P<card>(?:nvme\d+n|mmcblk)\d+)p\d+")


class DataDisks:
    """The filesystems right below `directory`, each by its device. Owner: the agent."""

    def __init__(self, directory: str) -> None:
        self._directory = directory.rstrip("/") + "/"
        self.by_device: dict[str, str] = {}

    def note(self, spaces: Iterable[Space]) -> None:
        """Take in what is mounted now."""
        for space in spaces:
            if space.mount.startswith(self._directory):
                name = space.mount.removeprefix(self._directory)
                kept = {d: n for d, n in self.by_device.items() if n != name}
                self.by_device = kept | {whole_device(space.device): name}


def whole_device(path: str) -> str:
    """The name of the block device that a path is, or is a partition of: /dev/sdb1 is on sdb."""
    name = path.removeprefix("/dev/")
    found = _PARTITION.fullmatch(name)
    return (found["disk"] or found["card"]) if found else name
