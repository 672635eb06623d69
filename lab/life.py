"""The lab as a whole: bring it up, take it down, and report its state.

`up` creates only what is missing, so the next `up` continues one that died half way. `down` removes
what it finds in the kernel's own lists (cgroups, mounts, loop devices, namespaces), and so does not
depend on any record of what was created.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from lab import access, cgroups, disks, image, machine, network
from lab.hosts import Description, Host
from lab.place import Place
from lab.shell import run

Say = Callable[[str], None]

_NSPAWN = Path("/run/systemd/nspawn")


@dataclass(frozen=True)
class HostState:
    """A row of `status`: the host, its state, and the device of each disk (`-`: not attached)."""

    host: Host
    state: str
    devices: dict[str, str]


def up(place: Place, description: Description, hosts: Sequence[Host], say: Say) -> None:
    """Create the lab where it is missing and start these hosts; return once they are up."""
    base = image.path(place, description.is_bare)
    if not base.is_dir():
        say(f"Making the base image {base}: a minute or two, once.")
    image.make(place, description.is_bare)
    network.make(place, description)
    access.make(place, description)
    for host in hosts:
        machine.make_root(place, description, host, base)
        machine.power_on(place, description, host)
    cgroups.weigh(place, len(description.hosts))
    for host in hosts:
        machine.wait_for_boot(place, host.name)


def on(place: Place, description: Description, host: Host) -> None:
    """Start a host of the lab that is off."""
    machine.power_on(place, description, host)
    machine.wait_for_boot(place, host.name)


def down(place: Place) -> None:
    """Kill every host and remove all that the lab created, except the base images."""
    for name in _hosts_found(place):
        groups = cgroups.of_host(place, name)
        groups.freeze(False)
        machine.thaw_disks(place, name)
        groups.end_processes()
        groups.remove()
        # nspawn leaves these behind when it is killed.
        if (_NSPAWN / "propagate" / name).is_dir():
            (_NSPAWN / "propagate" / name).rmdir()
        if (root := place.root(name)).is_dir():
            _nspawns_lock(root).unlink(missing_ok=True)
    for mount in _mounts_under(place.hosts):
        run("umount", mount)
    disks.detach_all(place)
    network.remove(place)
    for group in cgroups.tops(place):
        group.rmdir()
    if cgroups.has_systemd():
        run("systemctl", "stop", f"{place.name}.slice")
    access.remove(place)
    if place.hosts.is_dir():
        shutil.rmtree(place.hosts)


def remove_home(place: Place) -> None:
    """Remove the lab's directory if only the lock is left in it; base images keep it."""
    if place.home.is_dir() and set(place.home.iterdir()) <= {place.lock}:
        shutil.rmtree(place.home)


def status(place: Place, description: Description) -> list[HostState]:
    """The state of each host, in the order of the description."""
    devices = {loop.image: loop.device for loop in disks.loops(place) if not loop.is_removed}
    return [
        HostState(
            host,
            machine.state(place, host.name),
            {d.id: devices.get(place.disk_image(host.name, d.id), "-") for d in host.disks},
        )
        for host in description.hosts
    ]


def _hosts_found(place: Place) -> list[str]:
    """Names of hosts with a directory or a cgroup, whether or not the inventory has them."""
    tops = [place.hosts, *cgroups.tops(place)]
    found = {path.name for top in tops if top.is_dir() for path in top.iterdir() if path.is_dir()}
    return sorted(found)


def _nspawns_lock(root: Path) -> Path:
    """The lock file that nspawn holds while a container runs from the directory."""
    found = root.stat()
    return _NSPAWN / "locks" / f"inode-{found.st_dev}:{found.st_ino}"


def _mounts_under(directory: Path) -> list[str]:
    """The mount points below the directory, innermost first."""
    lines = Path("/proc/self/mountinfo").read_text(encoding="utf-8").splitlines()
    points = [Path(line.split(" ")[4]) for line in lines]
    return [str(point) for point in reversed(points) if directory in point.parents]
