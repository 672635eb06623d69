"""A disk that fails while its broker stops or starts is reported as the reason of its end."""

from __future__ import annotations

import asyncio
import errno

import pytest

from kdist.broker.broker import Broker, State
from kdist.errors import DiskFailed
from kdist.runtime.simulated_disk import Call
from kdist.storage.names import CLEAN_SHUTDOWN
from kdist.zk import znodes
from kdist.zk.client import SessionState
from kdist.zk.election import claim
from tests.simulator.cluster import Cluster, create, produce, produce_request


async def claimed(cluster: Cluster) -> None:
    """There is a controller, and it sends no requests."""
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
def test_a_flush_that_fails_during_a_stop_is_the_reason_of_the_end(seed: int) -> None:
    cluster = Cluster(seed)

    async def scenario() -> None:
        broker = await cluster.started()
        await stopping(cluster, broker)
        assert isinstance(broker.failure.result(), DiskFailed)
        assert not cluster.disks[1].exists(f"/d/{CLEAN_SHUTDOWN}")
        await broker.abandon()

    cluster.run(scenario())


@pytest.mark.parametrize("is_under_way", [False, True])
def test_a_disk_failure_during_a_stop_ends_the_broker_at_once(is_under_way: bool) -> None:
    """It fails under a thread's write, whose end no stop awaits, or under the last flush."""
    cluster = Cluster()

    async def scenario() -> None:
        broker = await cluster.started()
        client = await cluster.client()
        await create(client, "clicks")
        await produce(client, "clicks", b"x")
        if is_under_way:
            cluster.processes[1].blocking_ms_max = 2_000
            writers = broker.service.replicas._context.writers
            writers.thread_until_ns = cluster.clock.monotonic_ns() + 10**12
            await client.tell(produce_request("clicks", b"y"), 9)
            await asyncio.sleep(0.1)
        cluster.disks[1].fail(when=lambda call: call.name not in ("read", "list"))
        async with asyncio.timeout(30):
            await broker.stop(drain_ms=100)
        assert isinstance(broker.failure.result(), DiskFailed)
        await broker.abandon()
        assert (broker.state, cluster.zks[1].state) == (State.STOPPED, SessionState.CLOSED)
        assert cluster.ensemble.tree.exists(znodes.BROKER.path(1)) is None

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
