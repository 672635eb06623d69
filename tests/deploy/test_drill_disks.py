"""Drills: disks that die, fill up or are missing at boot, and their replacement.

A broker fails with its disk; the other brokers of the host must not be affected. A new disk is
filled from the other replicas.
"""

from __future__ import annotations

import pytest

from tests.deploy.client import leaders, make_topic, produce_one
from tests.deploy.deployed import KDIST, Broker, Site
from tests.deploy.drilling import QUICK_S, Lab, await_in_sync, await_that, await_well, pids
from tests.deploy.load import load_on, under_way
from tests.deploy.test_deploy_monitors import ask

pytestmark = [pytest.mark.drill, pytest.mark.timeout(900)]


def neighbours(site: Site) -> tuple[Broker, Broker]:
    """Two brokers of one host: the one that loses its disk, and the one that must not notice."""
    for host in reversed(site.widest.hosts):  # the last, as the first has the monitor too
        mine = [broker for broker in site.brokers if broker.host is host]
        if len(mine) > 1:
            return mine[1], mine[0]
    raise AssertionError("no host of the inventory has two disks")


def led_by(site: Site, topic: str, broker: Broker) -> int:
    """The partition of the topic that is on this broker alone."""
    cluster = site.widest
    make_topic(cluster.bootstrap, topic, len(cluster.brokers), replicas=1)
    (partition,) = [
        p for p, leader in leaders(cluster.bootstrap, topic).items() if leader == broker.id
    ]
    return partition


def has_ended(broker: Broker) -> bool:
    return broker.host.unit(broker.unit, "ActiveState")["ActiveState"] in ("failed", "inactive")


def take_the_new_disk(lab: Lab, broker: Broker) -> str:
    """Replace the disk by the playbook, whatever data are on it: the name is the confirmation.

    Returns what the playbook said.
    """
    name = f"{broker.host}:{broker.instance}"
    run = lab.play("replace-disk", "-e", f"disk={name}", "-e", f"confirm={name}").worked()
    await_well([broker])
    return run.said


def test_a_full_disk_refuses_records_and_nothing_else(site: Site, lab: Lab) -> None:
    victim, other = neighbours(site)
    before = pids([victim, other])
    partition = led_by(site, "drill-full", victim)
    produce_one(victim.address, "drill-full", partition)
    lab.do("disk", "full", victim.host.name, victim.instance)
    try:
        assert "KAFKA_STORAGE_ERROR" in fills(victim, "drill-full", partition)
        beside = led_by(site, "drill-full", other)
        assert produce_one(other.address, "drill-full", beside) is None
        assert victim.is_well
    finally:
        lab.do("disk", "thaw", victim.host.name, victim.instance)
    await_that(
        lambda: produce_one(victim.address, "drill-full", partition) is None, "room for records"
    )
    assert pids([victim, other]) == before
    site.widest.remove("drill-full")


def fills(broker: Broker, topic: str, partition: int) -> str:
    """The error that a producer gets once the broker has noticed that the disk is full."""
    error = ""

    def is_refused() -> bool:
        nonlocal error
        error = produce_one(broker.address, topic, partition, 1 << 19) or ""
        return bool(error)

    await_that(is_refused, f"{broker} to refuse records")
    return error


