#!/usr/bin/python
"""The module that looks at one data disk of a host, and carries out the plan for it.

What to do is decided in module_utils/kdist_disk_plan.py; module_utils/kdist_disk_host.py reads the
kernel's files. Here is what puts a disk's facts together, and what acts.
Look-ups that need a mount are made in a mount namespace of their own, so they leave nothing behind
and can be made in check mode. A disk that hangs is left: neither a look nor an act is waited for
any longer than it may take.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.kdist_disk_host import (
    belongs_to,
    device_number,
    has_data,
    may_make_immutable,
    mounts,
    mounts_at,
    read,
    serial_of,
    within,
)
from ansible.module_utils.kdist_disk_plan import (
    MAKING,
    USING,
    Action,
    Plan,
    Probe,
    Wanted,
    fstab_line,
    fstab_with,
    is_entry,
    plan,
)

DOCUMENTATION = """
module: kdist_disk
short_description: Prepare and mount one data disk
description:
  - Formats a blank disk, mounts one of ours, refuses a foreign one, and reports one that is absent.
  - Never fails for what a disk shows; C(problem) says what is wrong with it.
options:
  id: {type: str, required: true, description: The disk's id, such as d01.}
  device: {type: path, required: true, description: Its stable name.}
  serial: {type: str, default: "", description: The serial it has to have.}
  state: {type: str, default: active, choices: [active, failed, retired], description: Its state.}
  cluster: {type: str, required: true, description: The cluster's name, for the marker.}
  broker: {type: int, required: true, description: The broker's id, for label and marker.}
  mount: {type: path, required: true, description: The mount point.}
  options: {type: str, required: true, description: Mount options for fstab.}
  owner: {type: str, required: true, description: Who owns the log's directory.}
  group: {type: str, required: true, description: Its group.}
  bytes_min: {type: int, default: 0, description: A smaller blank disk is refused.}
  wipe: {type: bool, default: false, description: Whether foreign data may be destroyed.}
author: The kdist authors
"""

EXAMPLES = """
- name: Prepare a disk
  kdist_disk:
    id: d01
    device: /dev/disk/by-id/ata-ST8000NM0055-1RM112_ZA1AB101
    cluster: production-dc1
    broker: 101
    mount: /data/d01
    options: noatime,nofail
    owner: kdist
    group: kdist
"""

RETURN = """
action: {type: str, returned: always, description: What the plan was.}
problem: {type: str, returned: always, description: What is wrong, in words; empty if nothing is.}
hangs: {type: bool, returned: always, description: Whether the disk did not answer in time.}
usable: {type: bool, returned: always, description: Whether the disk can have a broker.}
steps: {type: list, elements: str, returned: always, description: What was done, or would be.}
not_applied: {type: list, elements: str, returned: always, description: What the host refused.}
"""

LOOK_S = 60  # a disk that sleeps answers after some seconds
ACT_S = 900  # a large disk takes minutes to be discarded, or to recover its filesystem's log
FSTAB = Path("/etc/fstab")
MARKER = "disk.json"
UNKNOWN = "data without a known signature"
LOG_DIRECTORY = "kdist"
# A mount namespace's /mnt: nobody else sees what is mounted there, and it goes with the shell.
LOOK = (
    'mount -t xfs -o ro,norecovery "$1" /mnt && ls -A /mnt && echo // '
    f"&& if [ -e /mnt/{MARKER} ]; then cat /mnt/{MARKER}; fi"
)
# The marker is on the disk before the log's directory: a broker starts only on a finished disk.
# Unmounting writes XFS's own log out, so that a look without recovery finds the marker ever after.
FINISH = (
    'set -e; mount -t xfs -o noatime "$1" /mnt; cat > /mnt/new.json; sync /mnt/new.json; '
    f"chmod 0644 /mnt/new.json; mv /mnt/new.json /mnt/{MARKER}; "
    f'install -d -o "$2" -g "$3" -m 0750 /mnt/{LOG_DIRECTORY}; umount /mnt'
)
UNDERNEATH = 'mount --bind "$1" /mnt && cd /mnt && stat -c %u:%g:%a "$2" && lsattr -d "$2"'
GUARD = (
    'set -e; mount --bind "$1" /mnt; cd /mnt; chattr -i "$2" 2>/dev/null || true; '
    'chown 0:0 "$2"; chmod 0000 "$2"; chattr +i "$2"'
)


class Host:
    """The host's view of one disk, and what can be done to it."""

    def __init__(self, module: AnsibleModule, wanted: Wanted) -> None:
        self.module = module
        self.wanted = wanted
        self.steps: list[str] = []
        self.not_applied: list[str] = []

    def run(self, *command: str, data: str | None = None) -> tuple[int, str, str]:
        code, out, err = self.module.run_command(list(command), data=data, handle_exceptions=False)
        return code, out, err.strip() or out.strip()

    def apart(self, script: str, *words: str, data: str | None = None) -> tuple[int, str, str]:
        """Runs a script in a mount namespace of its own."""
        return self.run("unshare", "--mount", "sh", "-c", script, "sh", *words, data=data)

    def must(self, *command: str) -> None:
        code, _, err = self.run(*command)
        if code:
            raise DiskError(f"{' '.join(command)}: {err}")

    # --- looking ---

    def probe(self) -> Probe:
        """What the host shows of the disk."""
        in_fstab = any(is_entry(line, self.wanted.mount) for line in fstab().splitlines())
        number = device_number(self.wanted.device)
        block = Path(f"/sys/dev/block/{number}")
        size = read(block / "size")
        if not number or size in ("", "0"):
            return Probe(in_fstab=in_fstab, mounted=bool(mounts_at(self.wanted.mount)))
        mounted, used_by, taken = self.users(number, block)
        facts: dict[str, Any] = {
            "present": True,
            "bytes": int(size) * 512,
            "serial": serial_of(block),
            "mounted": mounted,
            "used_by": used_by,
            "mount_taken_by": taken,
            "in_fstab": in_fstab,
        }
        return Probe(**facts, **(self.look_mounted() if mounted else self.look_at_contents()))

    def users(self, number: str, block: Path) -> tuple[bool, str, str]:
        """Whether it is mounted where it belongs, who else uses it, what is in its place."""
        parts = {read(part.parent / "dev"): part.parent.name for part in block.glob("*/partition")}
        places = {place for dev, place in mounts() if dev == number or dev in parts}
        at_home = mounts_at(self.wanted.mount)
        holders = sorted(p.name for p in [*block.glob("holders/*"), *block.glob("*/holders/*")])
        swaps = [line.split()[0] for line in Path("/proc/swaps").read_text().splitlines()[1:]]
        swapping = [f"swap on {s}" for s in swaps if device_number(s) in {number, *parts}]
        mounted = number in at_home
        elsewhere = [] if mounted else [f"mounted at {place}" for place in sorted(places)]
        taken = ", ".join(sorted(at_home - {number}))
        return mounted, ", ".join([*elsewhere, *holders, *swapping]), taken and f"device {taken}"

    def look_mounted(self) -> dict[str, Any]:
        try:
            text = Path(self.wanted.mount, MARKER).read_text()
            return {"signatures": ("xfs",), "marker": parse(text), "uuid": self.signature()[2]}
        except FileNotFoundError:
            return {"signatures": ("xfs",)}
        except OSError as error:
            return {"error": str(error.strerror)}
        except DiskError as error:
            return {"error": str(error)}

    def look_at_contents(self) -> dict[str, Any]:
        try:
            types, label, uuid = self.signature()
            types = types or ((UNKNOWN,) if has_data(self.wanted.device) else ())
        except DiskError as error:
            return {"error": str(error)}
        except OSError as error:
            return {"error": str(error.strerror)}
        found: dict[str, Any] = {"signatures": types, "label": label, "uuid": uuid}
        if types == ("xfs",) and label.startswith("kd"):
            code, out, err = self.apart(LOOK, self.wanted.device)
            if code:
                return found | {"damage": err}
            names, _, text = out.partition("//\n")
            found["marker"] = parse(text) if text else None
            found["empty"] = not set(names.split()) - {MARKER, "new.json", LOG_DIRECTORY}
        return found

    def signature(self) -> tuple[tuple[str, ...], str, str]:
        """Types of all that is written on the disk, and label and UUID of the first."""
        code, out, err = self.run("wipefs", "--no-act", "--json", self.wanted.device)
        if code:
            raise DiskError(err)
        found = json.loads(out)["signatures"] if out.strip() else []
        first = found[0] if found else {}
        types = tuple(dict.fromkeys(str(each["type"]) for each in found))
        return types, str(first.get("label") or ""), str(first.get("uuid") or "")

    # --- acting ---

    def step(self, sentence: str) -> bool:
        """Notes a step; whether it is to be taken."""
        self.steps.append(sentence)
        return not self.module.check_mode

    def carry_out(self, plan: Plan, uuid: str) -> None:
        if plan.action is Action.RELEASE:
            self.release()
        if self.wanted.state == "active":
            self.guard()
        if plan.action not in USING:
            return
        if plan.action in MAKING:
            uuid = self.make(plan.action, uuid)
        self.write_fstab(fstab_line(self.wanted, uuid, self.module.params["options"]))
        if plan.action is not Action.KEEP and self.step(f"mounted {self.wanted.mount}"):
            self.must("mount", self.wanted.mount)
        if plan.action is Action.KEEP or not self.module.check_mode:
            self.own_log_directory()

    def attempt(self, plan: Plan, uuid: str) -> tuple[list[str], list[str], str]:
        """What was done, what the host refused, and what went wrong, in words."""
        error = ""
        try:
            self.carry_out(plan, uuid)
        except (DiskError, OSError) as met:
            error = str(met)
        return self.steps, self.not_applied, error

    def make(self, action: Action, uuid: str) -> str:
        """Makes the filesystem and its marker; its UUID, which check mode does not know."""
        device = self.wanted.device
        if action is Action.WIPE and self.step(f"wiped {device}"):
            self.must("wipefs", "--all", device)
        if action is not Action.FINISH and self.step(f"formatted {device}"):
            self.must("mkfs.xfs", "-q", "-L", self.wanted.label, device)  # never -f
        if self.step(f"wrote the marker of {self.wanted.id}"):
            text = json.dumps(self.wanted.marker) + "\n"
            owner, group = (self.module.params[key] for key in ("owner", "group"))
            code, _, err = self.apart(FINISH, device, owner, group, data=text)
            if code:
                raise DiskError(f"cannot write the marker: {err}")
        return uuid if self.module.check_mode else self.signature()[2]

    def guard(self) -> None:
        """The mount point itself is immutable: without its disk nothing can be written there."""
        place = self.wanted.mount
        parent, name = os.path.split(place)
        # A dead filesystem answers no question about its mount point, so that is not asked there.
        if not mounts_at(place) and not os.path.lexists(place):
            if not self.step(f"made {place}"):
                return
            os.makedirs(place)
        code, out, _ = self.apart(UNDERNEATH, parent, name)
        owner, _, attributes = out.partition("\n")
        if code or not may_make_immutable():
            self.not_applied.append(f"{place}: it cannot be made immutable")
            guarded = owner == "0:0:0"
        else:
            guarded = owner == "0:0:0" and "i" in attributes.partition(" ")[0]
        if not guarded and self.step(f"guarded {place}"):
            code, _, err = self.apart(GUARD, parent, name)
            if code and may_make_immutable():
                raise DiskError(f"cannot guard {place}: {err}")

    def write_fstab(self, line: str) -> None:
        """Rewrites the entry, and lets systemd know before anything is mounted: it would unmount
        at once what its old idea of the mount point says is on a disk that has gone."""
        old = fstab()
        new = fstab_with(old, self.wanted.mount, line)
        if new != old and self.step(f"wrote the entry of {self.wanted.mount} in fstab"):
            fresh = FSTAB.with_name("fstab.kdist")
            fresh.write_text(new)
            fresh.chmod(0o644)
            self.module.atomic_move(str(fresh), str(FSTAB))
            self.must("systemctl", "daemon-reload")

    def own_log_directory(self) -> None:
        owner, group = (self.module.params[key] for key in ("owner", "group"))
        where = Path(self.wanted.mount, LOG_DIRECTORY)
        if not belongs_to(where, owner, group) and self.step(f"gave {where} to {owner}"):
            self.must("install", "-d", "-o", owner, "-g", group, "-m", "0750", str(where))

    def release(self) -> None:
        if mounts_at(self.wanted.mount) and self.step(f"unmounted {self.wanted.mount}"):
            self.must("umount", self.wanted.mount)
        self.write_fstab("")


class DiskError(Exception):
    """What a disk, or a command about it, did not do."""


def fstab() -> str:
    return FSTAB.read_text() if FSTAB.exists() else ""


def parse(text: str) -> dict[str, object]:
    """A marker file's content; what is no marker is at least not ours."""
    try:
        found = json.loads(text)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


ARGUMENTS: dict[str, dict[str, Any]] = {
    "id": {"type": "str", "required": True},
    "device": {"type": "path", "required": True},
    "serial": {"type": "str", "default": ""},
    "state": {"type": "str", "default": "active", "choices": ["active", "failed", "retired"]},
    "cluster": {"type": "str", "required": True},
    "broker": {"type": "int", "required": True},
    "mount": {"type": "path", "required": True},
    "options": {"type": "str", "required": True},
    "owner": {"type": "str", "required": True},
    "group": {"type": "str", "required": True},
    "bytes_min": {"type": "int", "default": 0},
    "wipe": {"type": "bool", "default": False},
}
ABOUT_THE_MOUNT = {"options", "owner", "group"}


def main() -> None:
    """Looks, decides, acts, and says what is wrong without failing: other disks are to go on."""
    module = AnsibleModule(argument_spec=ARGUMENTS, supports_check_mode=True)
    wanted = Wanted(**{k: v for k, v in module.params.items() if k not in ABOUT_THE_MOUNT})
    host = Host(module, wanted)
    decided, problems, hangs = Plan(Action.REPORT), [], False
    steps: list[str] = []
    not_applied: list[str] = []
    try:
        probe = read_probe(within(LOOK_S, lambda: asdict(host.probe())))
        decided = plan(wanted, probe)
        if decided.action in {Action.REPORT, Action.REFUSE}:
            problems.append(decided.reason)
        steps = [f"began to {decided.action.value}"]  # for one that hangs in the midst of it
        steps, not_applied, error = within(ACT_S, lambda: host.attempt(decided, probe.uuid))
        problems.append(error)
    except OSError as error:
        hangs = isinstance(error, TimeoutError)
        problems.append(str(error))
    problem = "; ".join(filter(None, problems))
    module.exit_json(
        changed=bool(steps),
        action=decided.action.value,
        problem=problem and f"{wanted.id} ({wanted.device}) {problem}",
        hangs=hangs,
        usable=decided.action in USING and not problem,
        steps=steps,
        not_applied=not_applied,
    )


def read_probe(said: dict[str, Any]) -> Probe:
    """A probe that has been through JSON."""
    return Probe(**said | {"signatures": tuple(said["signatures"])})


if __name__ == "__main__":
    main()
