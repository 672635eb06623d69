"""A disk that fails while its broker stops: what it failed at is why the broker ends."""

from __future__ import annotations

import pytest

from kdist.broker.broker import Broker
from kdist.errors import DiskFailed
from kdist.runtime.simulated_disk import Call
from kdist.storage.names import CLEAN_SHUTDOWN
from tests.unit.broker.broker_cluster import Cluster, create, produce


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
