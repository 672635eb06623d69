"""Drills: processes that are killed, hosts that lose their power, links that are cut."""

from __future__ import annotations

import pytest

from tests.deploy.deployed import Broker, Cluster, Site
from tests.deploy.drilling import Lab, await_that, await_well, pids
from tests.deploy.load import Load

pytestmark = [pytest.mark.drill, pytest.mark.timeout(300)]

ENOUGH = 200  # acknowledged records after which a load counts as running


def under_way(load: Load, more: int = ENOUGH) -> None:
    """Return once `more` further records are acknowledged."""
    goal = load.acknowledged() + more
    await_that(lambda: load.acknowledged() >= goal, f"{more} more records to be acknowledged")


def partitions_of(cluster: Cluster) -> int:
    """Enough that every broker leads one."""
    return len(cluster.brokers)


def test_a_killed_broker_comes_back_with_all_that_it_acknowledged(site: Site, lab: Lab) -> None:
    cluster = site.widest
    victim, *others = cluster.brokers
    before = pids(cluster.brokers)
    with Load(cluster.bootstrap, "drill-kill", partitions_of(cluster)) as load:
        under_way(load)
        lab.do("kill", victim.host.name, victim.unit)
        await_that(lambda: victim.pid() not in (0, before[victim]), f"{victim} to be started again")
        await_well([victim])
        under_way(load)
    load.assert_kept()
    assert pids(others) == {broker: before[broker] for broker in others}


def test_brokers_serve_on_while_zookeeper_is_killed_and_comes_back(site: Site, lab: Lab) -> None:
    cluster = site.widest
    server = cluster.zookeepers[0]
    unit = "kdist-zookeeper.service"
    before, first = pids(cluster.brokers), server.unit(unit, "MainPID")["MainPID"]
    with Load(cluster.bootstrap, "drill-zookeeper", partitions_of(cluster)) as load:
        under_way(load)
        lab.do("kill", server.name, unit)
        under_way(load)
        await_that(
            lambda: server.unit(unit, "MainPID")["MainPID"] not in ("0", first),
            "ZooKeeper to be started again",
        )
        await_that(lambda: all(has_session(b) for b in cluster.brokers), "every broker's session")
        under_way(load)
    load.assert_kept()
    assert pids(cluster.brokers) == before
    assert sum(broker.health()["controller"] for broker in cluster.brokers) == 1


def has_session(broker: Broker) -> bool:
    return broker.health().get("zookeeper") == "connected"


def test_a_host_that_lost_its_power_comes_back_by_itself(site: Site, lab: Lab) -> None:
    cluster = site.widest
    victim = cluster.hosts[-1]
    lost = [broker for broker in cluster.brokers if broker.host is victim]
    kept = [broker for broker in cluster.brokers if broker.host is not victim]
    before = pids(kept)
    with Load(cluster.bootstrap, "drill-power", partitions_of(cluster)) as load:
        under_way(load)
    for broker in lost:
        flush(broker)
    lab.do("pull", victim.name)
    lab.do("on", victim.name)
    await_well(lost)
    await_well(kept)
    load.assert_kept()
    assert pids(kept) == before
    assert victim.says("systemctl --failed --plain --no-legend") == ""


def flush(broker: Broker) -> None:
    """Stop the broker cleanly and start it again, which flushes its logs to the disk.

    With one replica and no flush, a power cut may lose acknowledged records.
    """
    broker.host.says(f"systemctl restart {broker.unit}")
    await_well([broker])


def test_each_datacenter_keeps_serving_while_the_link_between_them_is_cut(
    site: Site, lab: Lab
) -> None:
    one, other = site.clusters[:2]
    stranger, near = other.hosts[0], one.brokers[0]
    reach = f"nc -z -w 2 {near.host['kdist_address']} {near.port}"
    before = pids(site.brokers)
    lab.do("cut", one.datacenter, other.datacenter)
    try:
        assert not stranger.works(reach)
        for cluster in (one, other):
            with Load(cluster.bootstrap, "drill-link", partitions_of(cluster)) as load:
                under_way(load)
            load.assert_kept()
    finally:
        lab.do("heal")
    assert stranger.works(reach)
    assert pids(site.brokers) == before
