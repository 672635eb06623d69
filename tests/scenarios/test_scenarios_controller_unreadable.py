"""Topics whose znodes cannot be parsed: they are left alone, and do not stop the controller."""

from __future__ import annotations

import asyncio

import pytest
from controller_world import Cluster, in_cluster

from kdist.zk.client import Create, Delete, Set

NINES = "9" * 5_000  # more digits than Python reads
STATE = "/brokers/topics/broken/partitions/0/state"
LEADS = '{"version":1,"leader":%s,"leader_epoch":0,"isr":[1],"controller_epoch":1}'


async def replaced_controller(cluster: Cluster) -> None:
    """Another broker becomes controller, and so loads everything from ZooKeeper."""
    cluster.nodes[1].kill()
    await cluster.until(lambda: cluster.controller is None)
    await cluster.until(lambda: cluster.controller is not None)


@pytest.mark.parametrize(
    "state", [b"{", b"{}", (LEADS % 2**40).encode(), (LEADS % NINES).encode(), b"[" * 100_000]
)
@pytest.mark.played(by=in_cluster, seed=20)
async def test_an_unreadable_state_affects_its_own_topic_alone(
    cluster: Cluster, /, state: bytes
) -> None:
    await cluster.start()
    await cluster.create("broken")
    good = cluster.ensemble.tree.get(STATE).data
    cluster._write((Set(STATE, state),), 0, 0)  # which the cluster would refuse
    await replaced_controller(cluster)
    assert await cluster.create("clicks") == "NONE"
    assert await cluster.create("broken") == "TOPIC_ALREADY_EXISTS"
    cluster._write((Set(STATE, good),), 0, 0)
    assert await cluster.create("views") == "NONE"  # upon which it is looked for once more
    cluster.nodes[1].start()
    await cluster.converge()
    assert await cluster.delete("broken") == "NONE"
    assert await cluster.create("broken") == "NONE"
    await cluster.converge()


@pytest.mark.parametrize(
    "topic",
    [
        b"{",
        f'{{"version":1,"partitions":{{"{NINES}":[1]}}}}'.encode(),
        b'{"version":2,"partitions":{"0":[1]},"adding_replicas":{"0":[99999999999]}}',
    ],
)
@pytest.mark.played(by=in_cluster, seed=21)
async def test_creating_a_topic_whose_znode_is_unreadable_fails_as_it_exists(
    cluster: Cluster, /, topic: bytes
) -> None:
    await cluster.start()
    zk = cluster.nodes[3].zk
    assert zk
    await zk.multi([Create("/brokers/topics/broken", topic)])
    before, _ = await zk.get("/controller_epoch")
    controller = cluster.controller
    assert controller is not None
    assert await cluster.create("clicks") == "NONE"
    term = controller._term
    assert await cluster.create("broken") == "TOPIC_ALREADY_EXISTS"
    assert controller._term is term
    assert (await zk.get("/controller_epoch"))[0] == before
    await zk.delete("/brokers/topics/broken")
    assert await cluster.create("views") == "NONE"
    assert await cluster.create("broken") == "NONE"
    await cluster.converge()


@pytest.mark.played(by=in_cluster, seed=22)
async def test_a_topic_can_be_created_after_a_deletion_request_for_its_unused_name(
    cluster: Cluster, /
) -> None:
    await cluster.start()
    zk = cluster.nodes[3].zk
    assert zk
    await zk.create("/admin/delete_topics/ghost")
    while await zk.exists("/admin/delete_topics/ghost") is not None:
        await asyncio.sleep(0.1)
    assert await cluster.create("ghost") == "NONE"
    await cluster.converge()


@pytest.mark.played(by=in_cluster, seed=24)
async def test_a_topic_that_cannot_be_read_is_not_said_to_be_missing_when_its_deletion_is_refused(
    cluster: Cluster, /, caplog: pytest.LogCaptureFixture
) -> None:
    await cluster.start()
    zk = cluster.nodes[3].zk
    assert zk
    await zk.multi([Create("/brokers/topics/broken", b"{")])
    await zk.create("/admin/delete_topics/broken")
    await cluster.until(lambda: not cluster.queued_for_deletion())
    assert "topic broken is not deleted: its znodes are corrupt" in caplog.messages


@pytest.mark.played(by=in_cluster, seed=23)
async def test_a_topic_whose_znodes_were_removed_and_restored_is_announced_again(
    cluster: Cluster, /
) -> None:
    await cluster.start()
    await cluster.create("broken")
    zk = cluster.nodes[3].zk
    assert zk
    root = "/brokers/topics/broken"
    paths = [root, f"{root}/partitions"]
    for number in await zk.children(f"{root}/partitions"):
        partition = f"{root}/partitions/{number}"
        paths += [partition, f"{partition}/state"]
    data = [cluster.ensemble.tree.get(path).data for path in paths]
    await zk.multi([Delete(path) for path in reversed(paths)])
    await asyncio.sleep(5)
    await zk.multi([Create(path, each) for path, each in zip(paths, data, strict=True)])
    await asyncio.sleep(5)
    await cluster.converge()
    assert await cluster.create("broken") == "TOPIC_ALREADY_EXISTS"
