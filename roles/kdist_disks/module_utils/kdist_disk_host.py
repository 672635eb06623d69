"""What the kernel's files say of block devices and mounts: /sys/dev/block and /proc/self/mountinfo.

Devices are known by number (`8:16`), since names and links to them come and go. Nothing is changed.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path


def read(path: Path) -> str:
    """A line of sysfs; nothing if the kernel has none."""
    try:
        return path.read_text().strip()
    except OSError:
        return ""


def device_number(path: str) -> str:
    """`8:16` of a block device, by which the kernel knows it; nothing if there is none."""
    try:
        found = os.stat(path)
    except OSError:
        return ""
    if not stat.S_ISBLK(found.st_mode):
        return ""
    return f"{os.major(found.st_rdev)}:{os.minor(found.st_rdev)}"


def mounts() -> list[tuple[str, str]]:
    """(device number, mount point) of all that is mounted; see proc(5) for the fields."""
    found = []
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        fields, _, rest = line.partition(" - ")
        _, _, number, _, place = fields.split()[:5]
        # A filesystem over several devices has a number of its own; its source tells one of them.
        found.append((device_number(rest.split()[1]) or number, place.replace("\\040", " ")))
    return found


def mounts_at(place: str) -> set[str]:
    """The devices mounted at a mount point."""
    return {number for number, mounted in mounts() if mounted == place}


def serial_of(block: Path) -> str:
    """A disk's serial as the kernel knows it; nothing for those that have none."""
    disk = block.resolve()
    disk = disk.parent if (disk / "partition").exists() else disk
    for place in ("device/serial", "serial"):
        if found := read(disk / place):
            return found
    try:
        page = (disk / "device/vpd_pg80").read_bytes()  # SCSI's page 0x80: 4 bytes, then the serial
    except OSError:
        return ""
    return page[4:].decode("ascii", "replace").strip(" \0")


def has_data(device: str) -> bool:
    """Whether the first MiB is anything but zeroes: encrypted or raw data has no signature."""
    with open(device, "rb") as disk:
        return any(disk.read(1 << 20))


def belongs_to(directory: Path, owner: str, group: str) -> bool:
    """Whether it is there and theirs; a number that has no name here is somebody else's."""
    try:
        return directory.is_dir() and (directory.owner(), directory.group()) == (owner, group)
    except KeyError:
        return False


def may_make_immutable() -> bool:
    """Whether this process has CAP_LINUX_IMMUTABLE, which is bit 9."""
    status = Path("/proc/self/status").read_text()
    effective = next(line for line in status.splitlines() if line.startswith("CapEff:"))
    return bool(int(effective.split()[1], 16) >> 9 & 1)
