"""The probe succeeds on a broker that serves, and leaves nothing behind."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from kdist.client.admin.topics import NewTopic, create_topics, list_topics
from kdist.client.cluster import Cluster, cluster_at, parse_addresses
from kdist.errors import ApiError, KdistError, UserError
from kdist.model import TopicPartition
from kdist.network.client import ClientSettings
from kdist.network.network import AsyncioNetwork
from kdist.ops.probe import probe
from tests.unit.cli.cli_cluster import CliCluster, cli_cluster


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CliCluster]:
    with cli_cluster(tmp_path_factory.mktemp("cluster")) as brokers:
        yield brokers


def probed(running: CliCluster, *brokers: int) -> list[str]:
    """Probe brokers; returns the topics that there are afterwards. Raises what a probe meets."""

    async def run() -> list[str]:
        network = AsyncioNetwork(asyncio.get_running_loop())
        addresses = parse_addresses(running.address)
        cluster = Cluster(network, addresses, ClientSettings(client_id="test"), retry_ms=5_000)
        try:
            for error in (await probe(cluster, brokers, 1_700_000_000_000)).values():
                raise error
            return [topic.name or "" for topic in await list_topics(cluster)]
        finally:
            cluster.close()

    return asyncio.run(run())


def test_each_broker_accepts_a_record_and_returns_it(running: CliCluster) -> None:
    assert probed(running, 1) == []
    assert probed(running, 2) == []


def test_however_many_brokers_are_probed_one_topic_is_made(
    running: CliCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[list[list[int]] | None] = []

    async def noted(cluster: Cluster, new: list[NewTopic]) -> None:
        made.extend([list(map(list, each.replicas or ())) for each in new])
        await create_topics(cluster, new)

    monkeypatch.setattr("kdist.ops.probe.create_topics", noted)
    assert probed(running, 1, 2) == []
    assert made == [[[1], [2]]]


def test_of_several_the_broker_is_named_through_which_no_record_passes(
    running: CliCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def deaf(cluster: Cluster, partition: TopicPartition, timestamp_ms: int) -> None:
        if partition.partition == 1:
            raise UserError("deaf")

    monkeypatch.setattr("kdist.ops.probe.write_and_read", deaf)

    async def run() -> dict[int, KdistError]:
        with cluster_at(parse_addresses(running.address), "test") as cluster:
            return await probe(cluster, (1, 2), 1_700_000_000_000)

    assert {broker: str(error) for broker, error in asyncio.run(run()).items()} == {2: "deaf"}


def test_a_leftover_probe_topic_is_used_again(running: CliCluster) -> None:
    running.done("topics", "create", "kdist-probe-1")
    assert probed(running, 1) == []


def test_a_missing_broker_fails_its_probe(running: CliCluster) -> None:
    with pytest.raises(ApiError):
        probed(running, 9)
