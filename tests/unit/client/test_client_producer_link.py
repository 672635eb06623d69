"""A producer's connections to brokers, on the simulated network."""

from __future__ import annotations

import asyncio

import pytest

from kdist.client.producer.faults import ProducerClosed
from tests.unit.client.producer_world import PORT, Scene, Served, play


class Mute(Served):
    """A broker that never answers ApiVersions."""

    def __init__(self, scene: Scene) -> None:
        super().__init__(scene.brokers, 1)
        self.asked, self.lost = asyncio.Event(), asyncio.Event()

    def frame_received(self, frame: memoryview) -> None:
        self.asked.set()

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost.set()


def test_closing_a_producer_closes_connections_that_still_negotiate() -> None:
    async def work(scene: Scene) -> None:
        mute = Mute(scene)
        scene.network.crash("b1")
        await scene.brokers.hosts[1].listen(lambda: mute, "", PORT)
        producer = await scene.producer().start()
        sent = await producer.send("t", b"a", partition=1)
        await producer.close(timeout_s=2)
        with pytest.raises(ProducerClosed):
            await sent
        assert mute.asked.is_set()
        async with asyncio.timeout(5):
            await mute.lost.wait()

    play(work, hosts=2, partitions=2)
