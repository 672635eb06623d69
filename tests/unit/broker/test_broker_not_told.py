"""A registered broker that has not had any metadata from a controller yet."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from kdist.controller.channels import BrokerChannel, BrokerRequestBatch
from kdist.errors import Error
from kdist.protocol.find_coordinator import FindCoordinatorRequest
from tests.simulator.cluster import Cluster, create, produce
from tests.unit.broker.test_broker_metadata import ask


def test_a_broker_without_metadata_yet_does_not_request_the_offsets_topic(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The topic probably exists. Clients retry, and waiting requests are answered in the end."""
    cluster = Cluster()
    may_send, send = asyncio.Event(), BrokerChannel._send_update_metadata

    async def send_late(
        channel: BrokerChannel, peer: Any, batch: BrokerRequestBatch, *rows: Any
    ) -> None:
        if channel.broker.id == 2 and batch.is_full:  # not the first one, which has only brokers
            await may_send.wait()
        await send(channel, peer, batch, *rows)

    monkeypatch.setattr(BrokerChannel, "_send_update_metadata", send_late)

    async def scenario() -> None:
        await cluster.started(1)
        await create(await cluster.client(1), "clicks", 2)
        broker = cluster.broker(2)
        starting = cluster.loop.create_task(broker.start())
        await cluster.until(lambda: broker._gateway.endpoints)
        client = await cluster.client(2)
        found = await client.send(FindCoordinatorRequest(key="g"), 3)
        assert found.error_code == Error.COORDINATOR_NOT_AVAILABLE
        refused = await produce(client, "clicks", b"x")
        assert refused.error_code == Error.NOT_LEADER_OR_FOLLOWER
        asked = cluster.loop.create_task(ask(client, 9, "clicks"))
        await asyncio.sleep(10)
        assert not asked.done()
        may_send.set()
        assert len((await asked).topics[0].partitions) == 2
        await starting
        assert "__consumer_offsets" not in broker.service.cache.topics
        assert "is not created" not in caplog.text

    cluster.run(scenario())
