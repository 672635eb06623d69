"""Drills: restarts, upgrades and rollbacks under load; rolls that are refused, or die half way."""

from __future__ import annotations

import json
import signal
from contextlib import suppress

import pytest

from kdist.errors import UserError
from tests.deploy.deployed import ROOT, Broker, Cluster, Site
from tests.deploy.drilling import QUICK_S, Lab, await_that, await_well, next_version, pids
from tests.deploy.load import load_on, under_way

pytestmark = [pytest.mark.drill, pytest.mark.timeout(900)]

OWNER, RUN = "a drill", "drill-1"
STARTS = 5  # the unit's start limit for a quarter of an hour


def upgrade(version: str) -> list[str]:
    mine = ["-e", f"kdist_roll_owner='{OWNER}'", "-e", f"kdist_roll_run={RUN}"]
    return ["-e", f"kdist_version={version}", *mine]


def versions(cluster: Cluster) -> dict[Broker, str]:
    """The release that each broker runs with."""
    return {broker: broker.health().get("version", "") for broker in cluster.brokers}


def current(site: Site) -> set[str]:
    """The versions of all hosts' own releases, including those of hosts without a broker."""
    return {version_of(host.says("readlink /opt/kdist/current")) for host in site.hosts}


def version_of(release: str) -> str:
    """`0.1.0` of `releases/0.1.0-1a2b3c4d5e6f` (pure)."""
    return release.removeprefix("releases/").rpartition("-")[0]


def of_mirrors(site: Site) -> set[str]:
    """The versions that the mirror processes actually run."""
    find = "grep --only-matching --max-count=1 'releases/[^/]*' /proc"
    return {
        version_of(host.says(f"{find}/{pid}/maps"))
        for host in site.group("mirror")
        for flow in host["kdist_mirrors"]
        for pid in host.unit(f"kdist-mirror@{flow['name']}.service", "MainPID").values()
    }


def holder(cluster: Cluster) -> str | None:
    """The holder of the roll's lock; None if it is free."""
    said = json.loads(cluster.asks("gate", "holder", "--json", *zookeeper_of(cluster)))
    owner: str | None = said["owner"]
    return owner


def unlock(cluster: Cluster) -> None:
    """Abandon a refused roll, so that the next one starts afresh instead of resuming it."""
    cluster.asks("gate", "unlock", "--force", *zookeeper_of(cluster))


def zookeeper_of(cluster: Cluster) -> tuple[str, str]:
    return "--zookeeper", cluster.hosts[0]["kdist_zookeeper_connect"]


def restart(broker: Broker, times: int) -> None:
    """Restart the broker `times` times, after resetting systemd's count of starts."""
    unit = broker.unit
    broker.host.shell.run(
        f"systemctl reset-failed {unit}; for _ in $(seq {times}); do systemctl restart {unit}; done"
    )


def test_a_wrong_setting_is_refused_before_any_broker_stops(site: Site, lab: Lab) -> None:
    before = pids(site.brokers)
    wrong = json.dumps({"kdist_broker_config_host": {"log.segment.bytes": "many"}})
    run = lab.play("rolling-restart", "-e", wrong)
    assert run.status != 0
    assert "log.segment.bytes" in run.said
    assert pids(site.brokers) == before


def test_a_roll_that_would_take_partitions_away_is_refused(site: Site, lab: Lab) -> None:
    before = pids(site.brokers)
    with load_on(site.widest, "drill-refused", replicas=1) as load:
        run = lab.play("rolling-restart", "-e", "kdist_roll_gate_wait_s=5")
    assert run.status != 0
    assert "no replica elsewhere" in run.said
    assert pids(site.brokers) == before
    load.assert_kept()
    site.widest.remove(load.topic)


def test_a_rolling_restart_loses_and_refuses_nothing(site: Site, lab: Lab) -> None:
    """Not even a broker that has used up its unit's start limit stops the roll."""
    for cluster in site.clusters:
        unlock(cluster)
    restart(site.widest.brokers[0], STARTS)
    before = pids(site.brokers)
    with load_on(site.widest, "drill-restart") as load:
        under_way(load)
        load.breaks("rolling restart of all", [broker.id for broker in site.widest.brokers])
        lab.play("rolling-restart").worked()
    load.assert_kept()
    load.assert_available(QUICK_S)
    after = pids(site.brokers)
    assert {each: pid for each, pid in after.items() if pid in (0, before[each])} == {}
    assert [holder(cluster) for cluster in site.clusters] == [None for _ in site.clusters]


def test_a_broker_that_systemd_has_given_up_is_started_again(site: Site, lab: Lab) -> None:
    """It failed too often, so that systemd would refuse to start it for a quarter of an hour."""
    victim, *others = site.widest.brokers
    restart(victim, STARTS + 1)
    assert victim.host.unit(victim.unit, "ActiveState") == {"ActiveState": "failed"}
    assert not victim.host.works(f"systemctl start {victim.unit}")
    before = pids(others)
    lab.play("site").worked()
    await_well([victim])
    assert pids(others) == before


@pytest.mark.timeout(1200)  # five plays: on a slow host the last was cut off after 600 s
def test_an_upgrade_that_died_is_resumed_and_rolled_back_under_load(site: Site, lab: Lab) -> None:
    cluster = site.widest
    was = cluster.hosts[0]["kdist_version"]
    new = next_version(was)
    with load_on(site.widest, "drill-upgrade") as load:
        load.breaks("upgrade and rollback", [broker.id for broker in cluster.brokers])
        dies_after_its_first_broker(lab, cluster, new)
        half = versions(cluster)
        assert set(half.values()) == {was, new}
        assert holder(cluster) == OWNER

        another = lab.play("upgrade", "-e", f"kdist_version={new}")
        assert another.status != 0
        assert OWNER in another.said
        done = {broker: broker.pid() for broker, version in half.items() if version == new}

        lab.play("upgrade", *upgrade(new)).worked()
        assert set(versions(cluster).values()) == {new}
        assert current(site) == of_mirrors(site) == {new}
        assert pids(done) == done
        assert holder(cluster) is None

        held = lab.play("rollback", "-e", f"kdist_version={new}")
        assert "leave it away" in held.said
        lab.play("rollback").worked()
    load.assert_kept()
    load.assert_available(QUICK_S)
    assert set(versions(cluster).values()) == {was}
    assert current(site) == of_mirrors(site) == {was}
    assert set(lab.play("site").worked().changed.values()) == {0}


def dies_after_its_first_broker(lab: Lab, cluster: Cluster, new: str) -> None:
    """Start an upgrade, and kill it once a broker runs with the new release."""
    assert (ROOT / "dist" / f"kdist-{new}.tar").exists(), "`make lab-test` builds it"
    roll = lab.start("upgrade", *upgrade(new))
    try:
        with suppress(UserError):  # the playbook's output says more
            await_that(
                lambda: new in versions(cluster).values() or roll.poll() is not None,
                "the first broker to run with the new release",
                timeout_s=240,
            )
    finally:
        roll.send_signal(signal.SIGKILL)
        said, _ = roll.communicate()
    assert new in versions(cluster).values(), said[-3000:]
