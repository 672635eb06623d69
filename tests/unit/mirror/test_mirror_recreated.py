"""A topic of the source, or its copy, deleted and recreated: no records are skipped."""

from __future__ import annotations

import asyncio

import pytest
from flow_world import FlowScene, flow_of, is_stopped, play, stream_of

from kdist.client.admin.topics import delete_topics
from kdist.client.cluster import Address, Cluster
from kdist.errors import UserError
from kdist.mirror.origins import read_origins
from kdist.mirror.seeking import seek
from kdist.mirror.status import flow_status
from kdist.model import TopicPartition
from kdist.network.client import ClientSettings
from tests.simulator.cluster import PORT, create, produce

OLD, NEW = (b"old 1", b"old 2"), (b"new 1", b"new 2", b"new 3")
PARTITION = TopicPartition("t", 0)


def asking(scene: FlowScene) -> Cluster:
    network = scene.cluster.network.host("asks")
    return Cluster(network, [Address("m1", PORT)], ClientSettings("asks"))


async def make_anew(scene: FlowScene, partitions: int = 1) -> None:
    """Recreate the topic, with more records than it had."""
    await delete_topics(asking(scene), ["t"])
    await create(scene.client, "t", partitions)
    await produce(scene.client, "t", *NEW)


async def mirrored(scene: FlowScene) -> None:
    await create(scene.client, "t")
    scene.start()
    await produce(scene.client, "t", *OLD)
    await scene.until_copied("t", *OLD)


def test_a_recreated_topic_stops_and_says_so_also_after_a_restart() -> None:
    async def work(scene: FlowScene) -> None:
        await mirrored(scene)
        await scene.stop()
        await make_anew(scene)
        for _ in range(2):
            mirror = scene.start()
            await scene.cluster.until(lambda each=mirror: is_stopped(each))
            await scene.stop()
        assert await scene.values("copy.t") == list(OLD)
        cluster = asking(scene)
        found = await flow_status(flow_of(mirror).flow, cluster, cluster, 0)
        (row,) = found.partitions
        assert "was deleted and recreated" in (row.stopped or "")

    play(work)


def test_a_topic_recreated_while_it_is_mirrored_stops() -> None:
    async def work(scene: FlowScene) -> None:
        await mirrored(scene)
        await make_anew(scene)
        await scene.cluster.until(lambda: is_stopped(scene.mirror))
        await scene.stop()

    play(work)


def test_once_the_copy_is_deleted_too_all_of_the_new_topic_is_mirrored() -> None:
    async def work(scene: FlowScene) -> None:
        await mirrored(scene)
        await scene.stop()
        await make_anew(scene)
        await delete_topics(asking(scene), ["copy.t"])
        for _ in range(2):
            scene.start()
            await scene.until_copied("t", *NEW)
            await scene.stop()

    play(work)


def test_a_seek_in_all_partitions_resumes_with_the_new_topic() -> None:
    async def work(scene: FlowScene) -> None:
        await mirrored(scene)
        await scene.stop()
        await make_anew(scene, 2)
        flow, cluster = flow_of(scene.mirror).flow, asking(scene)
        with pytest.raises(UserError, match="seek in all of its partitions"):
            await seek(flow, cluster, cluster, {PARTITION: 0}, 0)
        sought = {PARTITION: 0, TopicPartition("t", 1): 0}
        assert (await seek(flow, cluster, cluster, sought, 0))[PARTITION] == 2
        for _ in range(2):
            scene.start()
            await scene.until_copied("t", *OLD, NEW[2])
            await scene.stop()
        assert len((await read_origins(cluster))["copy.t"].id) > 0

    play(work)


def test_a_copy_deleted_while_its_source_is_idle_stops_its_topic() -> None:
    async def work(scene: FlowScene) -> None:
        await mirrored(scene)
        await asyncio.sleep(5)  # its position is committed
        await delete_topics(asking(scene), ["copy.t"])
        await scene.cluster.until(lambda: is_stopped(scene.mirror))
        await produce(scene.client, "t", *NEW)
        await asyncio.sleep(5)
        assert await scene.values("copy.t") == []
        stream = stream_of(scene.mirror)
        assert stream is not None
        assert "was it deleted and recreated?" in str(stream.failure)
        await scene.stop()

    play(work)
