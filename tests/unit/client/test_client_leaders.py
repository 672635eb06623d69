"""The errors for partitions whose leader cannot be asked."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

import pytest

from kdist.client.cluster import Cluster
from kdist.client.offsets import TIMESTAMPS, find_offsets
from kdist.errors import ApiError
from kdist.model import NO_LEADER, TopicPartition
from kdist.network.client import ClientSettings
from kdist.network.network import AsyncioNetwork


@pytest.mark.parametrize(
    ("partition", "error"),
    [
        (TopicPartition("t", 0), "LEADER_NOT_AVAILABLE: t-0"),
        (TopicPartition("t", 9), "UNKNOWN_TOPIC_OR_PARTITION: t-9"),
        (TopicPartition("nowhere", 0), "UNKNOWN_TOPIC_OR_PARTITION: nowhere-0"),
    ],
)
def test_a_partition_that_does_not_exist_is_not_said_to_lack_a_leader(
    monkeypatch: pytest.MonkeyPatch, partition: TopicPartition, error: str
) -> None:
    async def metadata(cluster: Cluster, _: Iterable[str]) -> None:
        cluster.leaders[TopicPartition("t", 0)] = NO_LEADER

    async def work() -> None:
        network = AsyncioNetwork(asyncio.get_running_loop())
        cluster = Cluster(network, [], ClientSettings("test"), retry_ms=150)
        await find_offsets(cluster, [partition], TIMESTAMPS["latest"])

    monkeypatch.setattr(Cluster, "metadata", metadata)
    with pytest.raises(ApiError, match=error):
        asyncio.run(work())
