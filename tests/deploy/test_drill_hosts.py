"""Drills: processes that are killed, hosts that lose their power, links that are cut.

What is acknowledged is kept, nobody is shown an error, and each partition takes records again
within the limits that the settings promise.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import pytest

from tests.deploy.client import leaders, make_topic, produce_one
from tests.deploy.deployed import Broker, Cluster, Member, Site
from tests.deploy.drilling import QUICK_S, Lab, await_in_sync, await_that, await_well, pids, seconds
from tests.deploy.load import load_on, under_way
from tests.deploy.zookeepers import UNIT, is_whole, leader, processes

pytestmark = [pytest.mark.drill, pytest.mark.timeout(900)]

CUT_S = 20.0
LATE_S = 300.0  # that ZooKeeper is later than brokers; systemd gives up a service that ends sooner
SLACK_S = 4.0  # for elections, clients that hear of them, and ZooKeeper's rounds of expiries


def session_s(cluster: Cluster) -> float:
    return seconds(cluster, "zookeeper.session.timeout.ms")


def test_a_killed_brokers_session_is_ended_by_systemd_and_the_broker_started(
    site: Site, lab: Lab
) -> None:
    """ExecStopPost ends the session at once; without it, others lead once the broker is back."""
    cluster = site.widest
    victim, *others = cluster.brokers
    before = pids(cluster.brokers)
    with load_on(cluster, "drill-kill") as load:
        under_way(load)
        load.breaks("kill -9 of a broker", [victim.id])
        begin_s = int(time.time())
        lab.do("kill", victim.host.name, victim.unit)
        await_that(lambda: victim.pid() not in (0, before[victim]), f"{victim} to be started again")
        await_well([victim])
        await_in_sync(cluster)
        under_way(load)
    load.assert_kept()
    load.assert_available(QUICK_S)
    assert pids(others) == {broker: before[broker] for broker in others}
    journal = f"journalctl --unit {victim.unit} --since @{begin_s} --output cat"
    (ended,) = victim.host.says(f"{journal} | grep 'the session of broker'").splitlines()
    assert ended.endswith("is ended")


def test_brokers_serve_on_while_zookeepers_leader_is_killed(site: Site, lab: Lab) -> None:
    cluster = site.widest
    server = leader(cluster)
    before, first = pids(cluster.brokers), server.unit(UNIT, "MainPID")["MainPID"]
    with load_on(cluster, "drill-zookeeper") as load:
        under_way(load)
        load.breaks("kill -9 of ZooKeeper's leader", [])
        lab.do("kill", server.name, UNIT)
        under_way(load)
        await_that(
            lambda: server.unit(UNIT, "MainPID")["MainPID"] not in ("0", first),
            "ZooKeeper to be started again",
        )
        await_that(partial(is_whole, cluster), "the ensemble to be whole")
        await_that(lambda: all(has_session(b) for b in cluster.brokers), "every broker's session")
        under_way(load)
    load.assert_kept()
    load.assert_available(QUICK_S)
    assert pids(cluster.brokers) == before
    assert sum(broker.health()["controller"] for broker in cluster.brokers) == 1


def test_zookeeper_servers_whose_files_were_replaced_are_restarted_one_at_a_time(
    site: Site, lab: Lab
) -> None:
    """As by an upgrade of Debian's package; the next run finds nothing to do."""
    cluster = site.widest
    before, first = pids(cluster.brokers), processes(cluster.zookeepers)
    for server in cluster.zookeepers:
        server.says("j=$(readlink -f /usr/share/java/zookeeper.jar); cp -p $j $j.new; mv $j.new $j")
    with load_on(cluster, "drill-package") as load:
        under_way(load)
        load.breaks("ZooKeeper's servers restarted", [])
        lab.play("zookeeper").worked()
        under_way(load)
    load.assert_kept()
    load.assert_available(QUICK_S)
    after = processes(cluster.zookeepers)
    assert [server for server in first if after[server] in ("0", first[server])] == []
    lab.play("zookeeper").worked()
    assert (processes(cluster.zookeepers), pids(cluster.brokers)) == (after, before)