def test_a_dead_disk_is_replaced_and_the_new_one_fills_itself(site: Site, lab: Lab) -> None:
    """The broker ends, and no other; each who looks is told; partitions go on without it."""
    cluster = site.widest
    victim, _ = neighbours(site)
    rest = [broker for broker in site.brokers if broker is not victim]
    before = pids(rest)
    with load_on(cluster, "drill-dead") as load:
        under_way(load)
        load.breaks("a dead disk", [victim.id])
        lab.do("disk", "dead", victim.host.name, victim.instance)
        await_that(lambda: has_ended(victim), f"{victim} to end")
        under_way(load)
        await_that(lambda: is_alerted(site, victim), f"an alert of {victim}")
        assert str(victim.id) in lab.play("verify").failed().said
        assert f"{victim.instance} ({victim.device})" in lab.play("site").worked().said
        assert has_ended(victim)

        lab.do("disk", "swap", victim.host.name, victim.instance)
        load.breaks("its replacement", [])
        take_the_new_disk(lab, victim)
        await_in_sync(cluster)
        # Its disk is mounted and its own by now: nobody is asked, and it is not stopped again.
        filled = pids([victim])
        said = lab.play("replace-disk", "-e", f"disk={victim.host}:{victim.instance}").worked().said
        assert "Nothing is replaced" in " ".join(said.split())
        assert pids([victim]) == filled
        # It leads again what it is preferred for, so what is read in the end comes from its disk.
        cluster.asks("cluster", "elect", "--broker", cluster.bootstrap)
        await_that(
            lambda: victim.id in leaders(cluster.bootstrap, load.topic).values(),
            f"{victim} to lead",
        )
        under_way(load)
    load.assert_kept()
    load.assert_available(QUICK_S)
    assert pids(rest) == before


def is_alerted(site: Site, broker: Broker) -> bool:
    """Whether Prometheus has an alert of this broker, or one that waits until it is due."""
    (monitor,) = site.group("monitor")
    alerts = ask(monitor, "alerts")["alerts"]
    about = [each["labels"] for each in alerts if each["labels"].get("broker") == str(broker.id)]
    return "BrokerDown" in {labels["alertname"] for labels in about}


@pytest.mark.timeout(2400)
def test_a_site_is_set_up_beside_a_disk_that_hangs(site: Site, lab: Lab) -> None:
    """Its broker can neither be stopped nor started; nobody else is kept waiting, or touched."""
    victim, _ = neighbours(site)
    rest = [broker for broker in site.brokers if broker is not victim]
    before = pids(rest)
    partition = led_by(site, "drill-hang", victim)
    lab.do("disk", "hang", victim.host.name, victim.instance)
    try:
        assert produce_one(victim.address, "drill-hang", partition) is not None
        undone = lab.play("site").failed().words.rpartition("Fail where something was not done")[2]
        assert f"broker {victim.id}" in undone or victim.mount in undone
        assert [broker for broker in rest if f"broker {broker.id}" in undone] == []
        assert pids(rest) == before
    finally:
        lab.do("disk", "thaw", victim.host.name, victim.instance)
    await_that(lambda: victim.is_well or has_ended(victim), f"{victim} to serve, or to end")
    lab.play("site").worked()
    await_well([victim])
    await_in_sync(site.widest)
    assert pids(rest) == before
    site.widest.remove("drill-hang")


def test_a_broker_without_its_disk_at_boot_does_not_take_another(site: Site, lab: Lab) -> None:
    """Neither the root disk, nor one that holds somebody else's data."""
    victim, other = neighbours(site)
    host = victim.host
    lab.do("disk", "pull", host.name, victim.instance)
    lab.do("reboot", host.name)
    await_well([other])
    assert not host.works(f"mountpoint --quiet {victim.mount}")
    assert has_ended(victim)
    assert not host.works(f"systemctl start {victim.unit}")
    # Started without systemd, whose unit would prevent it, the broker itself refuses too.
    alone = host.shell.run(f"runuser -u kdist -- {KDIST} broker --config {victim.file}")
    assert alone.rc not in (0, None)
    assert "disk.json" in alone.stderr
    assert host.says(f"ls -A {victim.mount}") == ""

    lab.do("disk", "swap", host.name, victim.instance)
    host.says(f"mkfs.ext4 -q {victim.device}")
    foreign = host.says(f"blkid --probe --output export {victim.device}")
    assert "holds ext4" in lab.play("site").worked().said
    assert host.says(f"blkid --probe --output export {victim.device}") == foreign
    take_the_new_disk(lab, victim)
