"""A disk that fails while its broker stops, or starts: that is why the broker ends."""

from __future__ import annotations

import asyncio
import errno

import pytest

from kdist.broker.broker import Broker
from kdist.errors import DiskFailed
from kdist.runtime.simulated_disk import Call
from kdist.storage.names import CLEAN_SHUTDOWN
from kdist.zk.election import claim
from tests.unit.broker.broker_cluster import Cluster, create, produce


async def claimed(cluster: Cluster) -> None:
    """There is a controller, and it tells nobody anything."""
    zk = cluster.ensemble.client()
    await zk.connect()
    assert await claim(zk, 7, 0)


def is_sync_of_log(call: Call) -> bool:
    return call.name in ("sync", "sync_filesystem") and "checkpoint" not in call.path


async def stopping(cluster: Cluster, broker: Broker) -> None:
    """As the process does, with a flush under way."""
    client = await cluster.client()
    assert (await create(client, "clicks")).error_code == 0
    assert (await produce(client, "clicks", b"v")).error_code == 0
    directory = broker.service.directory
    (log,) = directory.logs.values()
    cluster.disks[1].fail(when=is_sync_of_log, forever=False)
    directory.flusher.request(log)
    await broker.stop()


@pytest.mark.parametrize("seed", range(5))
def test_a_flush_that_fails_while_a_broker_stops_is_why_it_ends(seed: int) -> None:
    cluster = Cluster(seed)

    async def scenario() -> None:
        broker = await cluster.started()
        await stopping(cluster, broker)
        assert isinstance(broker.failure.result(), DiskFailed)
        assert not cluster.disks[1].exists(f"/d/{CLEAN_SHUTDOWN}")
        await broker.abandon()

    cluster.run(scenario())


def test_a_disk_that_fails_at_the_last_flush_of_a_stop_is_why_it_ends() -> None:
    cluster = Cluster()

    async def scenario() -> None:
        broker = await cluster.started()
        client = await cluster.client()
        assert (await create(client, "clicks")).error_code == 0
        assert (await produce(client, "clicks", b"v")).error_code == 0
        cluster.disks[1].fail(when=is_sync_of_log, forever=False)
        with pytest.raises(DiskFailed):
            await broker.stop()
        await broker.abandon()

    cluster.run(scenario())


def test_a_start_that_is_cancelled_after_the_disk_failed_leaves_no_clean_marker() -> None:
    cluster = Cluster()

    async def scenario() -> None:
        broker = await cluster.started()
        await broker.stop()
        await claimed(cluster)
        broker = cluster.broker()
        starting = asyncio.ensure_future(broker.start())
        await asyncio.sleep(30)
        broker.fail(DiskFailed("/d", OSError(errno.EIO, "Input/output error")))
        starting.cancel()
        await asyncio.gather(starting, return_exceptions=True)
        assert not cluster.disks[1].exists(f"/d/{CLEAN_SHUTDOWN}")

    cluster.run(scenario())
