"""Drills: rolls under load; rolls that are refused; hosts that die in the middle of one."""

from __future__ import annotations

import json
import shlex

import pytest

from tests.deploy.deployed import KDIST, Broker, Site
from tests.deploy.drilling import (
    QUICK_S,
    Lab,
    await_in_sync,
    await_that,
    await_well,
    pids,
    seconds,
)
from tests.deploy.load import load_on, under_way
from tests.deploy.rolling import OWNER, fingerprints, holder, unlock, zookeeper_of
from tests.deploy.zookeepers import is_whole, processes

pytestmark = [pytest.mark.drill, pytest.mark.timeout(900)]

STARTS = 5  # the unit's start limit for a quarter of an hour


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
    """In their datacenter: the other is rolled all the same."""
    before = pids(site.brokers)
    with load_on(site.widest, "drill-refused", replicas=1) as load:
        run = lab.play("rolling-restart", "-e", "kdist_roll_gate_wait_s=5")
    load.assert_kept()
    site.widest.remove(load.topic)  # before the rest: it would keep the next drills from rolling
    assert run.status != 0
    assert "no replica elsewhere" in run.said
    restarted = {broker for broker, pid in pids(site.brokers).items() if pid != before[broker]}
    assert restarted == {each for each in site.brokers if each not in site.widest.brokers}


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


@pytest.mark.timeout(1800)  # three plays
def test_a_host_that_dies_during_a_roll_is_told_of_and_rolled_when_it_is_back(
    site: Site, lab: Lab
) -> None:
    """In another's turn, then in its own. The gate lets no more brokers of its cluster down; the
    other datacenter is rolled all the same.
    """
    cluster = site.widest
    for each in site.clusters:
        unlock(each)
    with load_on(cluster, "drill-dies") as load:
        under_way(load)
        for is_own in (False, True):
            load.breaks("a host that dies during a roll", [b.id for b in cluster.brokers])
            dies_during_a_roll(site, lab, is_own)
            under_way(load)
        before = pids(site.brokers)
        lab.play("rolling-restart").worked()
        under_way(load)
    load.assert_kept()
    load.assert_available(2 * seconds(cluster, "zookeeper.session.timeout.ms"))
    assert [b for b, pid in pids(site.brokers).items() if pid in (0, before[b])] == []


def dies_during_a_roll(site: Site, lab: Lab, is_own: bool) -> None:
    """A host loses its power while a broker starts, its own or another host's, and comes back."""
    cluster = site.widest
    before = pids(site.brokers)
    roll = lab.start("rolling-restart", "-e", "kdist_roll_gate_wait_s=10")
    roll.reaches(r"TASK \[kdist_roll : Take the lock, or keep it")
    turn = site.host(roll.reaches(r": \[(.+)\]$")[1])
    victim = turn if is_own else next(host for host in reversed(cluster.hosts) if host is not turn)
    first = next(broker for broker in cluster.brokers if broker.host is turn)
    roll.reaches(r"TASK \[kdist_broker : Wait until it serves")
    lab.do("pull", victim.name)
    words = roll.end().failed().words
    after = pids(broker for broker in site.brokers if broker.host is not victim)
    lab.do("on", victim.name)
    others = {broker for broker in site.brokers if broker not in cluster.brokers}
    restarted = {broker for broker, pid in after.items() if pid != before[broker]}
    assert restarted == (others if is_own else others | {first})
    assert f"{victim}: " in words.rpartition("Say what was not done")[2]
    assert "stopped answering" in words
    assert [holder(each) for each in site.clusters] == [None for _ in site.clusters]
    await_well(cluster.brokers)
    await_in_sync(cluster)


