"""Partitions are moved by a plan that is shown first, in a unit that outlives the playbook."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from deploy_site import Site, site_at

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]  # a play starts hundreds of processes


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    with site_at(tmp_path) as made:
        yield made


def reassign(site: Site, *words: str, **given: object) -> subprocess.CompletedProcess[str]:
    return site.play(*words, steps=[{"import_playbook": "reassign.yml"}], dc="dc1", **given)


def begun(site: Site) -> list[str]:
    """What kdist was asked to do, in order."""
    return [call.split()[1] for call in site.calls("reassign")]


def plan_of(site: Site) -> Path:
    return site.directory / "etc/reassign/plan.json"


def test_a_plan_is_shown_agreed_to_and_carried_out(site: Site) -> None:
    done = reassign(site, confirm="dc1", drain_host="b", drain=101, only_needed=True)
    assert done.returncode == 0, done.stdout
    planned, executed, verified = site.calls("reassign")
    assert planned.startswith(
        "reassign plan --drain=101 --drain-host=b --only-needed --throttle=50"
    )
    assert executed.startswith(f"reassign execute {plan_of(site)} --zookeeper 127.0.0.1:2181")
    assert verified.startswith(f"reassign verify {plan_of(site)}")
    assert "a table" in done.stdout
    assert "set `state: retired` for their disks" in " ".join(done.stdout.split())
    assert not plan_of(site).exists()


def test_topics_get_another_number_of_replicas(site: Site) -> None:
    done = reassign(site, confirm="dc1", topics="clicks,orders", replication_factor=3)
    assert done.returncode == 0, done.stdout
    assert site.calls("reassign plan clicks orders --replication-factor=3 ")


def test_nothing_moves_unless_the_datacenter_is_typed_nor_in_check_mode(site: Site) -> None:
    refused = reassign(site, confirm="dc2")
    assert refused.returncode != 0
    assert "dc1 was not typed: nothing was done." in refused.stdout
    shown = reassign(site, "--check")
    assert shown.returncode == 0, shown.stdout
    assert "a table" in shown.stdout
    assert begun(site) == ["plan", "plan"]
    assert not plan_of(site).exists()


def test_a_plan_without_moves_asks_for_nothing(site: Site) -> None:
    (site.directory / "plan").write_text('{"partitions": []}')
    done = reassign(site)
    assert done.returncode == 0, done.stdout
    assert begun(site) == ["plan"]


def test_moves_that_have_not_ended_well_are_gone_on_with_by_the_same_words_alone(
    site: Site,
) -> None:
    (site.directory / "unfinished").touch()
    stopped = reassign(site, confirm="dc1", drain=101)
    assert stopped.returncode != 0
    assert "It ended with: ['broker 202 is down']" in " ".join(stopped.stdout.split())
    assert plan_of(site).exists()
    other = reassign(site, confirm="dc1")
    assert other.returncode != 0
    assert "An earlier plan is not done yet, of --drain=101" in " ".join(other.stdout.split())
    (site.directory / "unfinished").unlink()
    resumed = reassign(site, drain=101)
    assert resumed.returncode == 0, resumed.stdout
    assert begun(site) == ["plan", *["execute", "verify"] * 2]
    assert not plan_of(site).exists()


def test_moves_that_go_on_in_their_unit_are_only_waited_for(site: Site) -> None:
    plan_of(site).parent.mkdir()
    plan_of(site).write_text("{}")
    (plan_of(site).parent / "words.json").write_text("[]")
    (site.directory / "reassigns").write_text("active")
    done = reassign(site)
    assert done.returncode == 0, done.stdout
    assert begun(site) == ["verify"]
