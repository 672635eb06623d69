"""Hosts are rebooted one at a time, once all their brokers may go down together."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from deploy_site import Site, site_at
from monitoring_files import alertmanager

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]  # a play starts hundreds of processes


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    with site_at(tmp_path) as made:
        gate = made.directory / "tree/roles/kdist_zookeeper/tasks/gate.yml"
        gate.write_text("- ansible.builtin.debug: {msg: whole}\n")
        page = made.directory / "tree/playbooks/reboot-hosts.yml"
        page.write_text(page.read_text().replace("/boot/", f"{made.directory}/boot/"))
        yield made


def reboot(site: Site, *words: str, **given: object) -> subprocess.CompletedProcess[str]:
    return site.play(*words, steps=[{"import_playbook": "reboot-hosts.yml"}], **given)


def test_hosts_are_rebooted_one_at_a_time_under_the_lock_and_silence(site: Site) -> None:
    site.monitors = ["b"]
    with alertmanager() as (port, silences):
        done = reboot(site, force=True, host="a,c", kdist_port_overrides={"alertmanager": port})
    assert done.returncode == 0, done.stdout
    assert site.events() == ["stop d01", "reboot a", "stop d03", "reboot c"]
    told = [call.partition(" --")[0] for call in site.calls("gate")]
    assert told == [*("gate lock", "gate", "gate") * 2, *["gate unlock"] * 3]
    down, up, *_ = [call for call in site.calls("gate --json") if "--brokers 101" in call]
    assert ("--after" in down, "--after" in up) == (False, True)
    silenced = [{m["name"]: m["value"] for m in each["matchers"]} for each in silences.values()]
    assert {"dc": "dc1", "host": "a"} in silenced
    assert {"dc": "dc1", "host": "c"} in silenced


def test_a_host_that_asks_for_no_reboot_gets_none(site: Site) -> None:
    done = reboot(site)
    assert done.returncode == 0, done.stdout
    assert "No host asks for a reboot." in done.stdout
    assert site.events() == site.calls("") == []


def test_a_newer_kernel_is_a_reason_and_check_mode_only_says_so(site: Site) -> None:
    (site.directory / "boot").mkdir()
    for version in ("9.10.0-2", "9.9.0-1"):
        (site.directory / "boot" / f"vmlinuz-{version}").touch()
    done = reboot(site, "--check")
    assert done.returncode == 0, done.stdout
    assert "and has 9.10.0-2" in " ".join(done.stdout.split())
    assert site.events() == site.calls("") == []


def test_a_host_that_the_cluster_needs_is_not_rebooted_nor_any_after_it(site: Site) -> None:
    site.topics(here_alone=[101])
    done = reboot(site, force=True)
    assert done.returncode != 0
    said = " ".join(done.stdout.split())
    assert "a: the reboot ended at 'Wait until all of them may go down together'" in said
    assert "1 partition has no replica elsewhere: here_alone-0" in said
    assert site.events() == []
    assert site.calls("gate unlock") != []


def test_a_host_that_does_not_come_back_is_the_last_and_the_lock_is_free(site: Site) -> None:
    (site.directory / "stays-off-a").touch()
    done = reboot(site, force=True)
    assert done.returncode != 0
    said = " ".join(done.stdout.split())
    assert "a: the reboot ended at 'Reboot it': Timed out waiting for last boot time" in said
    assert "its brokers are down" in said
    assert site.events() == ["stop d01", "reboot a"]
    assert site.calls("")[-1].startswith("gate unlock")


def test_a_forced_run_that_is_resumed_reboots_no_host_again(site: Site) -> None:
    """Which it knows by when each was booted and when the run took the lock."""
    (site.directory / "booted").write_text("2000000000")
    done = reboot(site, force=True)
    assert done.returncode == 0, done.stdout
    assert site.events() == []
    assert site.calls("gate lock") != []


def test_a_host_that_the_inventory_does_not_have_is_refused(site: Site) -> None:
    done = reboot(site, host="a,x")
    assert done.returncode != 0
    assert "The inventory does not have x." in done.stdout
