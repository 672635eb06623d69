"""The output of smartctl and ZooKeeper, and the metrics made of it."""

from __future__ import annotations

import asyncio
import json
import math
import random
import sys
from collections.abc import Sequence
from typing import Any

import pytest

from kdist.agent.data_disks import DataDisks, whole_device
from kdist.agent.disks import AskedDisks, SeenDisk
from kdist.agent.exported import Seen, exported
from kdist.agent.not_applied import count_not_applied
from kdist.agent.smart import read_health, read_scan
from kdist.agent.wanted import WantedBroker, read_wanted
from kdist.agent.zookeeper import ask_mntr, read_mntr
from kdist.client.cluster import Address
from kdist.metrics.agent import AgentMetrics
from kdist.runtime.host import Space
from kdist.runtime.programs import output_of
from kdist.testing.simulated_disk import SimulatedDisk
from kdist.testing.virtual_clock import VirtualClock

ATA = {
    "model_name": "ST4000",
    "serial_number": "Z1",
    "smart_status": {"passed": True},
    "temperature": {"current": 34},
    "power_on_time": {"hours": 12000},
    "ata_smart_attributes": {
        "table": [{"id": 5, "raw": {"value": 8}}, {"id": 197, "raw": {"value": 1}}]
    },
}
NVME = {
    "model_name": "SSD",
    "serial_number": "N1",
    "smart_status": {"passed": False},
    "nvme_smart_health_information_log": {"media_errors": 3},
}
LEADER = (
    "zk_version\t3.8\nzk_server_state\tleader\nzk_synced_followers\t2\nzk_quorum_size\t3\n"
    "zk_avg_latency\t1.5\nzk_fsync_threshold_exceed_count\t4\n"
)
WANTED = WantedBroker("d01", "r", "s", "u")
NOT_SERVING = "This ZooKeeper instance is not currently serving requests\n"


def said(value: Any) -> bytes:
    return json.dumps(value).encode()


def test_an_ata_disk_is_read_by_its_attributes() -> None:
    health = read_health("/dev/sda", said(ATA))
    assert health is not None
    assert (health.model, health.serial, health.is_healthy) == ("ST4000", "Z1", True)
    assert (health.temperature_celsius, health.power_on_hours) == (34, 12000)
    assert (health.reallocated_sectors, health.pending_sectors) == (8, 1)
    assert (health.uncorrectable_sectors, health.link_errors) == (None, None)


def test_errors_and_timeouts_that_a_disk_reports_are_read() -> None:
    table = [{"id": 187, "raw": {"value": 4}}, {"id": 188, "raw": {"value": (9 << 32) + 2}}]
    health = read_health("/dev/sda", said(ATA | {"ata_smart_attributes": {"table": table}}))
    assert health is not None
    assert (health.reported_errors, health.command_timeouts) == (4, 2)


def test_a_scsi_disk_is_read_by_its_defects_and_counters() -> None:
    counters = {"read": {"total_uncorrected_errors": 2}, "write": {"total_uncorrected_errors": 1}}
    log = {"scsi_grown_defect_list": 7, "scsi_error_counter_log": counters | {"verify": {}}}
    health = read_health("/dev/sda", said({"smart_status": {"passed": True}} | log))
    assert health is not None
    assert (health.reallocated_sectors, health.reported_errors) == (7, 3)
    assert health.command_timeouts is None


def test_an_nvme_disks_media_errors_are_its_lost_sectors() -> None:
    health = read_health("/dev/nvme0", said(NVME))
    assert health is not None
    assert (health.is_healthy, health.uncorrectable_sectors) == (False, 3)


@pytest.mark.parametrize(
    "odd",
    [
        {"smart_status": None},
        {"temperature": None},
        {"temperature": {"current": "hot"}},
        {"power_on_time": [1]},
        {"ata_smart_attributes": {"table": [{"id": 5}]}},
        {"ata_smart_attributes": {"table": [{"id": 5, "raw": {"value": "n/a"}}]}},
        {"ata_smart_attributes": {"table": None}},
        {"nvme_smart_health_information_log": 3},
    ],
)
def test_malformed_output_about_a_disk_gives_no_health_and_does_not_end_the_agent(
    odd: dict[str, Any],
) -> None:
    assert read_health("/dev/sda", said(ATA | odd)) is None


@pytest.mark.parametrize("devices", [None, 3, [None], ["/dev/sda"], [{"type": "ata"}]])
def test_a_scan_without_readable_entries_finds_no_disks(devices: Any) -> None:
    assert list(read_scan(said({"devices": devices}))) == []


def test_a_device_without_smart_has_no_health() -> None:
    assert read_health("/dev/sda", b"") is None
    assert read_health("/dev/sda", b"[1]") is None
    assert read_health("/dev/sda", said({"smartctl": {"exit_status": 2}})) is None
    assert list(read_scan(b"no JSON")) == []