def has_session(broker: Broker) -> bool:
    return broker.health().get("zookeeper") == "connected"


@pytest.mark.parametrize("has_leader", [False, True], ids=["", "with ZooKeeper's leader"])
def test_a_host_that_loses_its_power_is_replaced_and_comes_back_by_itself(
    site: Site, lab: Lab, has_leader: bool
) -> None:
    """ZooKeeper's followers notice after `syncLimit` that their leader is silent, and sessions are
    as good as new to the leader that they elect then.
    """
    cluster = site.widest
    first = leader(cluster)
    victim = next(host for host in reversed(cluster.hosts) if (host is first) == has_leader)
    kept = [broker for broker in cluster.brokers if broker.host is not victim]
    before, sessions_s = pids(kept), session_s(cluster) + has_leader * sync_s(first)
    with load_on(cluster, "drill-power") as load:
        under_way(load)
        what = "power cut of a host" + " with ZooKeeper's leader" * has_leader
        load.breaks(what, on(cluster, victim))
        lab.do("pull", victim.name)
        under_way(load)
        lab.do("on", victim.name)
        await_well(broker for broker in cluster.brokers if broker.host is victim)
        await_in_sync(cluster)
        under_way(load)
    load.assert_kept()
    load.assert_available(sessions_s + SLACK_S)
    assert pids(kept) == before
    assert victim.says("systemctl --failed --plain --no-legend") == ""


def test_brokers_that_are_back_long_before_zookeeper_wait_for_it(site: Site, lab: Lab) -> None:
    """As after a power cut of the datacenter: nobody has to start them, however late it is."""
    cluster = site.widest
    make_topic(cluster.bootstrap, "drill-cold", len(cluster.brokers))
    for server in cluster.zookeepers:
        server.says(f"systemctl stop {UNIT}")
    for broker in cluster.brokers:
        lab.do("kill", broker.host.name, broker.unit)
    for broker in cluster.brokers:
        await_that(partial(waits_for_zookeeper, broker), f"{broker} to wait for ZooKeeper")
    before = pids(cluster.brokers)
    end_s = time.monotonic() + LATE_S
    await_that(lambda: time.monotonic() >= end_s, "ZooKeeper's time to come", 2 * LATE_S)
    assert [b for b in cluster.brokers if not waits_for_zookeeper(b)] == []
    for server in cluster.zookeepers:
        server.says(f"systemctl start --no-block {UNIT}")
    await_well(cluster.brokers)
    await_in_sync(cluster)
    assert pids(cluster.brokers) == before
    for partition, leads in leaders(cluster.bootstrap, "drill-cold").items():
        (led_by,) = [broker for broker in cluster.brokers if broker.id == leads]
        assert produce_one(led_by.address, "drill-cold", partition) is None
    cluster.remove("drill-cold")


def waits_for_zookeeper(broker: Broker) -> bool:
    shown = broker.host.unit(broker.unit, "ActiveState", "StatusText")
    is_told = shown["StatusText"].startswith("waiting for ZooKeeper")
    return shown["ActiveState"] == "activating" and is_told


def sync_s(server: Member) -> float:
    """How long ZooKeeper's followers wait for a silent leader."""
    ticks, tick_ms = server["kdist_zookeeper_sync_ticks"], server["kdist_zookeeper_tick_ms"]
    return float(ticks) * float(tick_ms) / 1000


@pytest.mark.parametrize("ways", [["--one-way"], []], ids=["one way", "both ways"])
def test_partitions_go_on_without_a_follower_that_the_leader_is_cut_off_from(
    site: Site, lab: Lab, ways: list[str]
) -> None:
    cluster = site.widest
    one, other = [host for host in cluster.hosts if host is not controller(cluster).host][:2]
    before = pids(cluster.brokers)
    with load_on(cluster, "drill-cut") as load:
        under_way(load)
        load.breaks(" ".join(["cut between two hosts", *ways]), on(cluster, one, other))
        with cut(lab, one, other, *ways):
            under_way(load)  # in every partition, once followers that hear nothing are out
        await_in_sync(cluster)
        under_way(load)
    load.assert_kept()
    load.assert_available(2 * seconds(cluster, "replica.lag.time.max.ms"))
    assert pids(cluster.brokers) == before


