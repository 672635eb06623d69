"""Drills: upgrades that are killed at each of their steps, rollbacks, and a release that fails."""

from __future__ import annotations

import time
from typing import NamedTuple

import pytest

from tests.deploy.deployed import ROOT, Cluster, Site
from tests.deploy.drilling import QUICK_S, Lab, await_in_sync, await_well, next_version, note, pids
from tests.deploy.load import load_on, under_way
from tests.deploy.releases import fail, make_faulty, mend
from tests.deploy.rolling import OWNER, current, fingerprints, holder, of_mirrors, versions

pytestmark = [pytest.mark.drill, pytest.mark.timeout(900)]

RUN = "drill-1"
ROLL, END = "Restart brokers", "End the roll"


class Step(NamedTuple):
    """A step of an upgrade: what has just been done, and the task of a play that comes next.

    `is_locked`: whether the roll has the lock by now; `is_down`: whether it has stopped a broker.
    """

    done: str
    next_task: str
    play: str = ""
    is_locked: bool = False
    is_down: bool = False


STEPS = (
    Step("bundle unpacked", "kdist_release : Make the virtual environment"),
    Step("release staged", "kdist_broker : Write each broker's wanted configuration"),
    Step("settings written", "kdist_broker : Write the unit"),
    Step("roll planned", "kdist_roll : Print the plan"),
    Step("lock taken", "kdist_roll : Ask whether the broker may go down", ROLL, True),
    Step("broker stopped", "kdist_broker : Switch its release", ROLL, True, is_down=True),
    Step("release switched", "kdist_broker : Reset systemd's count", ROLL, True, is_down=True),
    Step("broker started", "kdist_broker : Wait until it serves", ROLL, True),
    Step("broker compared", "kdist_roll : Wait until it is fully back, and serves", ROLL, True),
    Step("all restarted", "kdist_release : Look for the current", END, True),
    Step("hosts switched", "Release the lock", END, True),
    Step("lock released", "kdist_mirror : "),
)


def to(version: str) -> list[str]:
    """An upgrade's arguments; all are one run, so that the next one resumes the last."""
    mine = ["-e", f"kdist_roll_owner='{OWNER}'", "-e", f"kdist_roll_run={RUN}"]
    return ["-e", f"kdist_version={version}", *mine]


@pytest.mark.timeout(3600)  # fifteen plays
def test_an_upgrade_killed_at_each_of_its_steps_is_resumed_and_rolled_back_under_load(
    site: Site, lab: Lab
) -> None:
    """Each run resumes the one before, up to the next step; the last one completes."""
    cluster = site.widest
    was = cluster.hosts[0]["kdist_version"]
    new = next_version(was)
    assert (ROOT / "dist" / f"kdist-{new}.tar").exists(), "`make lab-test` builds it"
    forget(site, new)
    upgraded = 0
    with load_on(cluster, "drill-upgrade") as load:
        load.breaks("upgrade killed at each step", [broker.id for broker in cluster.brokers])
        for step in STEPS:
            upgraded = dies_after(step, lab, cluster, was, new, upgraded)
        done = pids(site.brokers)
        lab.play("upgrade", *to(new)).worked()
        assert set(versions(*site.clusters).values()) == {new}
        assert current(site) == of_mirrors(site) == {new}
        assert pids(done) == done, "brokers that were upgraded already are restarted"
        assert [holder(each) for each in site.clusters] == [None for _ in site.clusters]

        assert "leave it away" in lab.play("rollback", *to(new)).failed().words
        lab.play("rollback").worked()
    load.assert_kept()
    load.assert_available(QUICK_S)
    assert set(versions(*site.clusters).values()) == {was}
    assert current(site) == of_mirrors(site) == {was}
    assert set(lab.play("site").worked().changed.values()) == {0}


def forget(site: Site, version: str) -> None:
    """Make the release incomplete where an earlier drill has left it, so that it is staged anew."""
    for host in site.hosts:
        host.says(f"rm -f /opt/kdist/releases/{version}-*/RELEASE.json")


def dies_after(step: Step, lab: Lab, cluster: Cluster, was: str, new: str, upgraded: int) -> int:
    """Kill an upgrade once a step is done; return how many brokers run the new release."""
    begin_s = time.monotonic()
    play = lab.start("upgrade", *to(new))
    play.reaches(rf"PLAY \[{step.play}")
    play.reaches(rf"TASK \[{step.next_task}")
    play.kill()
    found = list(versions(cluster).values())
    counts = {version: found.count(version) for version in (was, new, "")}
    spent_s = time.monotonic() - begin_s
    note(f"upgrade killed, {step.done}: {counts[new]} new, {counts['']} down, {spent_s:.0f} s")
    assert set(found) <= {was, new, ""}, step
    assert counts[""] == step.is_down, step
    assert counts[new] >= upgraded, step
    assert holder(cluster) == (OWNER if step.is_locked else None), step
    return counts[new]


def test_a_broker_that_cannot_start_its_new_release_goes_back_alone(site: Site, lab: Lab) -> None:
    """It runs what it ran before, with its settings; one that blames its disk stays down."""
    cluster = site.widest
    (other,) = [each for each in site.clusters if each is not cluster]
    was = cluster.hosts[0]["kdist_version"]
    faulty = make_faulty(was)
    victim, on_disk = cluster.brokers[0], other.brokers[0]
    fail(victim, 1)
    fail(on_disk, 78)
    try:
        with load_on(cluster, "drill-faulty") as load:
            under_way(load)
            load.breaks("a broker that cannot start its new release", [victim.id])
            words = lab.play("upgrade", *to(faulty)).failed().words
            for sentence in (
                f"broker {victim.id} did not start with what is wanted; it runs its former release",
                f"broker {on_disk.id} did not start with what is wanted; its disk has failed",
            ):
                assert sentence in words
            assert versions(*site.clusters) == {
                broker: {victim: was, on_disk: ""}.get(broker, faulty) for broker in site.brokers
            }
            assert [holder(each) for each in site.clusters] == [None for _ in site.clusters]
            await_in_sync(cluster)
    finally:
        mend(victim)
        mend(on_disk)
    load.assert_kept()
    load.assert_available(QUICK_S)
    on_disk.host.says(f"systemctl start {on_disk.unit}")
    await_well([on_disk])
    lab.play("rollback").worked()
    assert set(versions(*site.clusters).values()) == {was}


def test_check_mode_tells_of_an_upgrade_and_a_limit_upgrades_one_datacenter_alone(
    site: Site, lab: Lab
) -> None:
    cluster = site.widest
    (other,) = [each for each in site.clusters if each is not cluster]
    was = cluster.hosts[0]["kdist_version"]
    new = next_version(was)
    before, files = pids(site.brokers), fingerprints(site.hosts)
    told = lab.play("site", "--check", *to(new)).worked().words
    for broker in site.brokers:
        assert f"restart broker {broker.id} on {broker.host}: it runs another release" in told
    assert (pids(site.brokers), fingerprints(site.hosts)) == (before, files)

    run = lab.play("upgrade", *to(new), "--limit", other.datacenter).worked()
    assert set(run.changed) <= {host.name for host in other.hosts} | {"localhost"}
    assert versions(*site.clusters) == {
        broker: was if broker in cluster.brokers else new for broker in site.brokers
    }
    lab.play("rollback", "--limit", other.datacenter).worked()
    assert set(versions(*site.clusters).values()) == {was}
    assert pids(cluster.brokers) == {broker: before[broker] for broker in cluster.brokers}
    assert fingerprints(cluster.hosts) == {host: files[host] for host in cluster.hosts}
