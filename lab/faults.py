"""Injects faults into the disks, units and network links of a running host.

Each is a fault that real hosts meet, injected where the host cannot tell the difference: in the
filesystem, below the block device, or at the port of the switch.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from kdist.errors import UserError
from lab import cgroups, disks, machine, network
from lab.disks import Loop
from lab.hosts import Disk, Host
from lab.place import Place
from lab.shell import run, succeeds

BALLAST = ".lab-ballast"
"""The file that fills a full disk."""

_KIB = 1024
_BLOCK_BYTES = 4 * _KIB


def kill(place: Place, host: str, unit: str) -> None:
    """kill -9 of a unit's main process; UserError if it has none."""
    machine.refuse_if_frozen(place, host)
    show = ["systemctl", "show", "--value", "--property=MainPID", unit]
    if run(*machine.entered(place, host, *show)).strip() in ("", "0"):
        raise UserError(f"{unit} does not run on {host}")
    end = ["systemctl", "kill", "--kill-whom=main", "--signal=KILL", unit]
    run(*machine.entered(place, host, *end))


def fail_disk(place: Place, host: Host, disk: Disk) -> None:
    """The disk dies: every call on it fails with EIO, its capacity is 0 and its data are gone."""
    loop = _present(place, host, disk)
    if mount := machine.mounted_at(place, host.name, loop.number):
        machine.stop_filesystem(mount)
    os.truncate(loop.image, 0)
    run("losetup", "--set-capacity", loop.device)


def pull_disk(place: Place, host: Host, disk: Disk) -> None:
    """The disk is taken out of its slot, until `swap`: it dies and its device names disappear."""
    loop = _present(place, host, disk)
    fail_disk(place, host, disk)
    link = f"/dev/disk/by-id/{disk.device_name}"
    run(*machine.entered(place, host.name, "rm", link, loop.device))
    # Once unlinked, the file is no longer a disk of the lab; the kernel keeps it while mounted.
    loop.image.unlink()
    run("losetup", "--detach", loop.device)
    place.empty_slot(host.name, disk.id).touch()
    machine.list_disks(place, host)


def swap_disk(place: Place, host: Host, disk: Disk, size_mib: int) -> None:
    """A blank disk is put into the slot, under the same stable name but as a new device.

    The old device stays, without a name, for as long as the host has it mounted.
    """
    if disks.of_disk(place, host, disk):
        pull_disk(place, host, disk)
    device = disks.make(place, host, disk, size_mib)
    link = f"/dev/disk/by-id/{disk.device_name}"
    make = ["mknod", "--mode=660", device, "b", *disks.node(device).split()[1:]]
    run(*machine.entered(place, host.name, *make))
    run(*machine.entered(place, host.name, "ln", "-s", f"../../{Path(device).name}", link))
    machine.list_disks(place, host)


def hang_disk(place: Place, host: Host, disk: Disk) -> None:
    """Writes to the disk block until `thaw`. A process that waits for one cannot be killed."""
    run("fsfreeze", "--freeze", _mount(place, host, disk))


def slow_disk(place: Place, host: Host, disk: Disk, iops: int, mib_per_s: float) -> None:
    """Throttle synced and direct writes of the units that run now; 0 is no limit."""
    loop = _present(place, host, disk)
    groups = cgroups.of_host(place, host.name)
    groups.throttle(loop.number, iops, int(mib_per_s * _KIB * _KIB))


def fill_disk(place: Place, host: Host, disk: Disk) -> None:
    """Fill all of the disk's free space, up to the last block."""
    mount = _mount(place, host, disk)
    with (mount / BALLAST).open("ab") as ballast:
        size_bytes = shutil.disk_usage(mount).free
        while size_bytes >= _BLOCK_BYTES:
            try:
                os.posix_fallocate(ballast.fileno(), ballast.seek(0, os.SEEK_END), size_bytes)
            except OSError:
                # The filesystem reserves some of the free space: try half as much each time.
                size_bytes //= 2


def thaw_disk(place: Place, host: Host, disk: Disk) -> None:
    """Undo `hang`, `slow` and `full`. A dead disk stays dead: only `swap` replaces it."""
    loop = _present(place, host, disk)
    if mount := machine.mounted_at(place, host.name, loop.number):
        succeeds("fsfreeze", "--unfreeze", mount)  # fails if it is not frozen
        (mount / BALLAST).unlink(missing_ok=True)
    cgroups.of_host(place, host.name).throttle(loop.number, 0, 0)


def slow_network(place: Place, host: str, mbit_per_s: float) -> None:
    """Limit the bandwidth at which the host receives and sends; 0 removes the limit."""
    leader = machine.leader_of(place, host)
    for device, enter in (
        (network.port(host), network.inside(place)),
        ("host0", ["nsenter", f"--target={leader}", "--net"]),
    ):
        plan = [*enter, *network.plan_slow(device, mbit_per_s)]
        if mbit_per_s:
            run(*plan)
        else:
            succeeds(*plan)  # fails if there is no limit


def _present(place: Place, host: Host, disk: Disk) -> Loop:
    machine.leader_of(place, host.name)  # raises UserError if the host is off
    loop = disks.of_disk(place, host, disk)
    if loop is None:
        raise UserError(f"disk {disk.id} of {host.name} is pulled: `swap` brings a new one")
    return loop


def _mount(place: Place, host: Host, disk: Disk) -> Path:
    mount = machine.mounted_at(place, host.name, _present(place, host, disk).number)
    if mount is None:
        raise UserError(f"{host.name} has not mounted disk {disk.id}")
    return mount
