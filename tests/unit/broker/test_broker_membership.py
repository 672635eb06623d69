"""A broker's registration across lost sessions and connections to ZooKeeper."""

from __future__ import annotations

import asyncio
import random

import pytest

from kdist.broker.broker import State
from kdist.broker.membership import Membership
from kdist.broker.session_file import SessionFile
from kdist.config.addresses import Listener
from kdist.errors import UserError
from kdist.metrics.broker import BrokerMetrics
from kdist.runtime.files import Files
from kdist.testing.memory_tree import Tree
from kdist.testing.simulated_disk import SimulatedDisk
from kdist.testing.virtual_process import VirtualProcess
from kdist.zk import znodes
from kdist.zk.client import SessionKey, SessionState
from kdist.zk.registration import BrokerRegistration, Endpoint
from kdist.zk.znode_acls import OPEN, READABLE
from tests.simulator.cluster import Cluster, create, produce

PATH = znodes.BROKER.path(1)
OUTAGE_S = 40  # of sessions that take 6


def is_registered(cluster: Cluster) -> bool:
    stat = cluster.ensemble.tree.exists(PATH)
    return stat is not None and stat.ephemeral_owner == cluster.zks[1].session_id


async def lose_zookeeper_as_it_registers_again(cluster: Cluster, after_ms: float) -> None:
    """The session expires, another is opened, and right then all servers go."""
    loop, zk = cluster.loop, cluster.zks[1]
    gone = asyncio.Event()

    def stop() -> None:
        cluster.ensemble.stop()
        gone.set()

    def hear(state: SessionState) -> None:
        if state is SessionState.CONNECTED:
            loop.call_later(after_ms / 1000, stop)
            remove()

    remove = zk.add_listener(hear)
    cluster.ensemble.expire(zk)
    await gone.wait()


@pytest.mark.parametrize("after_ms", [0, 1, 2, 3, 4, 5])
def test_an_outage_during_registration_is_not_mistaken_for_a_broker_with_its_id(
    after_ms: float,
) -> None:
    cluster = Cluster(seed=int(after_ms))

    async def scenario() -> None:
        broker = await cluster.started()
        await lose_zookeeper_as_it_registers_again(cluster, after_ms)
        await asyncio.sleep(OUTAGE_S)
        assert not broker.failure.done()
        cluster.ensemble.start()
        await cluster.until(lambda: is_registered(cluster))
        assert broker.state is State.READY

    cluster.run(scenario())


async def test_a_broker_that_may_not_register_again_tries_until_it_may(cluster: Cluster) -> None:
    broker = await cluster.started()
    owner = cluster.ensemble.client(digest="somebody:else")
    await owner.connect()
    await owner.set_acl(znodes.BROKERS.path(), READABLE)
    cluster.ensemble.expire(cluster.zks[1])
    await asyncio.sleep(OUTAGE_S)
    assert not broker.failure.done()
    assert not is_registered(cluster)
    await owner.set_acl(znodes.BROKERS.path(), OPEN)
    await cluster.until(lambda: is_registered(cluster))


async def test_a_stopping_broker_leaves_a_successors_registration_under_its_id_alone(
    cluster: Cluster,
) -> None:
    broker = await cluster.started()
    other = cluster.ensemble.client()
    await other.connect()
    cluster.ensemble.expire(cluster.zks[1])
    tree = cluster.ensemble.tree
    assert tree.exists(PATH) is None
    await other.create(PATH, b"{}", ephemeral=True)
    await cluster.until(lambda: cluster.zks[1].state is SessionState.CONNECTED)
    await asyncio.sleep(1)
    await broker.stop()
    stat = tree.exists(PATH)
    assert stat is not None
    assert stat.ephemeral_owner == other.session_id


def registration(disk: str | None, port: int = 9092) -> BrokerRegistration:
    listener = Listener("PLAINTEXT", "host-1", port)
    return BrokerRegistration((Endpoint(listener, "PLAINTEXT"),), 0, host="host-1", disk=disk)


async def register(
    cluster: Cluster, wanted: BrokerRegistration, files: Files | None = None, boot: str = "boot-1"
) -> float:
    """Register broker 7 in a session of its own; returns how long that took, in seconds.

    `files` is its log directory's filesystem, at first a new one.
    """
    zk = cluster.ensemble.client()
    await zk.connect()
    path = znodes.CLUSTER_ID.path()
    cluster_id = znodes.CLUSTER_ID.decode(path, cluster.ensemble.tree.get(path).data).id
    start_s = cluster.loop.time()
    process = VirtualProcess(cluster.loop, random.Random(7))
    kept = SessionFile(files or blank_disk(), "/d", 7, boot)
    membership = Membership(zk, 7, 6_000, BrokerMetrics(), lambda _: None, kept, process.blocking)
    await membership.register(wanted, cluster_id)
    return cluster.loop.time() - start_s


@pytest.mark.parametrize("disk", ["second", None])
async def test_cloned_machines_do_not_delete_each_others_registration(
    cluster: Cluster, disk: str | None
) -> None:
    await cluster.started()
    await register(cluster, registration("first"))
    tree, path = cluster.ensemble.tree, znodes.BROKER.path(7)
    before = tree.exists(path)
    with pytest.raises(UserError, match=r"broker\.id 7 is taken"):
        await register(cluster, registration(disk))
    assert tree.exists(path) == before


