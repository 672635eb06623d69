"""Drills: disks that die, fill up or are missing at boot, and their replacement.

A broker fails with its disk; the other brokers of the host must not be affected.
"""

from __future__ import annotations

import pytest

from tests.deploy.deployed import KDIST, Broker, Site
from tests.deploy.drilling import Lab, await_that, await_well, pids
from tests.deploy.load import leaders, make_topic, produce_one

pytestmark = [pytest.mark.drill, pytest.mark.timeout(300)]


def neighbours(site: Site) -> tuple[Broker, Broker]:
    """Two brokers of one host: the one that loses its disk, and the one that must not notice."""
    for host in site.widest.hosts:
        mine = [broker for broker in site.brokers if broker.host is host]
        if len(mine) > 1:
            return mine[1], mine[0]
    raise AssertionError("no host of the inventory has two disks")


def led_by(site: Site, topic: str, broker: Broker) -> int:
    """A partition of the topic that the broker leads."""
    cluster = site.widest
    make_topic(cluster.bootstrap, topic, len(cluster.brokers))
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


def fills(broker: Broker, topic: str, partition: int) -> str:
    """The error that a producer gets once the broker has noticed that the disk is full."""
    error = ""

    def is_refused() -> bool:
        nonlocal error
        error = produce_one(broker.address, topic, partition, 1 << 19) or ""
        return bool(error)

    await_that(is_refused, f"{broker} to refuse records")
    return error


def test_a_dead_disk_takes_its_broker_along_and_no_other(site: Site, lab: Lab) -> None:
    victim, other = neighbours(site)
    partition = led_by(site, "drill-dead", victim)
    rest = [broker for broker in site.brokers if broker is not victim]
    before = pids(rest)
    lab.do("disk", "dead", victim.host.name, victim.instance)
    produce_one(victim.address, "drill-dead", partition)
    await_that(lambda: has_ended(victim), f"{victim} to end")
    assert produce_one(other.address, "drill-dead", led_by(site, "drill-dead", other)) is None

    run = lab.play("site").worked()
    assert f"{victim.instance} ({victim.device})" in run.said
    assert pids(rest) == before
    assert has_ended(victim)

    lab.do("disk", "swap", victim.host.name, victim.instance)
    said = take_the_new_disk(lab, victim)
    assert "Elected leaders of" in said  # of what nobody else had
    assert "drill-dead" in said
    assert pids(rest) == before
    assert produce_one(victim.address, "drill-dead", partition) is None


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
