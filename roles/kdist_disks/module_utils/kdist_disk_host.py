"""What the kernel's files say of block devices and mounts: /sys/dev/block and /proc/self/mountinfo.

Devices are known by number (`8:16`), since names and links to them come and go. Nothing is changed.
Those files answer at any time; what asks the disk itself is run `within` a time.
"""

from __future__ import annotations

import json
import os
import select
import stat
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

_STANDARD = 3  # input, output, errors
_DESCRIPTORS = 65_536  # more than a module of Ansible's has open


def within(limit_s: float, work: Callable[[], Any]) -> Any:
    """What the work returns, as JSON has it; `OSError` with what it raised; `TimeoutError`.

    It is done in a child that is left behind when its time is over: nothing can kill a process that
    waits for a disk that hangs. The child has nothing open that anybody would wait for.
    """
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        _say(writing, work)
    os.close(writing)
    end_s = time.monotonic() + limit_s
    said = b""
    with os.fdopen(reading, "rb", buffering=0) as pipe:
        while select.select([pipe], [], [], max(0.0, end_s - time.monotonic()))[0]:
            if not (piece := pipe.read(1 << 16)):
                os.waitpid(child, 0)
                break
            said += piece
        else:
            raise TimeoutError(f"does not answer within {limit_s:g} s")
    found = json.loads(said) if said else {"error": "nothing was said about it"}
    if "error" in found:
        raise OSError(found["error"])
    return found["value"]


def _say(writing: int, work: Callable[[], Any]) -> None:
    """In the child: do the work, write what came of it, and end without what Python does last."""
    found: dict[str, Any] = {}
    try:
        try:
            os.setsid()
            nothing = os.open(os.devnull, os.O_RDWR)
            for number in range(_STANDARD):
                os.dup2(nothing, number)
            os.closerange(_STANDARD, writing)
            os.closerange(writing + 1, _DESCRIPTORS)
            found["value"] = work()
        except Exception as error:
            found["error"] = str(error) or repr(error)
            raise  # to nobody: the parent tells of it
        finally:
            with os.fdopen(writing, "wb") as pipe:
                pipe.write(json.dumps(found).encode())
    finally:
        os._exit(0)


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
