"""A broker that fails ends by itself: others on the same loop go on."""

from __future__ import annotations

import asyncio

from kdist.errors import DiskFailed
from kdist.protocol.fetch import FetchPartition, FetchRequest, FetchTopic
from tests.simulator.cluster import Cluster, create, produce_request


def test_a_disk_that_fails_while_a_waiting_fetch_is_woken_ends_only_its_own_broker() -> None:
    """At the end of a tick, where no request is at hand that the failure could belong to."""
    cluster = Cluster()

    async def scenario() -> None:
        one, two = await cluster.started(1), await cluster.started(2)
        client = await cluster.client(1)
        await create(client, "clicks", 2)
        await cluster.until(lambda: len(one.service.cache.topics["clicks"].partitions) == 2)
        (led,) = (each.partition for each in one.service.replicas.partitions if each[0] == "clicks")
        asked = FetchPartition(partition=led, fetch_offset=0, partition_max_bytes=1 << 20)
        topic = FetchTopic(topic="clicks", partitions=[asked])
        request = FetchRequest(max_wait_ms=5_000, min_bytes=1, max_bytes=1 << 20, topics=[topic])
        waiting = asyncio.ensure_future(client.send(request, 11))
        await asyncio.sleep(0.1)
        cluster.disks[1].fail(when=lambda call: call.name in ("read", "read_cached"))
        await (await cluster.client(1)).tell(produce_request("clicks", b"x", partition=led), 9)
        assert isinstance(await asyncio.wait_for(one.failure, 1), DiskFailed)
        waiting.cancel()
        await one.abandon()
        await cluster.until(lambda: two.service.controller.is_active)
        assert not two.failure.done()
        await two.stop()

    cluster.run(scenario())