def test_every_disk_found_is_queried_without_waking_it() -> None:
    asked: list[Sequence[str]] = []

    async def run(argv: Sequence[str], _timeout_ms: float) -> bytes:
        asked.append(argv)
        if "--scan" in argv:
            return said({"devices": [{"name": "/dev/sda"}, {"name": "/dev/sdb"}]})
        return said(ATA) if argv[-1] == "/dev/sda" else b""

    disks = AskedDisks("smartctl", run, VirtualClock())
    asyncio.run(disks.ask())
    known = [each.device for each in disks.seen() if each.health is not None]
    assert known == ["/dev/sda"]
    assert [argv[-1] for argv in asked[1:]] == ["/dev/sda", "/dev/sdb"]
    assert all("--nocheck=standby" in argv for argv in asked[1:])


def test_a_disk_that_hangs_keeps_its_last_health_and_delays_no_other() -> None:
    """In the second round sda hangs, and the others are as slow as they may be."""
    clock = VirtualClock()
    names = [f"/dev/sd{letter}" for letter in "abcdefghijkl"]
    is_hung = False

    async def run(argv: Sequence[str], _timeout_ms: float) -> bytes:
        if "--scan" in argv:
            return said({"devices": [{"name": name} for name in names]})
        if is_hung and argv[-1] == "/dev/sda":
            await asyncio.Event().wait()
        return said(ATA)

    async def scenario() -> None:
        nonlocal is_hung
        disks = AskedDisks("smartctl", run, clock)
        await disks.ask()
        clock.advance_ms(600_000)
        is_hung = True
        asking = asyncio.create_task(disks.ask())
        for _ in range(100):
            await asyncio.sleep(0)
        assert not asking.done()
        assert {each.answer_age_s for each in disks.seen()[1:]} == {0}
        hung = disks.seen()[0]
        assert (hung.device, hung.answer_age_s) == ("/dev/sda", 600)
        assert hung.health is not None
        asking.cancel()

    asyncio.run(scenario())


def test_a_disk_that_does_not_answer_is_counted_until_it_is_gone() -> None:
    devices = ["/dev/sda", "/dev/sdb"]

    async def run(argv: Sequence[str], _timeout_ms: float) -> bytes:
        if "--scan" in argv:
            if not devices:
                raise TimeoutError
            return said({"devices": [{"name": name} for name in devices]})
        if argv[-1] == "/dev/sda":
            raise TimeoutError
        return b""  # without SMART

    async def counted() -> dict[str, int]:
        await disks.ask()
        return {each.device: each.timeouts for each in disks.seen()}

    disks = AskedDisks("smartctl", run, VirtualClock())
    assert asyncio.run(counted()) == {"/dev/sda": 1, "/dev/sdb": 0}
    text = exported(AgentMetrics(), Seen(disks.seen(), data_disks={"sda": "d01"})).decode()
    assert 'kdist_smart_timeouts_total{device="sda",disk="d01"} 1.0\n' in text
    assert 'kdist_smart_answer_age_seconds{device="sdb",disk=""} 0.0\n' in text
    found, devices[:] = list(devices), []  # the search hangs too
    assert asyncio.run(counted()) == {"/dev/sda": 2, "/dev/sdb": 0}
    devices[:] = found[1:]
    assert asyncio.run(counted()) == {"/dev/sdb": 0}


def test_a_program_that_cannot_start_gives_no_output() -> None:
    assert asyncio.run(output_of(["/nowhere/smartctl"], 5_000)) == b""


