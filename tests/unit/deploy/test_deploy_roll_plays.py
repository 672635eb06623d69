"""The roll, played on a site of three hosts: what it does when hosts and brokers die under it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from deploy_site import NEW, OLD, Site, site_at

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]  # a play starts hundreds of processes


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    with site_at(tmp_path) as made:
        yield made


def test_a_host_that_dies_in_anothers_turn_keeps_nobody_waiting_and_is_told_of(site: Site) -> None:
    """Neither for the return of the one whose turn it is, nor for the gate of the next one."""
    site.topics(everywhere=[101, 202, 303], here_alone=[303])
    (site.directory / "on-stop-d01").write_text("c")
    done = site.play()
    assert site.runs() == {"d01": NEW, "d02": NEW, "d03": OLD}, done.stdout
    assert site.events() == ["stop d01", "start d01", "stop d02", "start d02"]
    asked = site.calls("gate --json")
    assert len([call for call in asked if call.endswith("--after")]) == 2
    assert [call.partition("--expect ")[2] for call in asked if "--expect" in call] == [
        "101,202,303",
        "101,202,303",
        "101,202 --down 303",
    ]
    assert done.returncode != 0
    assert "c: broker 303 is on a host that stopped answering" in done.stdout
    assert len(site.calls("gate unlock")) == 2


def test_a_broker_that_does_not_start_and_a_host_that_dies_stop_nobody_else(site: Site) -> None:
    """The one goes back to what it ran before, alone; the other dies in its own turn."""
    (site.directory / "fails-d01").touch()
    (site.directory / "on-stop-d02").write_text("b")
    done = site.play(kdist_roll_failed_max=2)
    events = ["stop d01", "start d01", "start d01", "stop d02", "stop d03", "start d03"]
    assert site.events() == events, done.stdout
    assert site.runs() == {"d01": OLD, "d02": OLD, "d03": NEW}
    assert done.returncode != 0
    said = " ".join(done.stdout.split())
    for sentence in (
        "broker 101 did not start with what is wanted; it runs its former release and settings",
        "b: broker 202 is on a host that stopped answering in the middle of its turn",
    ):
        assert sentence in said
    assert site.calls("gate --json")[-2].endswith("--expect 303 --down 101,202")


def test_a_roll_whose_lock_another_run_holds_stops_nothing_and_says_who(site: Site) -> None:
    (site.directory / "locked").touch()
    done = site.play()
    assert done.returncode != 0
    assert (site.events(), site.runs()) == ([], {"d01": OLD, "d02": OLD, "d03": OLD})
    said = " ".join(done.stdout.split())
    assert "has not been restarted: kdist: another run holds the lock. If that run" in said


def test_a_broker_that_recovers_is_not_stopped_in_the_middle_of_it(site: Site) -> None:
    for disk in ("d01", "d02"):
        (site.directory / "units" / f"{disk}.runs").write_text(NEW)
    recovering = (site.directory / "units/d03").read_text()
    recovering = recovering.replace("=active", "=activating").replace("=running", "=start")
    (site.directory / "units/d03").write_text(recovering)
    done = site.play()
    assert site.events() == [], done.stdout
    assert "c: broker 303 recovers" in done.stdout
    assert done.returncode != 0


def test_a_forced_roll_in_check_mode_says_what_it_would_restart(site: Site) -> None:
    for disk in ("d01", "d02", "d03"):
        (site.directory / "units" / f"{disk}.runs").write_text(NEW)
    done = site.play("--check", kdist_roll_force=True)
    assert done.returncode == 0, done.stdout
    assert done.stdout.count("every broker is to restart") == 3
    assert site.events() == []


def test_wrong_settings_fail_in_check_mode_on_a_bare_host_too(site: Site) -> None:
    role = {"name": "kdist_broker", "tasks_from": "configure"}
    tasks = [{"ansible.builtin.include_role": role}]
    done = site.play(
        "--check",
        "--limit=a",
        steps=[{"hosts": "broker", "gather_facts": False, "tasks": tasks}],
        kdist_release_is_staged=False,
        kdist_rack="r1",
        kdist_broker_config_host={"log.segment.bytes": "many"},
    )
    assert done.returncode != 0
    assert "Refuse settings that the release does not accept" in done.stdout
    assert "log.segment.bytes" in done.stdout


# A disk is replaced


def replace_disk(site: Site) -> str:
    """Replace d01; role kdist_disks finds a new one in its place. Returns what the play said."""
    disks = site.directory / "tree/roles/kdist_disks"
    (disks / "tasks/main.yml").write_text(
        "- ansible.builtin.set_fact: {kdist_disks_usable: [d01], kdist_disks_problems: []}\n"
    )
    (disks / "meta/argument_specs.yml").unlink()
    (site.directory / "etc/system").mkdir()
    (site.directory / "etc/system/kdist-broker@.service").touch()
    steps = [{"import_playbook": "replace-disk.yml"}]
    return site.play(steps=steps, disk="a:d01", confirm="a:d01").stdout


def test_a_replaced_disks_broker_runs_again_what_it_ran_before(site: Site) -> None:
    """Whatever release the inventory wants: after an upgrade by -e it was left down, in green."""
    said = replace_disk(site)
    assert site.events() == ["stop d01", "start d01"], said
    assert site.runs()["d01"] == OLD
    first, *_, cluster, returned, unlocked = site.calls("")
    assert first.startswith("gate --config")
    assert cluster.startswith("cluster elect --unclean --replaced 101")
    assert "--after" in returned
    assert unlocked.startswith("gate unlock")
    assert "failed=0" in said


def test_a_disk_is_not_replaced_while_the_cluster_needs_its_broker(site: Site) -> None:
    site.topics(here_alone=[101])
    said = replace_disk(site)
    assert "Broker 101 runs, and may not go down now" in said
    assert site.events() == []
    assert site.calls("gate lock") == []


def test_a_disk_is_not_replaced_while_another_run_holds_the_lock(site: Site) -> None:
    (site.directory / "locked").touch()
    said = " ".join(replace_disk(site).split())
    assert "msg: 'kdist: another run holds the lock. If that run has died" in said
    assert site.events() == []


@pytest.mark.parametrize(
    ("gate", "why", "calls"),
    [
        ("debug: {msg: whole}", "Stop the server: ", ["gate lock", "gate unlock"]),
        (
            "fail: {msg: one is away}",
            "one is away",
            ["gate unlock"],
        ),  # a server's turn before may hold it
    ],
)
def test_a_zookeeper_server_that_cannot_be_restarted_leaves_the_lock_free(
    site: Site, gate: str, why: str, calls: list[str]
) -> None:
    """The run ends at once, for all servers: it does not come to its last play."""
    role = site.directory / "tree/roles/kdist_zookeeper"
    (role / "tasks/gate.yml").write_text(f"- ansible.builtin.{gate}\n")
    restart = {"ansible.builtin.include_role": {"name": role.name, "tasks_from": "restart"}}
    steps = [{"hosts": "a", "gather_facts": False, "tasks": [restart]}]
    done = site.play(steps=steps)
    assert done.returncode != 0
    assert why in done.stdout.rpartition("Fail with what went wrong")[2]
    assert [call.split(" --")[0] for call in site.calls("gate ")] == calls
