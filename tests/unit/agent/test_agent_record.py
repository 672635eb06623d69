"""From psutil's view of a host to the agent's record."""

from __future__ import annotations

import json
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from kdist.agent.record import Identity, Progress, encode_record, make_record
from kdist.agent.smart import DiskHealth
from kdist.runtime.host import Look, command_of, look

ROOT = Path(__file__).parents[3]
IDENTITY = Identity("b1", "dc1", "r1")
HEALTH = DiskHealth("/dev/sda", "A disk", "S1", True, 31, 9000, 0, 0, 0, 2)
NOW_MS = 1_795_000_010_000


def cpu(**seconds: float) -> Any:
    modes = ("user", "nice", "system", "idle", "iowait", "irq", "softirq", "steal", "guest")
    return Tuple(**{mode: seconds.get(mode, 0.0) for mode in modes})


class Tuple(SimpleNamespace):
    """Stands in for psutil's named tuples."""

    def _asdict(self) -> dict[str, Any]:
        return vars(self)


def disk(busy_ms: int, reads: int = 4) -> Any:
    return Tuple(
        read_count=reads, write_count=5, read_bytes=4096, write_bytes=8192,
        read_time=7, write_time=9, busy_time=busy_ms,
    )  # fmt: skip


class Running:
    """A process as `psutil.process_iter` yields it."""

    def __init__(self, *argv: str, ends: bool = False) -> None:
        self.info = {"cmdline": list(argv)}
        self._ends = ends

    def as_dict(self, names: list[str]) -> dict[str, Any]:
        if self._ends:
            raise psutil.NoSuchProcess(41)
        said = {
            "pid": 41,
            "create_time": 1_795_000_000.5,
            "cpu_times": Tuple(user=1.5, system=0.25),
            "memory_info": Tuple(rss=1 << 20),
            "num_threads": 3,
            "num_fds": None,
        }
        return {name: said[name] for name in names}


class FixedHost:
    """psutil on a host where nothing changes."""

    def __init__(self, *processes: Running, dead_mount: str = "") -> None:
        self._processes = processes
        self._dead_mount = dead_mount
        self.disks: Any = {"sda": disk(100), "loop7": Tuple(read_count=0, write_count=0)}

    def boot_time(self) -> float:
        return 1_794_000_000.0

    def cpu_count(self) -> int:
        return 4

    def cpu_times(self) -> Any:
        return cpu(user=10, system=5, idle=80, iowait=5, guest=10)

    def getloadavg(self) -> tuple[float, float, float]:
        return (0.123, 1.0, 2.0)

    def virtual_memory(self) -> Any:
        return Tuple(total=1000, available=600, cached=300)

    def swap_memory(self) -> Any:
        return Tuple(total=50, used=5)

    def net_io_counters(self, pernic: bool) -> Any:
        assert pernic
        counted = Tuple(
            bytes_recv=1, bytes_sent=2, packets_recv=3, packets_sent=4,
            errin=5, errout=6, dropin=7, dropout=8,
        )  # fmt: skip
        return {"lo": counted, "eth0": counted}

    def disk_io_counters(self, perdisk: bool) -> Any:
        assert perdisk
        return self.disks

    def disk_partitions(self, all: bool) -> list[Any]:  # noqa: A002 - psutil's name
        assert not all
        return [
            Tuple(device="/dev/sda1", mountpoint="/", fstype="ext4"),
            Tuple(device="/dev/sda1", mountpoint="/bound", fstype="ext4"),
            Tuple(device="/dev/sdb", mountpoint="/data/d01", fstype="xfs"),
            Tuple(device="/dev/sr0", mountpoint="/cd", fstype="iso9660"),
        ]

    def disk_usage(self, mount: str) -> Any:
        if mount == self._dead_mount:
            raise OSError(5, "Input/output error")
        return Tuple(total=1000, free=400)

    def process_iter(self, names: list[str]) -> tuple[Running, ...]:
        assert names == ["cmdline"]
        return self._processes


def looked(host: FixedHost | None = None, timestamp_ms: int = NOW_MS) -> Look:
    return look(timestamp_ms, host or FixedHost())


def record(now: Look, before: Look | None = None) -> dict[str, Any]:
    return make_record(IDENTITY, Progress(7, 2), now, before, [HEALTH])


def test_a_record_has_its_host_and_time() -> None:
    made = record(looked())
    assert (made["host"], made["datacenter"], made["rack"]) == ("b1", "dc1", "r1")
    assert (made["timestamp_ms"], made["boot_ms"]) == (NOW_MS, 1_794_000_000_000)
    assert (made["schema"], made["sequence"], made["dropped_records"]) == (1, 7, 2)


def test_the_first_record_has_no_ratios() -> None:
    made = record(looked())
    assert made["cpu"]["busy_ratio"] is None
    assert made["disks"][0]["busy_ratio"] is None


