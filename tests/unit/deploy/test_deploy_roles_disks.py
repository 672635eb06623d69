"""What happens to a data disk follows from the inventory and from what the host shows."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible.parsing.dataloader import DataLoader  # type: ignore[import-untyped]
from ansible.template import Templar, trust_as_template  # type: ignore[import-untyped]
from deploy_plays import play
from deploy_plugins import ROOT, load

disk = load("roles/kdist_disks/module_utils/kdist_disk_plan.py")
host = load("roles/kdist_disks/module_utils/kdist_disk_host.py")
Action = disk.Action

WANTED = disk.Wanted(
    id="d01",
    device="/dev/disk/by-id/one",
    mount="/data/d01",
    cluster="lab-dc1",
    broker=101,
    bytes_min=300,
)
OURS: dict[str, Any] = {"cluster": "lab-dc1", "broker": 101, "disk": "d01"}
BLANK = disk.Probe(present=True, bytes=400)
XFS = replace(BLANK, signatures=("xfs",), label="kd101-d01", uuid="u", empty=True)
MOUNTED = replace(XFS, label="", mounted=True, marker=OURS, in_fstab=True)
EXT4 = replace(BLANK, signatures=("ext4",), label="precious")

CASES = [
    ("blank", BLANK, Action.FORMAT, ""),
    (
        "blank and too small",
        replace(BLANK, bytes=299),
        Action.REFUSE,
        "has 299 bytes, less than 300",
    ),
    ("ours", replace(XFS, marker=OURS), Action.MOUNT, ""),
    ("ours with records", replace(XFS, marker=OURS, empty=False), Action.MOUNT, ""),
    ("ours and mounted", MOUNTED, Action.KEEP, ""),
    ("formatted without a marker", XFS, Action.FINISH, ""),
    (
        "our label over something",
        replace(XFS, empty=False),
        Action.REFUSE,
        "holds xfs labelled kd101-d01",
    ),
    ("another label", replace(XFS, label="home"), Action.REFUSE, "holds xfs labelled home"),
    (
        "another cluster's",
        replace(XFS, marker=OURS | {"cluster": "prod-dc1"}),
        Action.REFUSE,
        "holds disk d01 of broker 101 of cluster prod-dc1",
    ),
    (
        "another broker's",
        replace(XFS, label="kd102-d02", marker=OURS | {"broker": 102, "disk": "d02"}),
        Action.REFUSE,
        "holds disk d02 of broker 102 of cluster lab-dc1",
    ),
    (
        "mounted with another's marker",
        replace(MOUNTED, marker=OURS | {"broker": 7}),
        Action.REFUSE,
        "is mounted, and holds disk d01 of broker 7 of cluster lab-dc1",
    ),
    ("foreign", EXT4, Action.REFUSE, "holds ext4 labelled precious"),
    ("two signatures", replace(BLANK, signatures=("xfs", "gpt")), Action.REFUSE, "holds xfs, gpt"),
    (
        "data without a signature",
        replace(BLANK, signatures=("data without a known signature",)),
        Action.REFUSE,
        "holds data without a known signature",
    ),
    (
        "half made, or damaged",
        replace(XFS, empty=False, damage="wrong fs type"),
        Action.REFUSE,
        "holds xfs labelled kd101-d01 that cannot be mounted: wrong fs type",
    ),
    ("absent", disk.Probe(), Action.REPORT, "is absent"),
    ("unreadable", replace(XFS, error="I/O error"), Action.REPORT, "cannot be read: I/O error"),
    (
        "mounted elsewhere",
        replace(EXT4, used_by="mounted at /"),
        Action.REFUSE,
        "is in use: mounted at /",
    ),
    (
        "its place is taken",
        replace(BLANK, mount_taken_by="device 8:1"),
        Action.REFUSE,
        "finds device 8:1 at /data/d01",
    ),
]


@pytest.mark.parametrize(("name", "probe", "action", "reason"), CASES, ids=[c[0] for c in CASES])
def test_an_active_disk_gets_the_steps_that_its_state_asks_for(
    name: str, probe: Any, action: Any, reason: str
) -> None:
    assert disk.plan(WANTED, probe) == disk.Plan(action, reason)


def test_a_disk_with_another_serial_is_refused_even_when_blank() -> None:
    probe = replace(BLANK, serial="Z2")
    assert disk.plan(replace(WANTED, serial="Z1"), probe).reason == "has the serial Z2, not Z1"
    assert disk.plan(replace(WANTED, serial="Z2"), probe).action is Action.FORMAT


def test_a_host_that_reports_no_serials_is_trusted() -> None:
    assert disk.plan(replace(WANTED, serial="Z1"), BLANK).action is Action.FORMAT


@pytest.mark.parametrize("state", ["failed", "retired"])
def test_a_disk_out_of_service_is_released_once(state: str) -> None:
    wanted = replace(WANTED, state=state)
    assert disk.plan(wanted, MOUNTED).action is Action.RELEASE
    assert disk.plan(wanted, disk.Probe(in_fstab=True)).action is Action.RELEASE
    assert disk.plan(wanted, disk.Probe()).action is Action.LEAVE
    assert disk.plan(wanted, BLANK).action is Action.LEAVE


def test_only_a_foreign_disk_that_was_named_is_wiped() -> None:
    named = replace(WANTED, wipe=True)
    assert disk.plan(named, EXT4) == disk.Plan(Action.WIPE, "held ext4 labelled precious")
    assert disk.plan(named, replace(XFS, marker=OURS)).action is Action.MOUNT
    assert disk.plan(named, replace(XFS, empty=False, damage="x")).action is Action.WIPE
    assert disk.plan(named, BLANK).action is Action.FORMAT
    assert disk.plan(named, replace(EXT4, used_by="swap on /dev/sdb")).action is Action.REFUSE


def test_no_disk_with_a_signature_is_formatted_whatever_else_it_shows() -> None:
    """Over every combination of what a disk may show, with and without being named."""
    shown = product(
        [("xfs",), ("ext4",), ("gpt",)],
        ["", "kd101-d01"],
        [None, OURS, {}],
        [False, True],
        [False, True],
        [False, True],
    )
    for signatures, label, marker, empty, mounted, wipe in shown:
        probe = replace(BLANK, signatures=signatures, label=label, marker=marker)
        probe = replace(probe, empty=empty, mounted=mounted)
        action = disk.plan(replace(WANTED, wipe=wipe), probe).action
        assert action is not Action.FORMAT
        assert wipe or action is not Action.WIPE
        assert not (mounted and action is Action.WIPE)


def test_a_disk_that_begins_with_anything_but_zeroes_has_data(tmp_path: Path) -> None:
    image = tmp_path / "disk"
    image.write_bytes(bytes(2 << 20))
    assert not host.has_data(str(image))
    image.write_bytes(bytes((1 << 20) - 1) + b"x")
    assert host.has_data(str(image))


def test_a_directory_of_a_user_whom_the_host_does_not_know_is_not_ours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    user, group = tmp_path.owner(), tmp_path.group()
    assert host.belongs_to(tmp_path, user, group)
    assert not host.belongs_to(tmp_path / "absent", user, group)

    def unknown(_: Path) -> str:
        raise KeyError("uid not found: 8921")

    monkeypatch.setattr(Path, "owner", unknown)
    assert not host.belongs_to(tmp_path, user, group)


@pytest.mark.parametrize(
    ("device", "names"),
    [
        ("/dev/disk/by-id/one", ["b2:d01", "Z1", "/dev/disk/by-id/one"]),
        ("/dev/disk/by-path/pci-0", ["b2:d01", "Z1"]),
        ("/dev/disk/by-label/data1", ["b2:d01", "Z1"]),
        ("/dev/disk/by-partlabel/data1", ["b2:d01", "Z1"]),
    ],
)
def test_a_disk_to_be_wiped_is_named_by_a_unique_identifier(device: str, names: list[str]) -> None:
    tasks = yaml.safe_load((ROOT / "roles/kdist_disks/tasks/configure.yml").read_text())
    given = {"id": "d01", "serial": "Z1", "device": device}
    variables = {"inventory_hostname": "b2", "kdist_disks_disk": given}
    templar = Templar(loader=DataLoader(), variables=variables)
    found = templar.template(trust_as_template(tasks[0]["vars"]["kdist_disks_names"]))
    assert list(found) == names


def test_the_longest_label_fits_into_xfs() -> None:
    assert len(replace(WANTED, broker=999999, id="d99").label) == 12


def test_an_entry_is_put_into_fstab_where_the_old_one_stood() -> None:
    old = "UUID=b /data/d01 xfs noatime 0 0"
    before = f"# root\nUUID=a / ext4 x 0 1\n{old}\nUUID=c /data/d02 xfs x 0 0\n"
    line = disk.fstab_line(WANTED, "n", "noatime,nofail")
    after = disk.fstab_with(before, "/data/d01", line)
    assert after == before.replace(old, line)
    assert disk.fstab_with(after, "/data/d01", line) == after


def test_an_entry_is_added_to_fstab_and_taken_out_again() -> None:
    for before in ("", "UUID=a / ext4 defaults 0 1\n", "UUID=a / ext4 defaults 0 1"):
        after = disk.fstab_with(before, "/data/d01", "UUID=n /data/d01 xfs noatime 0 0")
        assert after.endswith("\nUUID=n /data/d01 xfs noatime 0 0\n") or not before
        assert disk.fstab_with(after, "/data/d01", "").strip() == before.strip()


def test_commented_and_duplicate_entries_are_handled() -> None:
    before = "#UUID=z /data/d01 xfs x 0 0\nUUID=a /data/d01 xfs x 0 0\nUUID=b /data/d01 xfs x 0 0\n"
    assert disk.fstab_with(before, "/data/d01", "NEW") == "#UUID=z /data/d01 xfs x 0 0\nNEW\n"


# A disk that hangs


def raising(error: Exception) -> Callable[[], None]:
    def work() -> None:
        raise error

    return work


def test_what_a_look_finds_or_raises_comes_from_its_process() -> None:
    assert host.within(30, lambda: {"signatures": ("xfs",)}) == {"signatures": ["xfs"]}
    with pytest.raises(OSError, match="it is gone"):
        host.within(30, raising(ValueError("it is gone")))
    with pytest.raises(OSError, match="timed out") as raised:
        host.within(30, raising(TimeoutError("timed out")))  # a disk's error, and no hang
    assert raised.type is OSError
    with pytest.raises(OSError, match="nothing was said"):
        host.within(30, partial(os._exit, 1))


HANGS = """\
from pathlib import Path
from kdist_disk_host import within
try:
    within(0.2, Path({hang!r}).read_text)