def test_a_host_that_is_cut_off_from_the_controllers_goes_on_after_the_cut(
    site: Site, lab: Lab
) -> None:
    """Its leaders wait for followers on the controller's host: only the controller could tell them
    not to. What was sent meanwhile is neither refused nor lost.
    """
    cluster = site.widest
    one = controller(cluster).host
    other = next(host for host in cluster.hosts if host is not one)
    before = pids(cluster.brokers)
    with load_on(cluster, "drill-apart") as load:
        under_way(load)
        load.breaks("cut off from the controller's host for 20 s", on(cluster, one, other))
        with cut(lab, one, other):
            end_s = time.monotonic() + CUT_S
            await_that(lambda: time.monotonic() >= end_s, "the cut to be over", 2 * CUT_S)
        await_in_sync(cluster)
        under_way(load)
    load.assert_kept()
    load.assert_available(CUT_S + QUICK_S)
    assert pids(cluster.brokers) == before


def controller(cluster: Cluster) -> Broker:
    return next(broker for broker in cluster.brokers if broker.health().get("controller"))


def on(cluster: Cluster, *hosts: Member) -> list[int]:
    """The brokers on these hosts."""
    return [broker.id for broker in cluster.brokers if broker.host in hosts]


@contextmanager
def cut(lab: Lab, one: Member, other: Member, *ways: str) -> Iterator[None]:
    """Nothing passes between the hosts."""
    lab.do("cut", one.name, other.name, *ways)
    try:
        yield
    finally:
        lab.do("heal")


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
            with load_on(cluster, "drill-link") as load:
                under_way(load)
            load.assert_kept()
    finally:
        lab.do("heal")
    assert stranger.works(reach)
    assert pids(site.brokers) == before


def test_a_host_that_was_purged_comes_back_empty_and_fills_itself(site: Site, lab: Lab) -> None:
    """Its ZooKeeper server too has forgotten everything; nobody else is restarted for it."""
    cluster = site.widest
    victim = cluster.hosts[-1]  # the first one has the monitor too
    mine = [broker for broker in cluster.brokers if broker.host is victim]
    kept = [broker for broker in site.brokers if broker.host is not victim]
    ensemble = [host for host in cluster.zookeepers if host is not victim]
    before, servers = pids(kept), processes(ensemble)
    named = ["-e", f"kdist_purge_name={site.environment}", "-e", "kdist_purge_records=true"]
    with load_on(cluster, "drill-purge") as load:
        under_way(load)
        load.breaks("a host purged, and set up again", on(cluster, victim))
        lab.play("purge", "--limit", victim.name, *named).worked()
        left = ["/opt/kdist", "/etc/kdist", *(broker.log_dir for broker in mine)]
        assert [path for path in left if victim.works(f"test -e {path}")] == []
        assert victim.says("systemctl list-units --all --plain --no-legend 'kdist-*'") == ""
        under_way(load)
        lab.play("site").worked()
        await_well(mine)
        await_in_sync(cluster)
        # It leads again what it is preferred for, so what is read in the end comes from it.
        cluster.asks("cluster", "elect", "--broker", cluster.bootstrap)
        wanted = set(on(cluster, victim))
        await_that(
            lambda: wanted <= set(leaders(cluster.bootstrap, load.topic).values()),
            f"the brokers of {victim} to lead",
        )
        under_way(load)
    load.assert_kept()
    load.assert_available(QUICK_S)
    assert (pids(kept), processes(ensemble)) == (before, servers)
    assert is_whole(cluster)
