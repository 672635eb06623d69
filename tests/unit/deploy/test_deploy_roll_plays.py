"""The roll, played on a site of three hosts: what it does when hosts and brokers die under it."""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from deploy_plays import script
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
    (site.directory / "fails-d01").write_text("1")
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


def test_a_roll_whose_hosts_cannot_follow_their_brokers_leaves_the_lock_free(site: Site) -> None:
    switch = site.directory / "tree/roles/kdist_release/tasks/switch.yml"
    switch.write_text("- ansible.builtin.fail: {msg: read-only}\n")
    done = site.play()
    assert done.returncode != 0
    assert site.runs() == {"d01": NEW, "d02": NEW, "d03": NEW}
    assert len(site.calls("gate unlock")) == 3


def test_moves_are_waited_for_and_told_of_and_the_roll_goes_on_as_they_end(site: Site) -> None:
    """They outlast the gate's patience, which is for what does not end by itself."""
    (site.directory / "moves").write_text("5")
    done = site.play()
    said = " ".join(done.stdout.split())
    assert site.runs() == {"d01": NEW, "d02": NEW, "d03": NEW}, said
    assert done.returncode == 0
    told = "a: broker 101 waits: partitions are being reassigned, by bert"
    assert [f"{told} ({left} to go)" in said for left in (5, 4, 3, 2, 1)].count(True) >= 2


def test_moves_that_do_not_end_cost_one_wait_and_are_not_what_the_gate_has_refused(
    site: Site,
) -> None:
    (site.directory / "moves").write_text("1000")
    done = site.play(kdist_roll_moves_wait_s=2)
    said = " ".join(done.stdout.split())
    assert site.events() == []
    assert done.returncode != 0
    for broker in ("a: broker 101", "b: broker 202", "c: broker 303"):
        assert f"{broker} has not been restarted: partitions are being reassigned, by" in said
    assert said.count(" waits: ") == 1


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
    done = configure(
        site,
        "--check",
        kdist_release_is_staged=False,
        kdist_broker_config_host={"log.segment.bytes": "many"},
    )
    assert done.returncode != 0
    assert "Refuse settings that the release does not accept" in done.stdout
    assert "log.segment.bytes" in done.stdout


def configure(site: Site, *words: str, **given: Any) -> subprocess.CompletedProcess[str]:
    """Write host a's broker's settings, as site.yml does."""
    (site.directory / "etc/system").mkdir()
    role = {"name": "kdist_broker", "tasks_from": "configure"}
    tasks = [{"ansible.builtin.include_role": role}]
    steps = [{"hosts": "broker", "gather_facts": False, "tasks": tasks}]
    return site.play(*words, "--limit=a", steps=steps, kdist_rack="r1", **given)


@pytest.mark.parametrize("is_staged", [True, False])
def test_no_journal_nor_output_has_the_settings_of_a_broker(site: Site, is_staged: bool) -> None:
    """Some are secret. Neither the host's, nor, where they are judged there, the control host's."""
    journal = site.keep_a_journal()
    words = ("--diff", "-vvv", *([] if is_staged else ["--check"]))
    planted = {"log.retention.ms": 31415926535}
    done = configure(
        site, *words, kdist_release_is_staged=is_staged, kdist_broker_config_host=planted
    )
    assert done.returncode == 0, done.stdout
    assert "etc/wanted" in journal.read_text()
    assert "31415926535" not in journal.read_text()
    shown = done.stdout.replace(json.dumps(planted), "")  # as it is given on the command line
    assert "31415926535" not in shown
    if is_staged:
        written = site.directory / "etc/wanted/broker-d01.properties"
        assert "log.retention.ms=31415926535" in written.read_text()
        assert written.stat().st_mode & 0o777 == 0o640


def test_settings_that_cannot_be_judged_are_told_although_they_are_hidden(site: Site) -> None:
    program = site.directory / "root/releases" / NEW / "bin/kdist"
    # It reads first: for one that ends before, Ansible may tell of the broken pipe instead.
    script(program, "cat >/dev/null; echo 'no such library' >&2; exit 1\n")
    done = configure(site)
    assert done.returncode != 0
    assert "no such library" in done.stdout


# Topics as code


def apply_topics(site: Site) -> str:
    """A run that finds out which hosts are there, compares topics and ends. What was not done."""
    look = {"hosts": "all", "gather_facts": False, "tasks": [{"ansible.builtin.ping": {}}]}
    steps = [look, {"import_playbook": "topics.yml"}, {"import_playbook": "summary.yml"}]
    done = site.play(steps=steps, kdist_topics_wanted=[{"name": "clicks"}])
    assert done.returncode != 0
    return " ".join(done.stdout.rpartition("Fail where something was not done")[2].split())


def test_a_hosts_part_in_topics_as_code_is_taken_by_another_when_it_is_dead(site: Site) -> None:
    (site.directory / "dead-a").touch()
    undone = apply_topics(site)
    assert len(site.calls("topics apply")) == 1
    assert "a: it failed or could not be reached" in undone
    assert "topics" not in undone


