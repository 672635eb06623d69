"""The hosts' disks: sparse files attached as loop devices, and where a host has them mounted.

A loop device is the lab's if its backing file is in the lab's directory. The kernel lists the
devices with their files, so the lab keeps no record of its own.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path

from lab.hosts import Disk, Host
from lab.place import Place
from lab.shell import run, wait_until

_MIB = 1024 * 1024
_RELEASED_S = 30.0


@dataclass(frozen=True)
class Loop:
    """A loop device and the file behind it."""

    device: str
    number: str
    """`major:minor`."""
    image: Path
    is_removed: bool
    """Whether the file was unlinked: the disk was pulled, but its host still has it mounted."""


def loops(place: Place) -> list[Loop]:
    """The loop devices of this lab."""
    return parse_loops(run("losetup", "--json", "--output", "NAME,MAJ:MIN,BACK-FILE"), place)


def parse_loops(text: str, place: Place) -> list[Loop]:
    """The devices in losetup's JSON whose file is in the lab's directory (pure).

    losetup prints nothing at all when no device is attached.
    """
    found = []
    for row in json.loads(text)["loopdevices"] if text.strip() else []:
        name = row["back-file"] or ""
        image = Path(name.removesuffix(" (deleted)"))
        if place.hosts in image.parents:
            is_removed = name.endswith(" (deleted)")
            found.append(Loop(row["name"], row["maj:min"].strip(), image, is_removed))
    return found


def attach(place: Place, host: Host, size_mib: int) -> None:
    """Attach the host's disks, except pulled ones; a disk without a file is created blank."""
    for disk in host.disks:
        is_pulled = place.empty_slot(host.name, disk.id).exists()
        if not is_pulled and of_disk(place, host, disk) is None:
            make(place, host, disk, size_mib)


def make(place: Place, host: Host, disk: Disk, size_mib: int) -> str:
    """Attach the disk's file, created blank if it does not exist; return its device."""
    image = place.disk_image(host.name, disk.id)
    image.parent.mkdir(parents=True, exist_ok=True)
    place.empty_slot(host.name, disk.id).unlink(missing_ok=True)
    if not image.exists():
        image.touch()
        os.truncate(image, size_mib * _MIB)
    return run("losetup", "--find", "--show", image).strip()


def node(device: str) -> str:
    """`/dev/loop3 7 3`: the device with its major and minor number, as mknod takes them."""
    number = Path("/sys/block", Path(device).name, "dev").read_text(encoding="utf-8").strip()
    return f"{device} {number.replace(':', ' ')}"


def of_disk(place: Place, host: Host, disk: Disk) -> Loop | None:
    """The disk's current device; None while it is pulled."""
    image = place.disk_image(host.name, disk.id)
    return next(
        (loop for loop in loops(place) if loop.image == image and not loop.is_removed), None
    )


def detach_all(place: Place) -> None:
    """Detach all of the lab's loop devices, and wait until the kernel has released them."""
    for loop in loops(place):
        run("losetup", "--detach", loop.device)
    wait_until(lambda: not loops(place), _RELEASED_S, "the kernel to release the lab's disks")


def mounts_of(pid: int, number: str) -> list[str]:
    """The mount points of the device `major:minor` in a process's mount namespace.

    Empty if the process has ended.
    """
    try:
        mountinfo = Path(f"/proc/{pid}/mountinfo").read_text(encoding="utf-8")
    except OSError:
        return []  # ENOENT, ESRCH, or EINVAL for a zombie
    return parse_mounts(mountinfo, number)


def parse_mounts(mountinfo: str, number: str) -> list[str]:
    """The mount points of a device in the text of a mountinfo file, see proc(5) (pure)."""
    rows = [line.split(" ") for line in mountinfo.splitlines()]
    return [row[4].replace("\\040", " ") for row in rows if row[2] == number]
