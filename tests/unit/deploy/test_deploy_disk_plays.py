"""A disk is replaced, or goes out of service, on a site of three hosts: who is asked, who stops."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from deploy_site import OLD, Site, site_at
from monitoring_files import alertmanager

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]  # a play starts hundreds of processes


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    with site_at(tmp_path) as made:
        yield made


# A disk is replaced


def replace_disk(site: Site, *, is_mounted: bool = False, **given: Any) -> str:
    """Replace d01; role kdist_disks finds a new one in its place, unless d01 is mounted and ours.

    Returns what the play said.
    """
    disks = site.directory / "tree/roles/kdist_disks"
    found = {"kdist_disks_disk": {"id": "d01"}, "usable": True}
    found["action"] = "keep" if is_mounted else "format"
    for page, facts in {
        "main": {"kdist_disks_usable": ["d01"], "kdist_disks_problems": []},
        "configure": {"kdist_disks_result": {"results": [found]}},
    }.items():
        task = {"ansible.builtin.set_fact": facts}
        (disks / f"tasks/{page}.yml").write_text(yaml.safe_dump([task]))
    (disks / "meta/argument_specs.yml").unlink()
    (site.directory / "etc/system").mkdir()
    (site.directory / "etc/system/kdist-broker@.service").touch()
    steps = [{"import_playbook": "replace-disk.yml"}]
    return site.play(steps=steps, disk="a:d01", **given).stdout


CONFIRMED = {"confirm": "a:d01"}


def states(site: Site, disk: str, state: str, sub_state: str) -> None:
    """Have systemd say this of a unit."""
    page = site.directory / "units" / disk
    said = page.read_text().replace("=active", f"={state}").replace("=running", f"={sub_state}")
    page.write_text(said)


def test_a_replaced_disks_broker_runs_again_what_it_ran_before(site: Site) -> None:
    """Whatever release the inventory wants: after an upgrade by -e it was left down, in green."""
    said = replace_disk(site, **CONFIRMED)
    assert site.events() == ["stop d01", "start d01"], said
    assert site.runs()["d01"] == OLD
    assert "failed=0" in said
    asked, locked, again, elected, unlocked, limited, returned, freed = site.calls("")
    assert asked.startswith("gate --json --config")
    assert locked.startswith("gate lock")
    assert again == asked
    assert elected.startswith("cluster elect --unclean --yes --replaced 101")
    # The gate protects the broker while it fills its disk, for hours.
    assert unlocked.startswith("gate unlock")
    assert limited.startswith("reassign refill 101 --broker 127.0.0.1:")
    assert limited.endswith("--throttle 100")
    assert "--after --measure" in returned
    assert freed == limited.replace("--throttle 100", "--no-throttle")


def test_a_disk_is_not_replaced_while_the_cluster_needs_its_broker(site: Site) -> None:
    site.topics(here_alone=[101])
    said = replace_disk(site, **CONFIRMED)
    assert "Broker 101 runs, and may not go down now" in said
    assert site.events() == []
    assert site.calls("gate lock") == []


def test_a_disk_is_not_replaced_if_another_died_since_the_gate_said_yes(site: Site) -> None:
    """Whoever types the disk's name may take hours over it."""
    site.topics(both=[101, 303])
    (site.directory / "on-lock").write_text("c")
    said = " ".join(replace_disk(site, **CONFIRMED).split())
    assert "Broker 101 runs, and may not go down now" in said
    assert "both-0 would have 0 in-sync replicas" in said
    assert site.events() == []
    assert site.calls("")[-1].startswith("gate unlock")


@pytest.mark.parametrize("is_registered", [True, False])
def test_a_broker_that_starts_is_stopped_for_its_disk_if_the_gate_allows_it_or_it_has_nothing(
    site: Site, is_registered: bool
) -> None:
    states(site, "d01", "activating", "start")
    site.topics(here_alone=[101])
    if is_registered:
        (site.directory / "registered-d01").touch()
    said = replace_disk(site, **CONFIRMED)
    assert site.events() == ([] if is_registered else ["stop d01", "start d01"]), said


