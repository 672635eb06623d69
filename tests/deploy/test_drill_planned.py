"""Drills: planned work on hosts, under load, of which nobody notices anything."""

from __future__ import annotations

import pytest

from tests.deploy.client import all_replicas
from tests.deploy.deployed import Site
from tests.deploy.drilling import QUICK_S, Lab, await_in_sync, await_well, pids
from tests.deploy.load import load_on, under_way
from tests.deploy.rolling import holder
from tests.deploy.zookeepers import is_whole

pytestmark = [pytest.mark.drill, pytest.mark.timeout(900)]


def test_a_host_is_rebooted_and_nothing_is_lost_or_refused(site: Site, lab: Lab) -> None:
    """Its ZooKeeper server goes down with it; the other hosts' brokers are not touched."""
    cluster = site.widest
    victim = cluster.hosts[-1]
    kept = [broker for broker in cluster.brokers if broker.host is not victim]
    before, booted = pids(kept), victim.says("cat /proc/sys/kernel/random/boot_id")
    assert "No host asks for a reboot." in lab.play("reboot-hosts", "--check").worked().words
    with load_on(cluster, "drill-reboot") as load:
        under_way(load)
        load.breaks("reboot of a host", [b.id for b in cluster.brokers if b.host is victim])
        lab.play("reboot-hosts", "-e", f"host={victim.name}", "-e", "force=true").worked()
        under_way(load)
    load.assert_kept()
    load.assert_available(QUICK_S)
    assert victim.says("cat /proc/sys/kernel/random/boot_id") != booted
    await_well(cluster.brokers)
    await_in_sync(cluster)
    assert is_whole(cluster)
    assert (pids(kept), holder(cluster)) == (before, None)


def test_a_broker_is_drained_and_filled_again_by_moves_that_outlive_their_playbook(
    site: Site, lab: Lab
) -> None:
    cluster = site.widest
    drained, before = cluster.brokers[-1], pids(cluster.brokers)
    where = ("-e", f"dc={cluster.datacenter}", "-e", f"confirm={cluster.datacenter}")
    only = ("-e", f"drain={drained.id}", "-e", "only_needed=true", "-e", "throttle=1")

    def has() -> int:
        """How many partitions, but for the canary's, of which each broker gets one."""
        every = all_replicas(cluster.bootstrap)
        return sum(drained.id in e.assigned for e in every if "canary" not in e.partition)

    with load_on(cluster, "drill-drain") as load:
        under_way(load)
        load.breaks("a broker drained, and disks levelled", [])
        moving = lab.start("reassign", *where, *only)
        moving.reaches("Wait until it has ended")
        moving.kill()
        run = lab.play("reassign", *where, *only).worked()
        assert "has the plan of an earlier run" in run.words
        assert has() == 0
        lab.play("reassign", *where).worked()
        under_way(load)
    load.assert_kept()
    load.assert_available(QUICK_S)
    await_in_sync(cluster)
    assert has() > 0
    assert pids(cluster.brokers) == before
