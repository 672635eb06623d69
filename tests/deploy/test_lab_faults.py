"""The lab on this machine: each fault has its effect, and `down` leaves nothing behind."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.deploy.faults_lab import FaultsLab

pytestmark = [pytest.mark.lab, pytest.mark.timeout(1200)]


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FaultsLab]:
    """Two hosts, up."""
    lab = FaultsLab(tmp_path_factory.mktemp("lab"))
    lab.do("down")
    try:
        lab.do("up")
        yield lab
    finally:
        lab.do("down")


@pytest.fixture
def disk(lab: FaultsLab) -> Iterator[str]:
    """A new disk in f2, mounted on /data/d01."""
    lab.new_disk()
    yield "/data/d01"
    lab.do("disk", "thaw", "f2", "d01")


def test_hosts_are_up_with_systemd_and_know_each_other(lab: FaultsLab) -> None:
    assert lab.inside("f1", "systemctl is-system-running") == "running"
    assert lab.inside("f1", "hostname; getent hosts f2 | cut -d' ' -f1") == "f1\n198.18.1.12"
    assert "Up: f1, f2." in lab.do("up")


def test_packages_start_nothing_of_themselves(lab: FaultsLab) -> None:
    assert lab.try_to("ssh", "f1", "/usr/sbin/policy-rc.d")[0] == 101
    for unit in ("prometheus", "prometheus-alertmanager", "prometheus-node-exporter", "chrony"):
        assert lab.try_to("ssh", "f1", f"systemctl is-active {unit}")[1] == "inactive"


def test_a_setting_of_the_machine_is_the_hosts_own(lab: FaultsLab) -> None:
    machines = Path("/proc/sys/vm/max_map_count").read_text()
    lab.inside("f1", "sysctl --quiet --write vm.max_map_count=123457")
    assert lab.inside("f1", "sysctl --values vm.max_map_count") == "123457"
    assert lab.inside("f2", "sysctl --values vm.max_map_count") == machines.strip()
    assert Path("/proc/sys/vm/max_map_count").read_text() == machines


def test_a_units_limit_of_memory_holds(lab: FaultsLab) -> None:
    eat = "python3 -c 'bytearray(200 << 20)'"
    limited = (
        f"systemd-run --quiet --wait --property=MemoryMax=64M --property=MemorySwapMax=0 {eat}"
    )
    assert lab.try_to("ssh", "f1", limited)[0] != 0


def test_a_cut_is_silent_until_healed(lab: FaultsLab) -> None:
    lab.do("cut", "f1", "f2")
    assert not lab.hears("f1", "f2")
    assert len(lab.status()["cut"]) == 2
    lab.do("heal")
    assert lab.hears("f1", "f2")
    assert lab.status()["cut"] == []


def test_a_cut_of_one_way_lets_the_other_through(lab: FaultsLab) -> None:
    lab.do("cut", "f1", "f2", "--one-way")
    listen = "timeout 20 nc -u -l -p 7777 -W 1 >/tmp/heard 2>&1 </dev/null"
    lab.inside("f1", f"systemd-run --quiet --unit=heard sh -c '{listen}'")
    lab.await_output("f1", "ss -Hlun sport = 7777 | wc -l", "1")
    lab.inside("f2", "echo word | nc -u -w 1 f1 7777")
    lab.await_output("f1", "cat /tmp/heard", "word")
    assert not lab.hears("f1", "f2")
    lab.do("heal")


def test_a_frozen_host_is_silent_and_goes_on_where_it_stood(lab: FaultsLab) -> None:
    before = lab.inside("f2", "cat /proc/sys/kernel/random/boot_id; systemctl show -p MainPID ssh")
    lab.do("freeze", "f2")
    assert lab.state("f2") == "frozen"
    assert lab.try_to("ssh", "f1", "timeout 1 nc f2 22")[1] == ""
    for command in (("kill", "f2", "ssh"), ("up", "f2")):
        assert lab.try_to(*command) == (1, "lab: f2 is frozen: `python -m lab thaw f2`")
    lab.do("thaw", "f2")
    same = lab.inside("f2", "cat /proc/sys/kernel/random/boot_id; systemctl show -p MainPID ssh")
    assert same == before


def test_a_killed_unit_is_started_again_by_systemd(lab: FaultsLab) -> None:
    restarts = "systemctl show --value -p NRestarts prometheus-node-exporter"
    lab.inside("f1", "systemctl start prometheus-node-exporter")
    lab.do("kill", "f1", "prometheus-node-exporter")
    lab.await_output("f1", restarts, "1")
    status, said = lab.try_to("kill", "f1", "chrony")
    assert (status, said) == (1, "lab: chrony does not run on f1")


def test_a_dead_disk_gives_errors_and_a_new_one_is_blank(lab: FaultsLab, disk: str) -> None:
    lab.inside("f2", f"echo kept >{disk}/file && sync {disk}/file")
    lab.do("disk", "dead", "f2", "d01")
    assert "Input/output error" in lab.try_to("ssh", "f2", f"cat {disk}/file")[1]
    assert lab.try_to("ssh", "f2", f"umount {disk}; mount {disk}; cat {disk}/file")[0] != 0
    lab.new_disk()
    assert lab.inside("f2", f"ls {disk}") == ""


def test_a_disk_that_is_pulled_has_no_name_over_a_restart(lab: FaultsLab, disk: str) -> None:
    lab.do("disk", "pull", "f2", "d01")
    assert lab.inside("f2", "ls /dev/disk/by-id") == ""
    assert lab.status()["hosts"]["f2"]["disks"] == {"d01": "-"}
    assert "Input/output error" in lab.try_to("ssh", "f2", f"ls {disk}")[1]
    status, said = lab.try_to("disk", "dead", "f2", "d01")
    assert (status, said) == (1, "lab: disk d01 of f2 is pulled: `swap` brings a new one")
    lab.do("reboot", "f2")
    assert lab.inside("f2", "ls /dev/disk/by-id") == ""
    lab.new_disk()


def test_a_full_disk_has_room_again_after_thaw(lab: FaultsLab, disk: str) -> None:
    write = f"dd if=/dev/zero of={disk}/file bs=64k count=1"
    lab.do("disk", "full", "f2", "d01")
    assert "No space left" in lab.try_to("ssh", "f2", write)[1]
    lab.do("disk", "thaw", "f2", "d01")
    lab.inside("f2", write)


def test_a_slow_disk_writes_as_slowly_as_told(lab: FaultsLab, disk: str) -> None:
    write = f"dd if=/dev/zero of={disk}/file bs=512k count=8 oflag=direct 2>&1"
    seconds = write + " | awk 'END { print $(NF-3) }'"
    lab.do("disk", "slow", "f2", "d01", "--mib", "2")
    assert float(lab.inside("f2", seconds)) > 1.5
    lab.do("disk", "thaw", "f2", "d01")
    assert float(lab.inside("f2", seconds)) < 1.5


def test_a_hanging_disk_makes_writers_wait_until_thaw(lab: FaultsLab, disk: str) -> None:
    lab.do("disk", "hang", "f2", "d01")
    writer = f"sh -c 'echo x >{disk}/file'"
    lab.inside(
        "f2", f"systemd-run --quiet --unit=writer --property=Type=oneshot --no-block {writer}"
    )
    lab.await_output("f2", "systemctl is-active writer || true", "activating")
    lab.do("disk", "thaw", "f2", "d01")
    lab.await_output("f2", f"cat {disk}/file", "x")


def test_a_power_cut_loses_what_was_not_synced(lab: FaultsLab, disk: str) -> None:
    lab.inside("f2", f"echo synced >{disk}/synced && sync {disk} {disk}/synced")
    lab.inside("f2", f"echo lost >{disk}/lost")
    lab.do("pull", "f2")
    assert lab.state("f2") == "off"
    lab.do("on", "f2")
    assert lab.inside("f2", f"cat {disk}/synced") == "synced"
    assert lab.try_to("ssh", "f2", f"grep lost {disk}/lost")[0] != 0


def test_nobody_hears_of_a_power_cut(lab: FaultsLab) -> None:
    # An idle connection stays open, since the dead host sent neither a FIN nor a reset.
    lab.inside("f1", "systemd-run --quiet --unit=talk --property=StandardInput=null nc -d f2 22")
    lab.await_output("f1", "ss -Htn state established dport = 22 | wc -l", "1")
    lab.do("pull", "f2")
    assert lab.inside("f1", "ss -Htn state established dport = 22 | wc -l") == "1"
    lab.do("on", "f2")


def test_a_reboot_is_a_new_boot_with_the_same_files(lab: FaultsLab, disk: str) -> None:
    boot = "cat /proc/sys/kernel/random/boot_id"
    before = lab.inside("f2", f"echo kept >{disk}/file; {boot}")
    lab.do("freeze", "f2")
    lab.do("reboot", "f2")
    assert lab.inside("f2", boot) != before
    assert lab.inside("f2", f"cat {disk}/file") == "kept"


def test_a_host_that_is_off_comes_back(lab: FaultsLab) -> None:
    lab.do("off", "f1")
    assert lab.state("f1") == "off"
    assert lab.try_to("freeze", "f1") == (1, "lab: f1 is off: `python -m lab on f1`")
    lab.do("on", "f1")
    assert lab.state("f1") == "running"


def test_a_slow_link_has_its_limit_at_both_ends(lab: FaultsLab) -> None:
    lab.do("net-slow", "f1", "--mbit", "8")
    assert "8Mbit" in lab.do("run", "tc", "qdisc", "show", "dev", "vb-f1")
    assert "8Mbit" in lab.inside("f1", "tc qdisc show dev host0")
    for _ in range(2):  # also where there is no limit any more
        lab.do("net-slow", "f1", "--mbit", "0")
    assert "8Mbit" not in lab.do("run", "tc", "qdisc", "show", "dev", "vb-f1")


def test_up_writes_what_an_up_that_died_left_unwritten(lab: FaultsLab) -> None:
    lab.do("off", "f1")
    (lab.place.root("f1") / "root/.ssh/authorized_keys").unlink()
    lab.do("up", "f1")
    assert lab.inside("f1", "hostname") == "f1"


def test_down_leaves_nothing_behind_even_of_an_up_that_was_killed(tmp_path: Path) -> None:
    lab = FaultsLab(tmp_path)
    lab.do("down")
    assert lab.traces() == {}
    up = lab.start("up")
    lab.await_trace("loop")
    up.kill()
    up.communicate()
    assert {"loop", "mount", "netns", "cgroup", "directory"} <= set(lab.traces())
    roots = [path.stat() for path in lab.place.hosts.glob("*/root")]
    lab.do("down")
    assert lab.traces() == {}
    held = {path.name for path in Path("/run/systemd/nspawn/locks").iterdir()}
    assert held.isdisjoint(f"inode-{root.st_dev}:{root.st_ino}" for root in roots)
