"""A whole mirror in virtual time, from a broker's topics to the same under a prefix."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from kdist.config.mirror import load_mirror
from kdist.mirror.flow import MirrorContext, MirrorFlow
from kdist.mirror.mirror import Mirror
from kdist.mirror.stream import State, Stream
from kdist.model import TopicPartition
from kdist.network.client import Client
from kdist.protocol import fetch
from kdist.protocol.fetch import FetchPartition, FetchRequest, FetchTopic
from kdist.records.batch import iter_headers
from kdist.records.build import read_batch
from tests.simulator.cluster import PATIENCE_S, PORT, Cluster

SETTINGS = {
    "flow.f.source": f"m1:{PORT}",
    "flow.f.target": f"m1:{PORT}",
    "flow.f.prefix": "copy.",
    "flow.f.topics": "t.*",
    "mirror.refresh.interval.ms": "1000",
}


class FlowScene:
    """One broker, which is source and target, and a client of it."""

    def __init__(self, cluster: Cluster, client: Client) -> None:
        self.cluster = cluster
        self.client = client
        self.mirror: Mirror  # the last mirror started
        self._stop = asyncio.Event()
        self._running: asyncio.Task[None] | None = None

    def start(self, base: Mapping[str, str] = SETTINGS, **settings: str) -> Mirror:
        """Start a mirror; settings, beside those of `base`, have `_` for `.`."""
        given = {**base} | {name.replace("_", "."): text for name, text in settings.items()}
        text = "".join(f"{name}={value}\n" for name, value in given.items())
        network = self.cluster.network.host("mirror")
        world = MirrorContext(network, self.cluster.clock, self.cluster.rng)
        mirror = self.mirror = Mirror(load_mirror(text, "file"), world)
        self._stop.clear()
        self._running = self.cluster.loop.create_task(mirror.run(self._stop, lambda: None))
        return mirror

    async def stop(self) -> None:
        """Stop the mirror as a signal does; raises what it failed with."""
        self._stop.set()
        assert self._running is not None
        await self._running

    async def end(self) -> None:
        """End the mirror if it runs, lest it be collected, and end, amid another test."""
        if self._running is not None and not self._running.done():
            self._running.cancel()
            await asyncio.wait([self._running])

    @property
    def has_ended(self) -> bool:
        return self._running is not None and self._running.done()

    async def values(self, topic: str, partition: int = 0) -> list[bytes | None]:
        """All values in a partition."""
        asked = FetchPartition(partition=partition, fetch_offset=0, partition_max_bytes=1 << 20)
        topics = [FetchTopic(topic=topic, partitions=[asked])]
        request = FetchRequest(max_wait_ms=0, min_bytes=0, max_bytes=1 << 20, topics=topics)
        version = self.client.version_of(fetch.API, fetch.NEWEST_BY_NAME)
        answer = await self.client.send(request, version)
        data = answer.responses[0].partitions[0].records or b""
        return [
            record.value
            for at, header in iter_headers(data, may_end_partial=True)
            if not header.is_control
            for record in read_batch(data, at)
        ]

    async def until_copied(self, topic: str, *values: bytes, partition: int = 0) -> None:
        """Wait until the copy of a partition holds exactly these values."""
        end_s = self.cluster.loop.time() + PATIENCE_S
        while await self.values(f"copy.{topic}", partition) != list(values):
            assert self.cluster.loop.time() < end_s, "it was not mirrored in time"
            assert not self.has_ended
            await asyncio.sleep(0.1)


def flow_of(mirror: Mirror) -> MirrorFlow:
    (flow,) = mirror.flows
    return flow


def stream_of(mirror: Mirror, topic: str = "t") -> Stream | None:
    return flow_of(mirror).streams.get(TopicPartition(topic, 0))


def is_stopped(mirror: Mirror, topic: str = "t") -> bool:
    stream = stream_of(mirror, topic)
    return stream is not None and stream.state is State.STOPPED


def play(work: Callable[[FlowScene], Awaitable[Any]], **settings: str) -> None:
    """Run `work` against a broker with these settings."""
    cluster = Cluster()

    async def scenario() -> None:
        await cluster.started(1, **settings)
        client = await cluster.client()
        await client.negotiate()
        scene = FlowScene(cluster, client)
        try:
            await work(scene)
        finally:
            await scene.end()

    cluster.run(scenario())