def test_a_disk_is_not_replaced_while_another_run_holds_the_lock(site: Site) -> None:
    (site.directory / "locked").touch()
    said = " ".join(replace_disk(site, **CONFIRMED).split())
    assert "msg: 'kdist: another run holds the lock. If that run has died" in said
    assert site.events() == []


def test_a_broker_that_fills_its_own_disk_is_only_waited_for(site: Site) -> None:
    """Nobody has to type anything, even while the cluster needs it."""
    site.topics(here_alone=[101])
    site.lacks((9, 4_000_000_000), (5, 1_000_000_000))
    said = replace_disk(site, is_mounted=True)
    assert [each for each in site.events() if each.startswith("stop")] == [], said
    assert {call.split(" --")[0] for call in site.calls("")} == {"gate", "reassign refill 101"}
    assert all("--measure" in call for call in site.calls("gate"))
    assert "a: broker 101: 4.0 GB of 9 partitions to go" in said


def test_a_broker_is_waited_for_as_long_as_it_gets_nearer_and_no_longer(site: Site) -> None:
    """It gets nearer for twice the time that it may take without; then it does not."""
    nearer = [(9 - n, 1_000_000_000 * (9 - n)) for n in range(7)]
    site.lacks(*nearer)
    said = " ".join(replace_disk(site, **CONFIRMED).split())
    assert len(site.calls("gate --json --after")) > len(nearer)
    assert "and no nearer for 3 s: not yet in the ISR" in said
    assert site.calls("")[-1].endswith("--no-throttle")
    assert "failed=1" in said
    assert site.events() == ["stop d01", "start d01"]


@pytest.mark.parametrize("has_broker", [True, False])
def test_a_disk_that_is_absent_is_an_error_if_it_never_had_a_broker(
    site: Site, has_broker: bool
) -> None:
    """A new host, all of whose disks had wrong names in the inventory, was green."""
    if not has_broker:
        shutil.rmtree(site.directory / "etc/brokers/d01")
    rows = [
        {
            "kdist_disks_disk": {"id": "d01"},
            "usable": False,
            "hangs": False,
            "problem": "d01 (/dev/x) is absent",
        },
        {
            "kdist_disks_disk": {"id": "d09"},
            "usable": False,
            "hangs": False,
            "problem": "d09 (/dev/y) is busy",
        },
        {"kdist_disks_disk": {"id": "d08"}, "usable": True, "hangs": False, "problem": ""},
    ]
    report = {"ansible.builtin.include_role": {"name": "kdist_disks", "tasks_from": "report"}}
    disks = {"hosts": "a", "gather_facts": False, "tasks": [report]}
    steps: list[dict[str, Any]] = [disks, {"import_playbook": "summary.yml"}]
    done = site.play(steps=steps, kdist_disks_result={"results": rows})
    told = " ".join(done.stdout.split())
    assert (done.returncode == 0) is has_broker, done.stdout
    assert ("a: d01 (/dev/x) is absent, and has never had a broker" in told) is not has_broker
    assert "a: d09 (/dev/y) is busy" in told


# A disk is taken out of service


WENT_ON = "went on, with silences {{ kdist_roll_silences | default({}) }}"


def take_out(
    site: Site, *words: str, state: str = "failed", **given: Any
) -> subprocess.CompletedProcess[str]:
    """Give d01 this state, and play what site.yml does about it, and a play after that."""
    pages = ["leave", "retire"]
    roles = [
        {"ansible.builtin.include_role": {"name": "kdist_disks", "tasks_from": page}}
        for page in pages
    ]
    usual = {"gather_facts": False}
    steps = [{"hosts": "broker", "tasks": [each]} | usual for each in roles]
    steps.append(usual | {"hosts": "all", "tasks": [{"ansible.builtin.debug": {"msg": WENT_ON}}]})
    return site.play(*words, steps=steps, disk_states={"d01": state}, **given)