def test_a_limit_restarts_one_host_alone(site: Site, lab: Lab) -> None:
    host = site.widest.hosts[1]
    mine = [broker for broker in site.brokers if broker.host is host]
    others = [each for each in site.hosts if each is not host]
    before, files = pids(site.brokers), fingerprints(others)
    run = lab.play("rolling-restart", "--limit", host.name).worked()
    assert set(run.changed) <= {host.name, "localhost"}
    after = pids(site.brokers)
    assert {broker for broker in after if after[broker] != before[broker]} == set(mine)
    assert lab.play("site", "--limit", host.name).worked().changed[host.name] == 0
    assert pids(site.brokers) == after
    assert fingerprints(others) == files
    assert [holder(cluster) for cluster in site.clusters] == [None for _ in site.clusters]


def test_whatever_stops_something_asks_for_the_lock_before(site: Site, lab: Lab) -> None:
    """A roll, the replacement of a disk, and a restart of ZooKeeper servers."""
    cluster = site.widest
    last = cluster.brokers[-1]
    disk = f"{last.host}:{last.instance}"
    plays = (
        ["rolling-restart", "--limit", cluster.datacenter],
        ["replace-disk", "-e", f"disk={disk}", "-e", f"confirm={disk}"],
        ["zookeeper", "-e", "kdist_zookeeper_snapshots_kept=6"],
    )
    owner = ["--owner", "somebody else", "--run", "another", "--lease", "900"]
    cluster.asks("gate", "lock", *owner, *zookeeper_of(cluster))
    before = pids(site.brokers), processes(cluster.zookeepers)
    try:
        for play in plays:
            said = lab.play(*play).failed().words
            assert "holds the lock by run another" in said
            assert (pids(site.brokers), processes(cluster.zookeepers)) == before
            assert holder(cluster) == "somebody else"
    finally:
        unlock(cluster)
        lab.play("zookeeper").worked()
    assert (pids(site.brokers), processes(cluster.zookeepers)) == before
    assert is_whole(cluster)


def test_a_roll_waits_for_moves_that_go_on_and_moves_do_not_begin_beside_one(
    site: Site, lab: Lab
) -> None:
    """The moves are slow, so that they outlast the gate's patience; the roll goes on after them."""
    cluster, plan = site.widest, "/tmp/drill-moves.json"
    host, at = cluster.hosts[0], ("--broker", cluster.bootstrap)
    execute = shlex.join([KDIST, "reassign", "execute", plan, *at])
    host.says(f"rm -f {plan}")
    with load_on(cluster, "drill-moves") as load:
        under_way(load)
        drained = ("--drain", str(cluster.brokers[0].id), "--sample", "0", "--output", plan)
        cluster.asks("reassign", "plan", load.topic, *drained, *at)
        owner = ("--owner", OWNER, "--run", "by-hand")
        cluster.asks("gate", "lock", *owner, *zookeeper_of(cluster))
        refused = host.shell.run(execute)
        assert (refused.rc, "holds the lock by run by-hand" in refused.stderr) == (1, True)
        unlock(cluster)
        host.says(f"systemd-run --unit=drill-moves {execute} --throttle 1")
        run = lab.play("rolling-restart", "-e", "kdist_roll_gate_wait_s=5").worked()
        assert " waits: " in run.words
        cluster.asks("reassign", "verify", plan, *at)
        host.says(f"{execute} --reverse")
    load.assert_kept()


def test_what_a_roll_stops_is_silent_in_every_alertmanager(site: Site, lab: Lab) -> None:
    """And soon not any more: what is left of its silences ends within a minute."""
    victim = site.widest.brokers[0]
    label = {"name": "broker", "value": str(victim.id), "isRegex": False, "isEqual": True}

    def states() -> list[set[str]]:
        """Those of the victim's silences, as each Alertmanager has them."""
        found = []
        for monitor in site.group("monitor"):
            url = f"http://{monitor['kdist_address']}:{monitor['kdist_ports']['alertmanager']}"
            made = json.loads(monitor.says(f"curl -sS --max-time 10 {url}/api/v2/silences"))
            mine = [each for each in made if label in each["matchers"]]
            found.append({each["status"]["state"] for each in mine})
        return found

    lab.play("rolling-restart", "--limit", victim.host.name).worked()
    assert all(states())
    await_that(lambda: all(each == {"expired"} for each in states()), "the silences to end", 90)
