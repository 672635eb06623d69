"""kdist's clients on a listener whose sessions end: nothing is lost, and no connection."""

from __future__ import annotations

import pytest

from kdist.client.admin import client_settings as admin
from kdist.client.admin.topics import NewTopic, create_topics
from kdist.client.cluster import Address, Cluster
from kdist.client.producer.asynchronous import AsyncProducer
from kdist.client.producer.core import ProducerContext
from kdist.errors import Error
from tests.refusals import refused
from tests.simulator.cluster import Cluster as Brokers

PORT = 9093
SESSION_MS = 2_000
MODULE = "org.apache.kafka.common.security.plain.PlainLoginModule"
SETTINGS = {
    "listeners": f"CLEAR://:9092,SASL://:{PORT}",
    "listener.security.protocol.map": "CLEAR:PLAINTEXT,SASL:SASL_PLAINTEXT",
    "inter.broker.listener.name": "CLEAR",
    "listener.name.sasl.sasl.enabled.mechanisms": "PLAIN",
    "listener.name.sasl.sasl.plain.over.clear.enable": "true",
    "listener.name.sasl.plain.sasl.jaas.config": f'{MODULE} required user_alice="secret";',
    "listener.name.sasl.plain.connections.max.reauth.ms": str(SESSION_MS),
}
SECURITY = {
    "security_protocol": "SASL_PLAINTEXT",
    "sasl_mechanism": "PLAIN",
    "sasl_username": "alice",
    "sasl_password": "secret",
}


@pytest.fixture
def gated() -> Brokers:
    return Brokers(settings=SETTINGS)


def test_a_producer_renews_its_sessions_while_it_sends(gated: Brokers) -> None:
    async def scenario() -> None:
        await gated.started()
        context = ProducerContext(gated.network.host("client"), gated.clock, gated.rng)
        connections = admin.read_settings(SECURITY).connections
        cluster = Cluster(context.network, [Address("m1", PORT)], connections)
        await create_topics(cluster, [NewTopic("clicks", partitions=1)])
        cluster.close()
        begun_s, offsets = gated.loop.time(), []
        async with AsyncProducer(f"m1:{PORT}", context=context, **SECURITY) as producer:
            while gated.loop.time() < begun_s + 10 * SESSION_MS / 1000:
                offsets.append((await producer.send_and_wait("clicks", b"x")).offset)
            lost = [
                line for line in producer.metrics_text().splitlines() if "lost_connections" in line
            ]
        proofs = gated.brokers[1].measures.proofs["SASL", "PLAIN"]
        assert offsets == list(range(len(offsets)))
        assert proofs.renewed >= 10
        assert not proofs.expired
        assert all(line.startswith("#") or line.endswith(" 0.0") for line in lost)

    gated.run(scenario())


def test_a_client_hears_that_its_password_is_wrong(gated: Brokers) -> None:
    async def scenario() -> None:
        await gated.started()
        wrong = admin.read_settings(SECURITY | {"sasl_password": "wrong"}).connections
        network = gated.network.host("client")
        cluster = Cluster(network, [Address("m1", PORT)], wrong)
        with refused(Error.SASL_AUTHENTICATION_FAILED, "PLAIN"):
            await cluster.retried(cluster.metadata)
        cluster.close()

    gated.run(scenario())
