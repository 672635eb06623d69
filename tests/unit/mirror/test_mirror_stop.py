"""A mirror that is stopped while its target does not answer."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from flow_world import FlowScene, flow_of
from test_mirror_start import produce_to_second

from kdist.mirror.mirror import Mirror
from tests.simulator.cluster import PORT, Cluster, create, produce
from tests.unit.client.client_group_world import consumer_on

TO_SECOND = {"flow_f_target": f"m2:{PORT}"}


async def produce_to_both(scene: FlowScene, value: bytes) -> None:
    await produce(scene.client, "t", value)
    await produce_to_second(scene, value)


def play_silent(work: Callable[[FlowScene, Mirror], Awaitable[Any]]) -> None:
    """Run `work` on a mirror whose target was cut off after it had answered: both partitions then
    have requests in flight on open connections. A flow that had none to it would start anew.
    """
    cluster = Cluster()

    async def scenario() -> None:
        await cluster.started(1)
        await Cluster(beside=cluster).started(2)
        client = await cluster.client()
        await client.negotiate()
        await create(client, "t", 2)
        scene = FlowScene(cluster, client)
        mirror = scene.start(**TO_SECOND)
        streams = flow_of(mirror).streams
        await cluster.until(lambda: len(streams) == 2 and all(s.is_idle for s in streams.values()))
        await produce_to_both(scene, b"before")
        await cluster.until(lambda: all(s.position == 1 for s in streams.values()))
        cluster.network.partition(["m1", "client", "mirror"], ["m2"])
        await produce_to_both(scene, b"after")
        await cluster.until(lambda: not any(s.is_idle for s in streams.values()))
        await work(scene, mirror)

    cluster.run(scenario())


def test_requests_in_flight_are_waited_for_once_and_the_group_is_left(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def work(scene: FlowScene, _mirror: Mirror) -> None:
        stopped_s = scene.cluster.loop.time()
        await scene.stop()
        assert scene.cluster.loop.time() - stopped_s < 15
        assert "the group was not left" not in caplog.text

    play_silent(work)


def test_partitions_being_revoked_at_the_stop_may_still_fail() -> None:
    async def work(scene: FlowScene, mirror: Mirror) -> None:
        await asyncio.sleep(12)
        strategy = "cooperative-sticky"
        group = flow_of(mirror).flow.group
        other = consumer_on(
            scene.cluster, "client", group_id=group, partition_assignment_strategy=strategy
        )
        other.subscribe(["t"])
        _asking = scene.cluster.loop.create_task(other.poll(60))
        partitions = flow_of(mirror)._consumer._core.partitions

        def one_is_being_revoked() -> bool:
            return any(each.is_revoked for each in partitions.values())

        await scene.cluster.until(one_is_being_revoked)
        await asyncio.sleep(
            9
        )  # a request in flight is given up 30 s after it was sent: before the mirror has ended
        assert one_is_being_revoked()
        await scene.stop()

    play_silent(work)