except TimeoutError as error:
    print(error)
"""


def test_nobody_waits_for_a_look_at_a_disk_that_hangs(hang: Path) -> None:
    """Nor does ssh, which ends when nobody has its output open any more."""
    command = [sys.executable, "-c", HANGS.format(hang=str(hang))]
    place = str(ROOT / "roles/kdist_disks/module_utils")
    done = subprocess.run(
        command, env={"PYTHONPATH": place}, capture_output=True, check=True, timeout=60
    )
    assert done.stdout == b"does not answer within 0.2 s\n"


@pytest.fixture
def hang(tmp_path: Path) -> Iterator[Path]:
    """A file whose reader waits, until the test is over."""
    path = tmp_path / "hang"
    os.mkfifo(path)
    yield path
    os.close(os.open(path, os.O_RDWR))


@pytest.mark.parametrize(
    ("where", "action", "steps"),
    [
        ("host.probe()", "report", "[]"),
        ("host.attempt(decided, probe.uuid)", "format", "['began to format']"),
    ],
)
def test_a_disk_that_hangs_is_told_of_and_the_next_one_prepared(
    tmp_path: Path, hang: Path, monkeypatch: pytest.MonkeyPatch, where: str, action: str, steps: str
) -> None:
    role = tmp_path / "role"
    shutil.copytree(ROOT / "roles/kdist_disks", role)
    module = role / "library/kdist_disk.py"
    text = module.read_text().replace("_S = 60", "_S = 1").replace("_S = 900", "_S = 1")
    blank = "asdict(Probe(present=True, bytes=400))"
    waits = f"Path({str(hang)!r}).read_text() if wanted.id == 'd01' else "
    if where == "host.probe()":
        text = text.replace("asdict(host.probe())", f"{waits}{blank}")
    else:
        text = text.replace("asdict(host.probe())", blank)
        text = text.replace("host.attempt(decided, ", f"{waits}host.attempt(decided, ")
    text = text.replace("self.carry_out(plan, uuid)", "pass")
    module.write_text(text)
    monkeypatch.setenv("ANSIBLE_LIBRARY", str(role / "library"))
    monkeypatch.setenv("ANSIBLE_MODULE_UTILS", str(role / "module_utils"))
    given = {"id": "{{ item }}", "device": "/dev/{{ item }}", "mount": "/data/{{ item }}"}
    given |= {"cluster": "c", "broker": 101, "options": "noatime", "owner": "o", "group": "g"}
    look = {"kdist_disk": given, "loop": ["d01", "d02"], "register": "found"}
    rows = (
        "{{ item.action }} {{ item.hangs }} {{ item.usable }} {{ item.steps }} {{ item.problem }}"
    )
    tell = {"debug": {"msg": rows}, "loop": "{{ found.results }}", "loop_control": {"label": ""}}
    done = play(tmp_path, {"hosts": "a", "gather_facts": False, "tasks": [look, tell]})
    said = " ".join(done.stdout.split())
    assert f"{action} True False {steps} d01 (/dev/d01) does not answer within 1 s" in said, said
    assert "format False True [] " in said


def test_disks_that_hang_are_not_done_with() -> None:
    """Unlike those that are absent, which wait for a person without anybody's harm."""
    row = {
        "kdist_disks_problems": ["d01 hangs", "d02 is absent"],
        "kdist_disks_hung": {"d01": "d01 hangs"},
    }
    found = load("playbooks/filter_plugins/kdist_summary.py").kdist_summary({"b": row}, "b", "b")
    assert found == {"undone": ["b: d01 hangs"], "notices": ["b: d02 is absent"]}


def test_a_disk_that_hangs_is_told_of_once_whoever_has_met_it() -> None:
    row = {
        "kdist_disks_hung": {"d01": "d01 (/dev/x) does not answer within 60 s"},
        "kdist_broker_hung": {
            "d01": "/data/d01 does not answer, and its broker is left alone",
            "d02": "/data/d02 does not answer, and its broker is left alone",
        },
    }
    found = load("playbooks/filter_plugins/kdist_summary.py").kdist_summary({"b": row}, "b", "b")
    assert found["undone"] == [
        "b: d01 (/dev/x) does not answer within 60 s",
        "b: /data/d02 does not answer, and its broker is left alone",
    ]