def test_a_program_that_cannot_be_killed_is_neither_waited_for_nor_started_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As one that waits for a disk that hangs; once that has answered, it is asked again."""
    hang = [sys.executable, "-c", "import threading; threading.Event().wait()"]
    process = asyncio.subprocess.Process
    kill = process.kill
    kept: list[asyncio.subprocess.Process] = []
    monkeypatch.setattr(process, "kill", lambda left: kept.append(left))

    async def scenario() -> None:
        for _ in range(3):
            with pytest.raises(TimeoutError):
                await output_of(hang, 50)
        (left,) = kept
        kill(left)
        while len(kept) < 2:
            await asyncio.sleep(0)
            with pytest.raises(TimeoutError):
                await output_of(hang, 50)
        kill(kept[1])
        await kept[1].wait()

    asyncio.run(asyncio.wait_for(scenario(), 30))


def test_a_programs_output_counts_whatever_its_exit_status() -> None:
    argv = [sys.executable, "-c", "import sys; print('bits'); sys.exit(4)"]
    assert asyncio.run(output_of(argv, 30_000)) == b"bits\n"


def test_what_the_host_did_not_accept_is_counted_by_role() -> None:
    disk = SimulatedDisk(random.Random(1))
    assert count_not_applied(disk, "/etc/kdist/not_applied.d") == {}
    for directory in ("/etc", "/etc/kdist", "/etc/kdist/not_applied.d"):
        disk.make_directory(directory)
    for name, text in (("a.json", '["x", "y"]'), ("b.json", "[]"), ("c.json", "7"), ("d", "[1]")):
        disk.replace(f"/etc/kdist/not_applied.d/{name}", text.encode(), durable=False)
    found = count_not_applied(disk, "/etc/kdist/not_applied.d")
    assert found == {"a": 2, "b": 0, "c": 1}  # 7 is no list
    page = exported(AgentMetrics(), Seen(not_applied=found)).decode()
    assert 'kdist_deployment_not_applied{role="a"} 2.0' in page


def test_a_leader_reports_how_many_follow_it_and_how_many_ought_to() -> None:
    read = read_mntr(LEADER)
    assert (read.is_serving, read.is_leading, read.synced_followers) == (1, 1, 2)
    assert read.voting_servers == 3
    assert read.average_latency_seconds == 0.0015


def test_a_server_that_does_not_serve_reports_only_that() -> None:
    for answer in (NOT_SERVING, "", "zk_synced_followers\tmany\n"):
        read = read_mntr(answer)
        assert (read.is_serving, read.is_leading) == (0, 0)
        assert math.isnan(read.synced_followers)


def test_a_servers_whole_answer_is_read() -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        assert await reader.readexactly(4) == b"mntr"
        writer.write(LEADER.encode())
        writer.close()

    async def run() -> str:
        server = await asyncio.start_server(answer, "127.0.0.1", 0)
        async with server:
            return await ask_mntr(Address(*server.sockets[0].getsockname()), 5_000)

    assert asyncio.run(run()) == LEADER


def test_an_unreachable_server_gives_no_answer() -> None:
    assert asyncio.run(ask_mntr(Address("127.0.0.1", 1), 5_000)) == ""


def test_metrics_of_what_the_host_has_exist_and_no_others() -> None:
    health = read_health("/dev/sda", said(ATA))
    assert health is not None
    seen = Seen(
        [SeenDisk("/dev/sda", health, 5.0)],
        read_mntr(LEADER),
        {"sda": "d01", "sdb": "d02"},
        [WANTED],
    )
    text = exported(AgentMetrics(), seen).decode()
    labels = 'device="sda",disk="d01",serial="Z1"'
    assert f"kdist_smart_reallocated_sectors{{{labels}}} 8.0\n" in text
    assert f"kdist_smart_link_errors{{{labels}}} NaN\n" in text
    assert 'kdist_disk_info{device="sdb",disk="d02"} 1.0\n' in text
    labels = 'disk="d01",release="r",settings="s",unit="u"'
    assert f"kdist_broker_wanted_info{{{labels}}} 1.0\n" in text
    assert "kdist_zookeeper_synced_followers 2.0\n" in text
    assert "kdist_zookeeper_slow_fsyncs 4.0\n" in text
    bare = exported(AgentMetrics(), Seen()).decode()
    assert "kdist_agent_published_records_total 0.0\n" in bare
    for prefix in ("kdist_smart", "kdist_disk", "kdist_broker", "kdist_zookeeper"):
        assert f"\n{prefix}" not in bare


def test_a_disk_without_a_name_has_an_empty_one() -> None:
    health = read_health("/dev/sdz", said(ATA))
    assert health is not None
    text = exported(AgentMetrics(), Seen([SeenDisk("/dev/sdz", health, 5.0)])).decode()
    assert 'kdist_smart_healthy{device="sdz",disk="",serial="Z1"}' in text


@pytest.mark.parametrize(
    ("path", "device"),
    [
        ("/dev/sdb", "sdb"),
        ("/dev/sdab12", "sdab"),
        ("/dev/xvdb1", "xvdb"),
        ("/dev/nvme0n1p2", "nvme0n1"),
        ("/dev/nvme0n1", "nvme0n1"),
        ("/dev/loop7", "loop7"),
        ("/dev/mapper/data", "mapper/data"),
    ],
)
def test_a_partition_is_on_its_whole_device(path: str, device: str) -> None:
    assert whole_device(path) == device


def mounted(mount: str, device: str) -> Space:
    return Space(mount, device, "xfs", 100, 50)


def test_data_disks_keep_their_names_until_another_takes_their_place() -> None:
    disks = DataDisks("/data")
    both = [mounted("/data/d01", "/dev/sdb1"), mounted("/data/d02", "/dev/sdc")]
    disks.note([mounted("/", "/dev/sda1"), *both])
    assert disks.by_device == {"sdb": "d01", "sdc": "d02"}
    disks.note(both[1:])  # d01 has died
    assert disks.by_device == {"sdb": "d01", "sdc": "d02"}
    disks.note([mounted("/data/d01", "/dev/sdd"), both[1]])
    assert disks.by_device == {"sdc": "d02", "sdd": "d01"}


def test_what_brokers_shall_run_is_read_from_their_files() -> None:
    disk = SimulatedDisk(random.Random(1))
    assert read_wanted(disk, "/wanted") == []
    disk.make_directory("/wanted")
    good = {"release": "r", "settings": "s", "unit": "u"}
    texts = {
        "broker-d01.json": json.dumps(good),
        "broker-d01.properties": "broker.id=1",
        "broker-d02.json": '{"release": "r"}',
        "broker-d03.json": "[]",
        "broker-d04.json": "{",
    }
    for name, text in texts.items():
        disk.replace(f"/wanted/{name}", text.encode(), durable=False)
    assert read_wanted(disk, "/wanted") == [WANTED]
