"""The probe succeeds on a broker that serves, and leaves nothing behind."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from kdist.client.admin.topics import list_topics
from kdist.client.cluster import Cluster, parse_addresses
from kdist.errors import ApiError
from kdist.network.client import ClientSettings
from kdist.network.network import AsyncioNetwork
from kdist.ops.probe import probe
from tests.unit.cli.cli_cluster import CliCluster, cli_cluster


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CliCluster]:
    with cli_cluster(tmp_path_factory.mktemp("cluster")) as brokers:
        yield brokers


def probed(running: CliCluster, broker: int) -> list[str]:
    """Probe a broker; returns the topics that there are afterwards."""

    async def run() -> list[str]:
        network = AsyncioNetwork(asyncio.get_running_loop())
        addresses = parse_addresses(running.address)
        cluster = Cluster(network, addresses, ClientSettings(client_id="test"), retry_ms=5_000)
        try:
            await probe(cluster, broker, 1_700_000_000_000)
            return [topic.name or "" for topic in await list_topics(cluster)]
        finally:
            cluster.close()

    return asyncio.run(run())


def test_each_broker_accepts_a_record_and_returns_it(running: CliCluster) -> None:
    assert probed(running, 1) == []
    assert probed(running, 2) == []


def test_a_leftover_probe_topic_is_used_again(running: CliCluster) -> None:
    running.done("topics", "create", "kdist-probe-1")
    assert probed(running, 1) == []


def test_a_missing_broker_fails_its_probe(running: CliCluster) -> None:
    with pytest.raises(ApiError):
        probed(running, 9)
