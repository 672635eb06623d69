"""A mirror whose link to the source is cut, and comes back."""

from __future__ import annotations

import asyncio

from flow_world import FlowScene, flow_of

from tests.simulator.cluster import PORT, Cluster, create, produce

CUT_S = 35.0


def test_a_link_that_is_cut_for_half_a_minute_costs_no_partition_its_position() -> None:
    cluster = Cluster()

    async def scenario() -> None:
        await cluster.started(1)
        await Cluster(beside=cluster).started(2)
        client = await cluster.client()
        await client.negotiate()
        await create(client, "t", 2)
        scene = FlowScene(cluster, client)
        flow = flow_of(scene.start(flow_f_target=f"m2:{PORT}"))
        streams = flow.streams
        await cluster.until(
            lambda: len(streams) == 2 and all(each.is_idle for each in streams.values())
        )
        before = dict(streams)
        cluster.network.partition(["m1", "client"], ["m2", "mirror"])
        await produce(client, "t", b"1")
        await asyncio.sleep(CUT_S)
        cluster.network.heal()
        await cluster.until(lambda: [each.position for each in before.values()] == [1, 0])
        await asyncio.sleep(CUT_S)  # by then the source has told who is a member no longer
        assert streams == before
        assert flow.metrics.doubts == 0
        await scene.stop()

    cluster.run(scenario())
