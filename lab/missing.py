"""Checks what this machine lacks to run the lab, and says so in one sentence each.

The checks leave nothing behind.
"""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from lab import cgroups, image
from lab.access import HOME_LENGTH_MAX
from lab.place import Place
from lab.shell import succeeds

# Each program, and the Debian package that has it.
PROGRAMS = {
    "systemd-nspawn": "systemd-container",
    "ip": "iproute2",
    "tc": "iproute2",
    "nft": "nftables",
    "nsenter": "util-linux",
    "losetup": "mount",
    "fsfreeze": "util-linux",
    "xfs_io": "xfsprogs",
    "ssh": "openssh-client",
    "ssh-keygen": "openssh-client",
}
_MAKES_IMAGES = {"mmdebstrap": "mmdebstrap"}
_NAME = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")
_PATH = re.compile(r"[\w/.+-]+")


def missing(
    place: Place, is_bare: bool = False, find: Callable[[str], str | None] = shutil.which
) -> list[str]:
    """One sentence for each requirement that is missing; only root can check kernel and mounts."""
    found = [*_places(place), *_programs(image.path(place, is_bare), find)]
    if os.geteuid() != 0:
        return ["root is needed: containers, mounts and loop devices are made.", *found]
    return [*found, *_kernel(place)]


def _places(place: Place) -> Iterator[str]:
    if len(str(place.home)) > HOME_LENGTH_MAX:
        yield f"KDIST_LAB_DIR is too long for ssh's sockets: at most {HOME_LENGTH_MAX} characters."
    if not _NAME.fullmatch(place.name):
        yield f"KDIST_LAB_DIR ends with {place.name}: words of a-z and 0-9 joined by - are needed."
    for variable, path in (("KDIST_LAB_DIR", place.home), ("KDIST_LAB_IMAGES", place.images)):
        if not _PATH.fullmatch(str(path)):
            yield f"{variable} is {path}: mount and ssh take letters, digits and _.+- alone."


def _programs(base: Path, find: Callable[[str], str | None]) -> Iterator[str]:
    wanted = PROGRAMS if base.is_dir() else PROGRAMS | _MAKES_IMAGES
    for program, package in wanted.items():
        if find(program) is None:
            yield f"{program} is not here: apt-get install {package}."


def _kernel(place: Place) -> Iterator[str]:
    if not Path("/dev/loop-control").exists():
        yield "The kernel has no loop devices: /dev/loop-control is not there (modprobe loop)."
    filesystems = Path("/proc/filesystems").read_text(encoding="utf-8").split()
    for name in ("overlay", "xfs"):
        if name not in filesystems and not _loads(name):
            yield f"The kernel has no {name} filesystem."
    if not cgroups.is_v2() and not (cgroups.SYS / "freezer/cgroup.procs").exists():
        yield f"Neither cgroup version 2 nor version 1's freezer is mounted in {cgroups.SYS}."
    if not _may_overlay(place):
        yield f"An overlay cannot be mounted in {place.home}: no right to, or it is on one itself."
    if not _may("--net", "true"):
        yield "A network namespace cannot be made here: is this a container without the right to?"
    elif not _may("--net", "ip", "link", "add", "probe0", "type", "bridge"):
        yield "The kernel has no bridges."
    elif shutil.which("nft") and not _may("--net", "nft", "add", "table", "bridge", "probe"):
        yield "nft cannot filter what crosses a bridge."


def _loads(module: str) -> bool:
    return shutil.which("modprobe") is not None and succeeds("modprobe", module)


def _may_overlay(place: Place) -> bool:
    """Whether an overlay can be mounted in the lab's directory, which must not be on one itself."""
    there = next(path for path in (place.home, *place.home.parents) if path.is_dir())
    with tempfile.TemporaryDirectory(dir=there) as scratch:
        for name in ("lower", "upper", "work", "root"):
            Path(scratch, name).mkdir()
        layers = f"lowerdir={scratch}/lower,upperdir={scratch}/upper,workdir={scratch}/work"
        mount = ["mount", "-t", "overlay", "probe", "-o", layers, f"{scratch}/root"]
        return _may("--mount", *mount)


def _may(namespace: str, *command: str) -> bool:
    """Whether the command works in a new namespace, which undoes its effects when it ends."""
    return succeeds("unshare", namespace, *command)
