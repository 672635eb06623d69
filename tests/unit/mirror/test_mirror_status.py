"""The answers behind `kdist mirror status`, from a whole mirror in virtual time."""

from __future__ import annotations

from flow_world import FlowScene, flow_of, is_stopped, play

from kdist.client.cluster import Address, Cluster
from kdist.mirror.status import PartitionStatus, flow_status
from kdist.model import TopicPartition
from kdist.network.client import ClientSettings
from tests.simulator.cluster import PORT, create, produce
from tests.unit.broker.broker_configs import replace


async def status(scene: FlowScene) -> PartitionStatus:
    """The status of the one mirrored partition."""
    network = scene.cluster.network.host("asking")
    cluster = Cluster(network, [Address("m1", PORT)], ClientSettings("c"))
    flow = flow_of(scene.mirror).flow
    (found,) = (await flow_status(flow, cluster, cluster, scene.cluster.clock.now_ms())).partitions
    cluster.close()
    return found


async def limit(scene: FlowScene, size_bytes: int) -> None:
    """Limit the copy to batches of this size."""
    await replace(scene.client, {"max.message.bytes": str(size_bytes)}, "copy.t")
    log = scene.cluster.brokers[1].service.directory.logs[TopicPartition("copy.t", 0)]
    await scene.cluster.until(lambda: log.settings.max_message_bytes == size_bytes)


def test_the_reason_of_a_stopped_partition_is_shown_until_it_resumes() -> None:
    async def work(scene: FlowScene) -> None:
        await create(scene.client, "t")
        scene.start()
        await produce(scene.client, "t", b"1")
        await scene.until_copied("t", b"1")
        assert (await status(scene)).stopped is None
        await limit(scene, 100)
        await produce(scene.client, "t", b"2" * 100)
        await scene.cluster.until(lambda: is_stopped(scene.mirror))
        await scene.stop()
        found = await status(scene)
        assert (found.position, found.lag.records) == (1, 1)
        assert found.stopped is not None
        assert "raise max.message.bytes of topic copy.t in the target" in found.stopped
        await limit(scene, 1000)
        scene.start()
        await scene.until_copied("t", b"1", b"2" * 100)
        await scene.stop()
        found = await status(scene)
        assert (found.position, found.stopped) == (2, None)

    play(work)
