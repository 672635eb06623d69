"""Drills: disks that hang or are slow, as failing ones are for minutes before they die."""

from __future__ import annotations

import pytest

from tests.deploy.client import leaders
from tests.deploy.deployed import Site
from tests.deploy.drilling import QUICK_S, Lab, await_in_sync, await_that, await_well, pids
from tests.deploy.load import load_on, under_way
from tests.deploy.test_drill_disks import neighbours
from tests.deploy.test_drill_hosts import SLACK_S, session_s

pytestmark = [pytest.mark.drill, pytest.mark.timeout(600)]


def test_a_broker_whose_disk_hangs_is_replaced_and_goes_on_after_it(site: Site, lab: Lab) -> None:
    """Its ZooKeeper session ends, others lead, and the same process takes part again later."""
    cluster = site.widest
    victim, _ = neighbours(site)
    before = pids(cluster.brokers)
    with load_on(cluster, "drill-hang") as load:
        under_way(load)
        load.breaks("a disk that hangs", [victim.id])
        lab.do("disk", "hang", victim.host.name, victim.instance)
        try:
            await_that(
                lambda: victim.id not in leaders(cluster.bootstrap, load.topic).values(),
                f"others to lead what {victim} has led",
            )
            under_way(load)
        finally:
            lab.do("disk", "thaw", victim.host.name, victim.instance)
        await_well([victim])
        await_in_sync(cluster)
        under_way(load)
    load.assert_kept()
    load.assert_available(session_s(cluster) + SLACK_S)
    assert pids(cluster.brokers) == before


def test_brokers_serve_on_with_a_disk_that_is_slow(site: Site, lab: Lab) -> None:
    """An acknowledgement waits for the replicas' page caches, not for their disks."""
    cluster = site.widest
    victim, _ = neighbours(site)
    before = pids(cluster.brokers)
    with load_on(cluster, "drill-slow") as load:
        under_way(load)
        load.breaks("a disk of 60 writes a second", [victim.id])
        lab.do("disk", "slow", victim.host.name, victim.instance)
        try:
            under_way(load)
            under_way(load)
        finally:
            lab.do("disk", "thaw", victim.host.name, victim.instance)
        await_in_sync(cluster)
    load.assert_kept()
    load.assert_available(QUICK_S)
    assert pids(cluster.brokers) == before