async def test_a_broker_on_the_same_disk_does_not_wait_for_its_old_session_though_ports_changed(
    cluster: Cluster,
) -> None:
    await cluster.started()
    await register(cluster, registration("first", 9092))
    assert await register(cluster, registration("first", 9093)) < 0.5


def blank_disk() -> SimulatedDisk:
    disk = SimulatedDisk(random.Random(7))
    disk.make_directory("/d")
    return disk


def test_a_broker_does_not_wait_for_the_session_of_its_last_run_though_the_host_is_renamed() -> (
    None
):
    cluster, disk = Cluster(), blank_disk()

    async def scenario() -> None:
        await cluster.started()
        await register(cluster, registration("first"), disk)
        renamed = registration("first")._replace(host="host-2")
        assert await register(cluster, renamed, disk) < 0.5

    cluster.run(scenario())


def test_a_disk_cloned_into_another_machine_waits_for_the_session_that_its_original_keeps() -> None:
    cluster, disk = Cluster(), blank_disk()

    async def scenario() -> None:
        await cluster.started()
        await register(cluster, registration("first"), disk)
        other = registration("first")._replace(host="host-2")
        tree, path = cluster.ensemble.tree, znodes.BROKER.path(7)
        before = tree.exists(path)
        with pytest.raises(UserError, match=r"broker\.id 7 is taken"):
            await register(cluster, other, disk, boot="boot-2")
        assert tree.exists(path) == before

    cluster.run(scenario())


async def test_a_broker_keeps_each_session_before_it_registers_and_forgets_it_as_it_stops(
    cluster: Cluster,
) -> None:
    broker = await cluster.started()
    kept = SessionFile(cluster.disks[1], "/d", 1, broker.context.boot_id)
    assert kept.load() == cluster.zks[1].session_key
    first = cluster.zks[1].session_id
    cluster.ensemble.expire(cluster.zks[1])
    await cluster.until(lambda: is_registered(cluster))
    assert kept.load() == cluster.zks[1].session_key
    assert cluster.zks[1].session_id != first
    await broker.stop()
    assert kept.load() is None


async def test_a_stop_that_could_not_deregister_leaves_the_session_to_be_ended(
    cluster: Cluster,
) -> None:
    broker = await cluster.started()
    key = cluster.zks[1].session_key
    cluster.ensemble.stop()
    await broker.stop()
    assert SessionFile(cluster.disks[1], "/d", 1, broker.context.boot_id).load() == key


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\0" * 90,
        b"{",
        b"[]",
        b"{}",
        b'{"version":2,"broker":7,"boot":"boot-1","id":"0x10","password":"00"}',
        b'{"version":1,"broker":8,"boot":"boot-1","id":"0x10","password":"00"}',
        b'{"version":1,"broker":7,"boot":"boot-2","id":"0x10","password":"00"}',
        b'{"version":1,"broker":7,"boot":"boot-1","id":16,"password":"00"}',
        b'{"version":1,"broker":7,"boot":"boot-1","id":"0x10","password":"0"}',
    ],
)
def test_a_session_file_that_is_torn_or_of_another_broker_or_boot_counts_as_none(
    content: bytes,
) -> None:
    disk = blank_disk()
    kept = SessionFile(disk, "/d", 7, "boot-1")
    kept.save(SessionKey(16, b"0"))
    assert kept.load() == SessionKey(16, b"0")
    disk.replace(kept.path, content)
    assert kept.load() is None


def test_a_full_disk_keeps_no_session_and_starts_all_the_same() -> None:
    disk = blank_disk()
    disk.fill(disk.used_bytes())
    kept = SessionFile(disk, "/d", 7, "boot-1")
    kept.save(SessionKey(16, b"0"))
    assert kept.load() is None


async def test_a_broker_does_not_register_again_where_zookeeper_lost_its_cluster(
    cluster: Cluster,
) -> None:
    broker = await cluster.started()
    cluster.ensemble.tree = Tree()
    cluster.ensemble.expire(cluster.zks[1])
    await cluster.until(broker.failure.done)
    error = broker.failure.result()
    assert isinstance(error, UserError)
    assert str(error).startswith("ZooKeeper does not know cluster ")
    await broker.abandon()


def test_a_broker_keeps_its_logs_when_zookeeper_belongs_to_another_cluster() -> None:
    cluster = Cluster(seed=1)

    async def scenario() -> None:
        broker = await cluster.started()
        client = await cluster.client()
        await create(client, "clicks", 2)
        assert (await produce(client, "clicks", b"a")).error_code == 0
        cluster.ensemble.stop()
        cluster.ensemble.tree = Tree()
        cluster.ensemble.start()
        await cluster.started(2)
        cluster.ensemble.expire(cluster.zks[1])
        await cluster.until(broker.failure.done)
        error = broker.failure.result()
        assert isinstance(error, UserError)
        assert str(error).startswith("ZooKeeper is that of cluster ")
        assert cluster.ensemble.tree.exists(PATH) is None
        assert "clicks-0" in cluster.disks[1].list("/d")
        await broker.abandon()

    cluster.run(scenario())