def test_topics_that_were_not_compared_to_the_end_are_told_of_once(site: Site) -> None:
    (site.directory / "refused-partitions").touch()
    undone = apply_topics(site)
    assert undone.count("dc1: its topics may not be as the inventory says") == 1
    assert len(site.calls("topics apply")) == 1


# A disk that hangs

STAT = """\
from pathlib import Path
from ansible.module_utils.basic import AnsibleModule
module = AnsibleModule({"path": {}}, bypass_checks=True)
path = Path(module.params["path"])
if path.is_fifo():
    path.read_text()
module.exit_json(stat={"exists": path.exists()})
"""


@pytest.fixture
def hang(site: Site) -> Iterator[Callable[[str], None]]:
    """Makes a path one whose reader waits, until the test is over."""
    made: list[Path] = []

    def make(path: str) -> None:
        made.append(site.directory / path)
        made[-1].unlink(missing_ok=True)
        os.mkfifo(made[-1])

    yield make
    for path in made:
        os.close(os.open(path, os.O_RDWR))


def test_a_roll_leaves_the_broker_whose_disk_hangs_and_restarts_all_others(
    site: Site, hang: Callable[[str], None]
) -> None:
    hang("data/d02/disk.json")
    role = site.directory / "tree/roles/kdist_broker"
    (role / "library/hanging_stat.py").write_text(STAT)  # Ansible's does not read the file
    look = role / "tasks/look.yml"
    text = look.read_text().replace("ansible.builtin.stat:", "hanging_stat:")
    look.write_text(re.sub(r"\n +get_.*", "", text))
    done = site.play(kdist_broker_look_s=20)
    said = " ".join(done.stdout.split())
    assert site.runs() == {"d01": NEW, "d02": OLD, "d03": NEW}, done.stdout
    assert site.events() == ["stop d01", "start d01", "stop d03", "start d03"]
    assert done.returncode != 0
    undone = said.rpartition("Fail where something was not done")[2]
    assert f"b: {site.directory}/data/d02 does not answer, and its broker is left alone" in undone


def test_a_broker_that_cannot_be_killed_costs_its_own_turn(
    site: Site, hang: Callable[[str], None]
) -> None:
    """It waits for its disk: neither its stop nor the roll's lease may end the others' turns."""
    hang("hangs-d01")
    done = site.play(kdist_broker_stop_timeout_s=-57)  # a minute more is waited
    said = " ".join(done.stdout.split())
    assert site.runs() == {"d01": OLD, "d02": NEW, "d03": NEW}, done.stdout
    assert done.returncode != 0
    assert "a: broker 101: 'Stop the broker' failed: " in said


# Stopped brokers of one host


def start_two(site: Site, **given: object) -> str:
    """Role kdist_broker on a host whose brokers d01 and d02 are down. Returns what it said."""
    for disk in ("d01", "d02"):
        unit = site.directory / "units" / disk
        unit.write_text(unit.read_text().replace("=active", "=failed").replace("=running", "=dead"))
    role = {"name": "kdist_broker"}
    tasks = [
        {"ansible.builtin.include_role": role | {"tasks_from": "plan"}},
        {"ansible.builtin.include_role": role | {"tasks_from": "service"}},
        {"ansible.builtin.debug": {"msg": "undone {{ kdist_broker_undone | default([]) }}"}},
    ]
    return site.play(
        "--limit=a",
        steps=[{"hosts": "broker", "gather_facts": False, "tasks": tasks}],
        kdist_disks=[
            {"id": disk, "device": "/dev/x", "port": site.ports[disk] - 200}
            for disk in ("d01", "d02")
        ],
        kdist_broker_digests={"d01": "s", "d02": "s"},
        kdist_broker_alone_s=2,
        **given,
    ).stdout


def test_the_brokers_of_a_host_start_together(site: Site) -> None:
    """Each may recover for an hour: one after the other, the last would wait for all of them."""
    (site.directory / "slow-d01").touch()
    said = start_two(site)
    assert site.events() == ["start d01", "start d02"], said
    assert "undone []" in said
    for disk in ("d01", "d02"):
        assert (site.directory / "etc/brokers" / disk / "current/served").exists()
        assert site.runs()[disk] == NEW


def test_a_broker_that_does_not_start_goes_back_and_its_neighbour_stays(site: Site) -> None:
    (site.directory / "fails-d01").write_text("1")
    said = " ".join(start_two(site).split())
    assert site.events() == ["start d01", "start d02", "start d01"], said
    assert (site.runs()["d01"], site.runs()["d02"]) == (OLD, NEW)
    assert "broker 101 did not start with what is wanted; it runs its former release" in said