def test_ratios_are_over_the_time_between_two_samples() -> None:
    before = looked(timestamp_ms=NOW_MS - 10_000)._replace(
        cpu_seconds=cpu(user=5, system=5, idle=70, iowait=0), disks={"sda": disk(0)}
    )
    now = looked()._replace(disks={"sda": disk(2_500)})
    made = record(now, before)
    assert made["cpu"]["busy_ratio"] == pytest.approx(5 / 20)  # 5 user of 5 + 10 idle + 5 iowait
    assert made["disks"][0]["busy_ratio"] == pytest.approx(0.25)


def test_a_guests_time_is_not_counted_twice() -> None:
    before = looked(timestamp_ms=NOW_MS - 10_000)._replace(cpu_seconds=cpu())
    now = looked()._replace(cpu_seconds=cpu(user=10, guest=10, idle=10))
    assert record(now, before)["cpu"]["busy_ratio"] == pytest.approx(0.5)


def test_no_time_between_two_samples_gives_no_ratio() -> None:
    assert record(looked(), looked())["cpu"]["busy_ratio"] is None


def test_a_clock_that_was_set_back_gives_no_ratio() -> None:
    later = looked(timestamp_ms=NOW_MS + 1)
    assert record(looked(), later)["disks"][0]["busy_ratio"] is None


def test_a_new_disk_has_no_ratio_yet() -> None:
    before = looked(timestamp_ms=NOW_MS - 10_000)._replace(disks={})
    assert record(looked(), before)["disks"][0]["busy_ratio"] is None


def test_the_loopback_and_unused_devices_are_left_out() -> None:
    made = record(looked())
    assert [each["interface"] for each in made["network"]] == ["eth0"]
    assert [each["device"] for each in made["disks"]] == ["sda"]


def test_a_host_without_disks_has_a_record() -> None:
    host = FixedHost()
    host.disks = None
    assert record(looked(host))["disks"] == []


def test_a_filesystem_is_reported_once_and_only_if_it_holds_data() -> None:
    assert [each["mount"] for each in record(looked())["filesystems"]] == ["/", "/data/d01"]


def test_a_dead_disk_is_left_out_and_the_others_are_reported() -> None:
    made = record(looked(FixedHost(dead_mount="/data/d01")))
    assert [each["mount"] for each in made["filesystems"]] == ["/"]


def test_only_processes_of_kdist_are_reported() -> None:
    broker = ("/opt/kdist/current/bin/kdist", "broker", "--config")
    host = FixedHost(
        Running("/usr/bin/python3", *broker, "/etc/kdist/broker-d02.properties"),
        Running("/usr/sbin/sshd", "-D"),
        Running(),
        Running("kdist", "agent", ends=True),
    )
    (told,) = record(looked(host))["processes"]
    assert told == {
        "command": "broker d02",
        "pid": 41,
        "started_ms": 1_795_000_000_500,
        "cpu_seconds_total": 1.75,
        "resident_bytes": 1 << 20,
        "threads": 3,
        "open_files": None,
    }


@pytest.mark.parametrize(
    ("argv", "command"),
    [
        (
            "python3 /opt/kdist/current/bin/kdist agent --config /etc/kdist/agent.properties",
            "agent",
        ),
        ("kdist broker --config /etc/kdist/broker-d01.properties", "broker d01"),
        ("kdist consume clicks", "consume"),
        ("python3 -m kdist.cli standalone", "standalone"),
        ("java -cp x org.apache.zookeeper.server.quorum.QuorumPeerMain zoo.cfg", "zookeeper"),
        ("vim a b c /opt/kdist/current/bin/kdist broker", ""),
        ("kdist", ""),
        ("", ""),
    ],
)
def test_a_process_is_recognised_by_its_command_line(argv: str, command: str) -> None:
    assert command_of(argv.split()) == command


def test_this_host_can_be_sampled() -> None:
    made = record(look(NOW_MS))
    assert made["memory"]["total_bytes"] > made["memory"]["available_bytes"] > 0
    assert made["cpu"]["processors"] >= 1


def test_the_page_names_every_field_and_no_other() -> None:
    host = FixedHost(Running("kdist", "agent"))
    made = json.loads(encode_record(record(looked(host))))
    page = (ROOT / "docs/formats/ops-host.md").read_text()
    assert set(re.findall(r"^\| `([\w.\[\]]+)` \|", page, re.MULTILINE)) == set(paths(made))


def paths(value: Any, prefix: str = "") -> list[str]:
    """`cpu.busy_ratio`, `disks[].device`: the path of every plain value."""
    if isinstance(value, dict):
        start = f"{prefix}." if prefix else ""
        return [path for name, each in value.items() for path in paths(each, start + name)]
    if isinstance(value, list):
        return paths(value[0], f"{prefix}[]")
    return [prefix]
