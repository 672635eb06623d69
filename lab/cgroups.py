"""A host's cgroups (v1 and v2): used to find its processes, freeze them, and throttle their disks.

A host has the cgroup `<lab>/<host>`: on version 1 in every hierarchy that its systemd needs. Where
this machine runs systemd on version 2, it is the cgroup of the host's service. Every process of a
host is in it, however it was started, so this is the only place to look for leftover processes.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from lab.place import Place
from lab.shell import wait_until

SYS = Path("/sys/fs/cgroup")
_GONE_S = 30.0
_SHARES = 2048
"""A host's part of a busy machine's time, where one of the machine's own processes has 1024."""

# Not cpuset: a new group has no CPUs until some are assigned. Not devices: access is unrestricted.
_V1 = ("freezer", "memory", "cpu", "cpuacct", "cpu,cpuacct", "blkio", "pids", "systemd", "unified")


@dataclass(frozen=True)
class Cgroups:
    """The cgroups of one host; the first of `groups` lists its processes and freezes them."""

    groups: tuple[Path, ...]
    is_v2: bool

    @property
    def freezer(self) -> Path:
        """The cgroup that holds all of the host's processes and can freeze them."""
        return self.groups[0]

    def processes(self) -> Iterator[int]:
        """The ids of all processes of the host."""
        for members in _tree(self.freezer):
            for line in _lines(members / "cgroup.procs"):
                yield int(line)

    def leader(self) -> int | None:
        """The host's init process, by its pid on this machine; None if the host is off."""
        for pid in self.processes():
            for line in _lines(Path(f"/proc/{pid}/status")):
                # The pid on this machine comes first, the pid in the innermost namespace last.
                if line.startswith("NSpid:") and len(ids := line.split()) > 2 and ids[-1] == "1":
                    return pid
        return None

    def freeze(self, is_frozen: bool) -> None:
        """Freeze every process of the host, or thaw them all; return once that has happened."""
        if not self.freezer.is_dir():
            return
        if self.is_v2:
            (self.freezer / "cgroup.freeze").write_text("1" if is_frozen else "0")
        else:
            (self.freezer / "freezer.state").write_text("FROZEN" if is_frozen else "THAWED")
        wait_until(lambda: self.is_frozen() == is_frozen, _GONE_S, "the freezer")

    def is_frozen(self) -> bool:
        """Whether all processes of the host are frozen."""
        if self.is_v2:
            return "frozen 1" in _lines(self.freezer / "cgroup.events")
        return _lines(self.freezer / "freezer.state") == ["FROZEN"]

    def throttle(self, device: str, iops: int, write_bytes_per_s: int) -> None:
        """Limit what the host's processes may write to a device `major:minor`; 0 is no limit."""
        if self.is_v2:
            limits = (iops or "max", write_bytes_per_s or "max")
            (self.freezer / "io.max").write_text(f"{device} wiops={limits[0]} wbps={limits[1]}")
            return
        # Version 1 does not apply a limit to the groups below: set it on each unit of the host.
        for group in _tree(next(g for g in self.groups if g.relative_to(SYS).parts[0] == "blkio")):
            (group / "blkio.throttle.write_iops_device").write_text(f"{device} {iops}")
            (group / "blkio.throttle.write_bps_device").write_text(f"{device} {write_bytes_per_s}")

    def end_processes(self) -> None:
        """Kill every remaining process of the host, and wait until all are gone."""
        self.freeze(False)

        def are_gone() -> bool:
            left = list(self.processes())
            for pid in left:
                _kill(pid)
            return not left

        wait_until(are_gone, _GONE_S, f"the end of the processes in {self.freezer}")

    def remove(self) -> None:
        """Remove the groups, innermost first; systemd may have removed some already."""
        for top in self.groups:
            for group in reversed(list(_tree(top))):
                try:
                    group.rmdir()
                except FileNotFoundError:
                    pass  # systemd has removed it


def of_host(place: Place, host: str) -> Cgroups:
    """The host's cgroups on this machine, whether or not they exist yet."""
    return plan(place, host, is_v2=is_v2(), has_systemd=has_systemd(), mounted=_mounted())


def plan(
    place: Place, host: str, is_v2: bool, has_systemd: bool, mounted: frozenset[str]
) -> Cgroups:
    """The host's cgroups; `mounted` names the version 1 hierarchies that are mounted (pure)."""
    if is_v2 and has_systemd:
        return Cgroups((SYS / slice_path(place) / place.unit(host),), is_v2=True)
    if is_v2:
        return Cgroups((SYS / place.name / host,), is_v2=True)
    return Cgroups(
        tuple(SYS / name / place.name / host for name in _V1 if name in mounted), is_v2=False
    )


def slice_path(place: Place) -> Path:
    """The path of the lab's slice: each dash in its name is a level (systemd.slice(5)) (pure)."""
    parts = place.name.split("-")
    return Path(*("-".join(parts[: end + 1]) + ".slice" for end in range(len(parts))))


def tops(place: Place) -> list[Path]:
    """The lab's own groups, the parents of its hosts', which `down` removes once they are empty."""
    return [path for path in (SYS / place.name, *SYS.glob(f"*/{place.name}")) if path.is_dir()]


def weigh(place: Place, hosts: int) -> None:
    """Give the lab the time of that many hosts: by default it has that of a single process."""
    for group in tops(place):
        if (shares := group / "cpu.shares").exists():  # only version 1 has it
            shares.write_text(str(_SHARES * hosts))


def is_v2() -> bool:
    """Whether this machine uses the unified hierarchy of version 2."""
    return (SYS / "cgroup.controllers").exists()


def has_systemd() -> bool:
    """Whether systemd runs this machine, and therefore owns its cgroups."""
    return Path("/run/systemd/system").is_dir()


def _mounted() -> frozenset[str]:
    return frozenset(name for name in _V1 if (SYS / name / "cgroup.procs").exists())


def _tree(top: Path) -> Iterator[Path]:
    """The group and all groups below it, parents before children."""
    if top.is_dir():
        yield top
        yield from sorted(path for path in top.rglob("*") if path.is_dir())


def _lines(path: Path) -> list[str]:
    """The file's lines; empty if its process or group has just gone: ENOENT, ESRCH or ENODEV."""
    try:
        return path.read_text(encoding="utf-8").splitlines()
    except OSError:
        return []


def _kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        pass  # it has already ended
