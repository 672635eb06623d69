"""From what the inventory wants of a data disk and what the host shows of it to a plan (pure).

A disk is ours if its XFS label and its marker file name this cluster, broker and disk. Only a disk
without any signature, and zeroes where it begins, is formatted, or a foreign one that was named to
be wiped. What is in use by anything else is never touched.

    state        | the disk shows                       | action
    -------------|--------------------------------------|---------------------------------------
    failed,      | mounted, or in fstab                 | release: unmount, out of fstab
    retired      | else                                 | leave
    active       | nothing, or errors                   | report, and go on without it
                 | another serial, other users, other   | refuse
                 |   things at its mount point          |
                 | ours, mounted                        | keep
                 | ours                                 | mount
                 | our label, nothing in it             | finish: its formatting was interrupted
                 | no signature, zeroes, large enough   | format
                 | anything else, or an XFS that cannot | refuse; wipe, if named to be wiped
                 |   be mounted, perhaps half made        |
"""

from __future__ import annotations

import enum
from collections.abc import Iterator
from dataclasses import dataclass


class Action(enum.Enum):
    """What happens to a disk. After USING it can have a broker."""

    LEAVE = "leave"
    RELEASE = "release"
    REPORT = "report"
    REFUSE = "refuse"
    KEEP = "keep"
    MOUNT = "mount"
    FINISH = "finish"
    FORMAT = "format"
    WIPE = "wipe"


USING = {Action.KEEP, Action.MOUNT, Action.FINISH, Action.FORMAT, Action.WIPE}
MAKING = {Action.FINISH, Action.FORMAT, Action.WIPE}


@dataclass(frozen=True)
class Wanted:
    """What the inventory says about a disk."""

    id: str
    device: str
    mount: str
    cluster: str
    broker: int
    serial: str = ""
    state: str = "active"
    wipe: bool = False
    bytes_min: int = 0

    @property
    def marker(self) -> dict[str, object]:
        return {"cluster": self.cluster, "broker": self.broker, "disk": self.id}

    @property
    def label(self) -> str:
        """At most 12 bytes, which is what XFS has room for."""
        return f"kd{self.broker}-{self.id}"


@dataclass(frozen=True)
class Probe:
    """What the host shows of a disk. The default is a disk that is not there."""

    present: bool = False
    error: str = ""
    bytes: int = 0
    serial: str = ""
    signatures: tuple[str, ...] = ()
    label: str = ""
    uuid: str = ""
    marker: dict[str, object] | None = None
    empty: bool = False
    damage: str = ""  # why its filesystem cannot be mounted
    mounted: bool = False  # at its own mount point
    used_by: str = ""  # by whom else, in words
    mount_taken_by: str = ""  # what else is at its mount point
    in_fstab: bool = False


@dataclass(frozen=True)
class Plan:
    """What to do, and why where that is not plain."""

    action: Action
    reason: str = ""


def plan(wanted: Wanted, probe: Probe) -> Plan:
    """What to do with a disk."""
    if wanted.state != "active":
        return Plan(Action.RELEASE if probe.mounted or probe.in_fstab else Action.LEAVE)
    if not probe.present:
        return Plan(Action.REPORT, "is absent")
    if probe.error:
        return Plan(Action.REPORT, f"cannot be read: {probe.error}")
    for obstacle in obstacles(wanted, probe):
        return Plan(Action.REFUSE, obstacle)
    if probe.mounted:
        return Plan(Action.KEEP)
    if not probe.signatures:
        return plan_blank(wanted, probe)
    if probe.label == wanted.label and probe.marker == wanted.marker:
        return Plan(Action.MOUNT)
    if probe.label == wanted.label and probe.marker is None and probe.empty:
        return Plan(Action.FINISH)
    if wanted.wipe:
        return Plan(Action.WIPE, f"held {contents(probe)}")
    return Plan(Action.REFUSE, f"holds {contents(probe)}")


def obstacles(wanted: Wanted, probe: Probe) -> Iterator[str]:
    """Why a disk is not touched, whatever it holds and whether or not it was named to be wiped."""
    if wanted.serial and probe.serial and wanted.serial != probe.serial:
        yield f"has the serial {probe.serial}, not {wanted.serial}"
    if probe.used_by:
        yield f"is in use: {probe.used_by}"
    if probe.mount_taken_by:
        yield f"finds {probe.mount_taken_by} at {wanted.mount}"
    if probe.mounted and probe.marker != wanted.marker:
        yield f"is mounted, and holds {contents(probe)}"


def plan_blank(wanted: Wanted, probe: Probe) -> Plan:
    if probe.bytes < wanted.bytes_min:
        return Plan(Action.REFUSE, f"has {probe.bytes} bytes, less than {wanted.bytes_min}")
    return Plan(Action.FORMAT)


def contents(probe: Probe) -> str:
    """What is on a disk that is not ours, in words."""
    if probe.marker is not None:
        marker = {key: probe.marker.get(key) for key in ("disk", "broker", "cluster")}
        return "disk {disk} of broker {broker} of cluster {cluster}".format(**marker)
    found = ", ".join(probe.signatures)
    found = f"{found} labelled {probe.label}" if probe.label else found
    return f"{found} that cannot be mounted: {probe.damage}" if probe.damage else found


def fstab_line(wanted: Wanted, uuid: str, options: str) -> str:
    """By UUID, since names change; without a check at boot, which XFS does not have."""
    return f"UUID={uuid} {wanted.mount} xfs {options} 0 0"


def fstab_with(text: str, mount: str, line: str) -> str:
    """The file with `line` as the only one for the mount point; without any if it is empty."""
    kept = text.splitlines()
    places = [i for i, old in enumerate(kept) if is_entry(old, mount)]
    for index in reversed(places[1:] if line else places):
        del kept[index]
    if line and places:
        kept[places[0]] = line
    elif line:
        kept.append(line)
    return "".join(f"{old}\n" for old in kept)


def is_entry(line: str, mount: str) -> bool:
    fields = line.split()
    return len(fields) >= 2 and not fields[0].startswith("#") and fields[1] == mount