def test_a_broker_that_is_taken_away_is_silent_until_monitoring_knows_of_it(site: Site) -> None:
    """Prometheus looks for it until the end of the run, and the lock is free long before that."""
    site.topics(elsewhere=[202, 303])
    site.monitors = ["b"]
    with alertmanager() as (port, silences):
        done = take_out(site, kdist_port_overrides={"alertmanager": port})
    assert done.returncode == 0, done.stdout
    (silence,) = silences.values()
    matchers = {each["name"]: each["value"] for each in silence["matchers"]}
    assert matchers == {"dc": "dc1", "broker": "101"}
    assert silence["status"]["state"] == "active"
    # What the run silences after that does not take its place.
    assert done.stdout.count("went on, with silences {}") == 3


def left_of(site: Site) -> list[str]:
    """What there is of d01's broker."""
    found = (site.directory / "etc").rglob("*d01*")
    return sorted(str(each.relative_to(site.directory / "etc")) for each in found)


@pytest.mark.parametrize("state", ["failed", "retired"])
def test_a_broker_of_a_disk_that_is_out_of_service_is_stopped_disabled_and_removed(
    site: Site, state: str
) -> None:
    """It has no partitions any more; nobody would watch it, nor roll it, if it ran on."""
    site.topics(elsewhere=[202, 303])
    (site.directory / "etc/broker-d01.properties").symlink_to("brokers/d01/current/x")
    done = take_out(site, state=state)
    assert done.returncode == 0, done.stdout
    assert sorted(site.events()) == ["disable d01", "stop d01"]
    assert left_of(site) == []
    assert [call.split(" --")[0] for call in site.calls("")] == [
        *("gate", "gate", "gate lock", "gate", "gate unlock")
    ]
    assert take_out(site, state=state).returncode == 0
    assert len(site.events()) == 2


def test_a_broker_with_partitions_keeps_its_disks_state_and_ends_the_run_for_all(
    site: Site,
) -> None:
    site.topics(everywhere=[101, 202, 303])
    before = left_of(site)
    done = take_out(site)
    assert done.returncode != 0
    assert "its broker 101 runs and has 1 partition:" in " ".join(done.stdout.split())
    assert "went on" not in done.stdout
    assert (site.events(), left_of(site)) == ([], before)


def test_a_broker_that_has_the_canarys_partition_alone_is_empty(site: Site) -> None:
    """The canary makes one for each broker that has none: it never became empty."""
    site.topics(**{"elsewhere": [202, 303], "kdist.canary": [101, 202]})
    done = take_out(site)
    assert done.returncode == 0, done.stdout
    assert sorted(site.events()) == ["disable d01", "stop d01"]


def test_an_empty_broker_is_not_taken_away_while_partitions_move(site: Site) -> None:
    """They may be on their way to it."""
    site.topics(elsewhere=[202, 303])
    (site.directory / "moving").touch()
    assert take_out(site).returncode != 0
    assert site.events() == []


def test_a_broker_whose_disk_died_is_disabled_and_removed_with_its_partitions(site: Site) -> None:
    """It is not registered, and would fail at each boot."""
    site.topics(everywhere=[101, 202, 303])
    states(site, "d01", "failed", "failed")
    done = take_out(site)
    assert done.returncode == 0, done.stdout
    assert "disable d01" in site.events()
    assert left_of(site) == []


def test_a_broker_whose_disk_the_inventory_does_not_have_is_an_error(site: Site) -> None:
    (site.directory / "etc/brokers/d07").mkdir()
    look = {"ansible.builtin.include_role": {"name": "kdist_disks", "tasks_from": "leave"}}
    disks = {"hosts": "a", "gather_facts": False, "tasks": [look]}
    steps: list[dict[str, Any]] = [disks, {"import_playbook": "summary.yml"}]
    done = site.play(steps=steps)
    assert done.returncode != 0
    assert "a: there is a broker of d07" in done.stdout
    assert (site.directory / "etc/brokers/d07").is_dir()


def test_check_mode_tells_of_a_broker_that_would_be_taken_away(site: Site) -> None:
    site.topics(elsewhere=[202, 303])
    before = left_of(site)
    done = take_out(site, "--check")
    assert done.returncode == 0, done.stdout
    assert "broker 101 would be stopped, disabled and removed" in " ".join(done.stdout.split())
    assert (site.events(), left_of(site)) == ([], before)
