"""Kernel and block device settings: live as wanted, or recorded as not applied."""

from __future__ import annotations

from pathlib import PurePosixPath

from tests.deploy.deployed import Broker, Member

SYSCTL = "/etc/sysctl.d/90-kdist.conf"
MIB = 1024 * 1024
HUGE_PAGES = "/sys/kernel/mm/transparent_hugepage/enabled"


def written(host: Member) -> dict[str, str]:
    """The settings that apply at the next boot."""
    lines = [line for line in host.says(f"cat {SYSCTL}").splitlines() if not line.startswith("#")]
    return dict((part.strip() for part in line.split("=", 1)) for line in lines)


def test_the_file_has_what_the_inventory_says(host: Member) -> None:
    wanted = host["kdist_tuning_sysctl"] | host["kdist_tuning_sysctl_extra"]
    found = written(host)
    assert {name: found[name] for name in wanted} == {n: str(v) for n, v in wanted.items()}


def test_each_setting_is_live_or_put_down_as_not_applied(host: Member) -> None:
    wanted = written(host)
    paths = [f"/proc/sys/{name.replace('.', '/')}" for name in wanted]
    show = f'for f in {" ".join(paths)}; do echo "$(cat $f 2>/dev/null)"; done'
    live = host.shell.run(show).stdout.splitlines()
    assert len(live) == len(wanted)
    wrong = [
        f"{name} is {found}, not {value}"
        for (name, value), path, found in zip(wanted.items(), paths, live, strict=True)
        if found.split() != value.split() and not host.could_not(path)
    ]
    assert wrong == []


def test_dirty_memory_is_what_the_disks_write_in_its_seconds(host: Member) -> None:
    memory_bytes = int(host.says("awk '/^MemTotal/ { print $2 }' /proc/meminfo")) // 1024 * MIB
    disks = max(1, len(host["kdist_brokers"]))
    per_s = disks * host["kdist_tuning_disk_mb_per_s"] * 1_000_000
    found = written(host)
    limit = min(per_s * host["kdist_tuning_dirty_s"], memory_bytes * 2 // 5)
    begin = min(per_s * host["kdist_tuning_dirty_background_s"], memory_bytes // 10)
    assert int(found["vm.dirty_bytes"]) == limit
    assert int(found["vm.dirty_background_bytes"]) == begin


def test_huge_pages_are_given_to_who_asks_for_them(host: Member) -> None:
    wanted = f"[{host['kdist_tuning_huge_pages']}]"
    assert wanted in host.says(f"cat {HUGE_PAGES}") or host.could_not(HUGE_PAGES)


def test_values_of_disks_are_set_at_every_boot(host: Member) -> None:
    assert host.shell.service("kdist-tune").is_enabled
    assert host.works("systemctl start kdist-tune")


def test_the_disks_queue_is_as_wanted_or_put_down(broker: Broker) -> None:
    host = broker.host
    number = host.says(f"lsblk --nodeps --noheadings --output MAJ:MIN {broker.device}")
    queue = PurePosixPath("/sys/dev/block", number, "queue")
    scheduler = host.says(f"cat {queue / 'scheduler'}")
    assert f"[{host['kdist_tuning_scheduler']}]" in scheduler or host.could_not(
        broker.device, "scheduler"
    )
    ahead = host.says(f"cat {queue / 'read_ahead_kb'}")
    assert ahead == str(host["kdist_tuning_read_ahead_kb"]) or host.could_not(
        broker.device, "read_ahead_kb"
    )


def test_a_failing_disk_is_asked_again_no_more_than_told(broker: Broker) -> None:
    host = broker.host
    name = PurePosixPath(host.says(f"readlink --canonicalize {broker.device}")).name
    path = f"/sys/fs/xfs/{name}/error/metadata/EIO/max_retries"
    retries = host.shell.run(f"cat {path}").stdout.strip()
    wanted = str(host["kdist_tuning_xfs_eio_retries"])
    assert retries == wanted or host.could_not(broker.mount, "EIO")
