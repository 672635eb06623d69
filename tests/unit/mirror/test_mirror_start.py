"""A flow that starts at the latest offset leaves out the records before it, and no others."""

from __future__ import annotations

from flow_world import FlowScene, flow_of, play, stream_of

from kdist.client.admin.topics import create_partitions
from kdist.client.cluster import Address, Cluster
from kdist.mirror.status import flow_status
from kdist.network.client import ClientSettings
from kdist.protocol.produce import ProducePartition, ProduceRequest, ProduceTopic
from tests.simulator.cluster import PORT, create, produce, records

LATEST = {"flow_f_start": "latest"}


async def begin(scene: FlowScene) -> None:
    """`t` has a record, and is mirrored from the next one on."""
    await create(scene.client, "t")
    await produce(scene.client, "t", b"old")
    mirror = scene.start(**LATEST)
    await scene.cluster.until(lambda: (stream := stream_of(mirror)) and stream.position == 1)


async def produce_to_second(scene: FlowScene, value: bytes) -> None:
    topic = ProduceTopic(
        name="t", partition_data=[ProducePartition(index=1, records=records(value))]
    )
    await scene.client.send(ProduceRequest(acks=-1, timeout_ms=5_000, topic_data=[topic]), 9)


async def grow(scene: FlowScene) -> Cluster:
    network = scene.cluster.network.host("grows")
    cluster = Cluster(network, [Address("m1", PORT)], ClientSettings("grows"))
    await create_partitions(cluster, {"t": 2})
    await produce_to_second(scene, b"before it was seen")
    return cluster


def test_records_from_before_the_start_are_left_out() -> None:
    async def work(scene: FlowScene) -> None:
        await begin(scene)
        await produce(scene.client, "t", b"new")
        await scene.until_copied("t", b"new")
        await scene.stop()

    play(work)


def test_a_topic_created_while_it_runs_is_mirrored_from_its_first_record() -> None:
    async def work(scene: FlowScene) -> None:
        await begin(scene)
        await create(scene.client, "t2")
        await produce(scene.client, "t2", b"before it was seen")
        await scene.until_copied("t2", b"before it was seen")
        await scene.stop()

    play(work)


def test_an_added_partition_is_mirrored_from_its_first_record() -> None:
    async def work(scene: FlowScene) -> None:
        await begin(scene)
        await grow(scene)
        await scene.until_copied("t", b"before it was seen", partition=1)
        await scene.stop()

    play(work)


def test_a_partition_added_while_it_is_down_is_mirrored_from_its_first_record() -> None:
    async def work(scene: FlowScene) -> None:
        await begin(scene)
        await scene.stop()
        cluster = await grow(scene)
        status = await flow_status(flow_of(scene.mirror).flow, cluster, cluster, 0)
        assert [each.lag.records for each in status.partitions] == [0, 1]
        scene.start(**LATEST)
        await scene.until_copied("t", b"before it was seen", partition=1)
        assert await scene.values("copy.t") == []
        await scene.stop()

    play(work)
