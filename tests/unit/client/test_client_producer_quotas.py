"""A producer that is over its quota, and then has none any more."""

from __future__ import annotations

from kdist.client.admin.quotas import alter_client_quotas
from kdist.client.cluster import Address
from kdist.client.cluster import Cluster as Asking
from kdist.client.producer.asynchronous import AsyncProducer
from kdist.client.producer.core import ProducerContext
from kdist.network.client import ClientSettings
from tests.simulator.cluster import PORT, Cluster, create


async def test_a_producer_goes_on_soon_after_its_quota_is_taken_away(cluster: Cluster) -> None:
    """It used to sleep out the half minute for which the broker had told it to pause."""
    await cluster.started()
    client = await cluster.client()
    await client.negotiate()
    await create(client, "clicks")
    network = cluster.network
    asking = Asking(network.host("admin"), [Address("m1", PORT)], ClientSettings("admin"))
    await alter_client_quotas(asking, "etl", {"producer_byte_rate": 1_000})
    context = ProducerContext(network.host("etl"), cluster.clock, cluster.rng)
    servers = f"m1:{PORT}"
    async with AsyncProducer(servers, client_id="etl", context=context) as producer:
        await producer.send_and_wait("clicks", bytes(40_000))
        held = await producer.send("clicks", b"held")
        begun_s = cluster.loop.time()
        await cluster.until(lambda: cluster.loop.time() > begun_s + 5)
        assert not held.done()  # the broker keeps the quota, whatever the producer does
        await alter_client_quotas(asking, "etl", unset=["producer_byte_rate"])
        begun_s = cluster.loop.time()
        await held
        await producer.send_and_wait("clicks", b"next")
        assert cluster.loop.time() < begun_s + 1
    asking.close()