def test_a_broker_whose_disk_fails_as_it_starts_stays_down(site: Site) -> None:
    (site.directory / "fails-d01").write_text("74")
    said = " ".join(start_two(site).split())
    assert site.events() == ["start d01", "start d02"], said
    assert "broker 101 did not start with what is wanted; its disk has failed" in said


def test_brokers_that_wait_for_zookeeper_are_left_to_wait_and_told_of(site: Site) -> None:
    """They do so without end; whoever started them does not, and no former release would help."""
    for disk in ("d01", "d02"):
        (site.directory / f"slow-{disk}").touch()
        with (site.directory / "units" / disk).open("a") as unit:
            unit.write("StatusText=waiting for ZooKeeper: no server answered\n")
    said = " ".join(start_two(site, kdist_broker_start_wait_s=600).split())
    assert site.events() == ["start d01", "start d02"], said
    assert site.runs()["d01"] == site.runs()["d02"] == NEW
    for broker in (101, 102):
        assert f"broker {broker} is started, and waits for ZooKeeper" in said


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


def test_a_zookeeper_server_that_was_stopped_for_nothing_is_started_again(site: Site) -> None:
    """As when the disk is full, to which its new settings are to be written."""
    role = site.directory / "tree/roles/kdist_zookeeper"
    (role / "tasks/gate.yml").write_text("- ansible.builtin.debug: {msg: whole}\n")
    (role / "tasks/activate.yml").write_text("- ansible.builtin.fail: {msg: no space}\n")
    server = site.directory / "bin/systemctl"
    script(
        server,
        f'case "$*" in *show*) echo LoadState=loaded; cat {site.directory}/server ;;\n'
        f"stop*) echo ActiveState=inactive >{site.directory}/server; echo $* >>{server}.did ;;\n"
        f"start*) echo ActiveState=active >{site.directory}/server; echo $* >>{server}.did ;;\n"
        "esac\n",
    )
    (site.directory / "server").write_text("ActiveState=active\n")
    restart = {"ansible.builtin.include_role": {"name": role.name, "tasks_from": "restart"}}
    done = site.play(steps=[{"hosts": "a", "gather_facts": False, "tasks": [restart]}])
    assert done.returncode != 0
    assert "no space" in done.stdout.rpartition("Fail with what went wrong")[2]
    did = Path(f"{server}.did").read_text().splitlines()
    assert did == ["stop kdist-zookeeper.service", "start kdist-zookeeper.service"]


def set_up_zookeeper(
    site: Site, modes: dict[str, str], *words: str
) -> subprocess.CompletedProcess[str]:
    """Play zookeeper.yml where these servers do not run with what is wanted."""
    tasks = site.directory / "tree/roles/kdist_zookeeper/tasks"
    facts = {
        "kdist_zookeeper_mode": "{{ server_modes[inventory_hostname] | default('down') }}",
        "kdist_zookeeper_is_stale": "{{ inventory_hostname in server_modes }}",
    }
    (tasks / "main.yml").write_text(yaml.safe_dump([{"ansible.builtin.set_fact": facts}]))
    restarted = {"ansible.builtin.debug": {"msg": "restarted {{ inventory_hostname }}"}}
    (tasks / "restart.yml").write_text(yaml.safe_dump([restarted]))
    steps = [{"import_playbook": "zookeeper.yml"}]
    return site.play(*words, steps=steps, server_modes=modes)


@pytest.mark.parametrize("words", [[], ["--check"]])
def test_servers_of_zookeeper_that_are_to_restart_are_named_before_in_check_mode_too(
    site: Site, words: list[str]
) -> None:
    done = set_up_zookeeper(site, {"a": "leader", "c": "follower"}, *words)
    assert done.returncode == 0, done.stdout
    how = "Would restart" if words else "To restart, one at a time"
    assert f"{how}: c (follower), a (leader)" in done.stdout
    restarted = [line.split()[-1] for line in done.stdout.splitlines() if "restarted " in line]
    assert restarted == ([] if words else ["c", "a"])


def test_a_host_of_brokers_that_is_down_does_not_keep_zookeeper_from_being_changed(
    site: Site,
) -> None:
    """It may be why. That it was not looked at is told, and what other hosts show still counts."""
    site.ensemble = ["a"]
    (site.directory / "dead-c").touch()
    done = set_up_zookeeper(site, {"a": "standalone"})
    assert "restarted a" in done.stdout
    assert done.returncode != 0
    assert "c                          : ok=0    changed=0    unreachable=1" in done.stdout


def test_a_server_that_left_and_was_not_stopped_keeps_zookeeper_from_being_changed(
    site: Site,
) -> None:
    site.ensemble = ["a"]
    (site.directory / "dead-c").touch()
    script(site.directory / "bin/systemctl", "echo ActiveState=active\n")
    done = set_up_zookeeper(site, {"a": "standalone"})
    assert "b has left the group zookeeper" in " ".join(done.stdout.split())
    assert "restarted a" not in done.stdout
