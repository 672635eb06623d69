"""DeleteRecords, asked of brokers in virtual time."""

from __future__ import annotations

from typing import Any

import pytest

from kdist.config.topic import TopicSettings
from kdist.errors import Error
from kdist.model import TopicPartition
from kdist.network.client import Client
from kdist.protocol.delete_records import (
    HIGH_WATERMARK,
    DeleteRecordsRequest,
    TrimmedPartition,
    TrimmedPartitionResult,
    TrimmedTopic,
)
from kdist.protocol.list_offsets import (
    EARLIEST_TIMESTAMP,
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from tests.simulator.cluster import Cluster, create, produce

CLICKS = TopicPartition("clicks", 0)


async def trim(
    client: Client, offset: int, version: int = 2, *, topic: str = "clicks", partition: int = 0
) -> TrimmedPartitionResult:
    """Delete the records before `offset`."""
    asked = TrimmedPartition(partition_index=partition, offset=offset)
    request = DeleteRecordsRequest(
        topics=[TrimmedTopic(name=topic, partitions=[asked])], timeout_ms=1_000
    )
    answer = await client.send(request, version)
    (result,) = answer.topics[0].partitions
    assert isinstance(result, TrimmedPartitionResult)
    return result


def facts(result: TrimmedPartitionResult) -> tuple[int, int]:
    return result.low_watermark, result.error_code


async def start_offset(client: Client) -> int:
    """The offset that clients are told the partition starts at."""
    asked = ListOffsetsPartition(partition_index=0, timestamp=EARLIEST_TIMESTAMP)
    topics = [ListOffsetsTopic(name="clicks", partitions=[asked])]
    answer = await client.send(ListOffsetsRequest(topics=topics), 7)
    offset: int = answer.topics[0].partitions[0].offset
    return offset


async def filled(cluster: Cluster, **configs: str) -> Client:
    """A client of a broker whose topic has offsets 0 to 9."""
    await cluster.started()
    client = await cluster.client()
    await create(client, "clicks", 1, **configs)
    for _ in range(10):
        assert (await produce(client, "clicks", b"x" * 100)).error_code == 0
    return client


@pytest.mark.parametrize("version", range(3))
async def test_the_log_start_offset_moves_to_the_offset_and_never_back(
    cluster: Cluster, version: int
) -> None:
    client = await filled(cluster)
    assert facts(await trim(client, 4, version)) == (4, 0)
    assert await start_offset(client) == 4
    assert facts(await trim(client, 2, version)) == (4, 0)
    assert await start_offset(client) == 4


async def test_minus_one_stands_for_the_high_watermark(cluster: Cluster) -> None:
    client = await filled(cluster)
    assert facts(await trim(client, HIGH_WATERMARK)) == (10, 0)
    assert await start_offset(client) == 10
    assert (await produce(client, "clicks", b"y")).base_offset == 10


async def test_segments_below_the_start_go(cluster: Cluster) -> None:
    client = await filled(cluster, segment_bytes="400", max_message_bytes="400")
    log = cluster.brokers[1].service.directory.logs[CLICKS]
    before = [segment.base_offset for segment in log.segments]
    assert len(before) > 3
    await trim(client, before[2] + 1)
    await cluster.until(lambda: log.segments[0].base_offset == before[2])


async def test_records_past_retention_stay_until_it_is_checked(cluster: Cluster) -> None:
    """As those of a backfill, or of a mirror, with the times of long ago."""
    client = await filled(cluster, segment_bytes="400", max_message_bytes="400")
    directory = cluster.brokers[1].service.directory
    cluster.brokers[1].service.replicas.configure("clicks", TopicSettings(retention_ms=0))
    assert facts(await trim(client, 1)) == (1, 0)
    assert (await start_offset(client), directory.logs[CLICKS].segments[0].base_offset) == (
        1,
        0,
    )
    directory.trimmer.retain(lambda log: log.end_offset)
    assert await start_offset(client) == 10


async def test_the_start_is_kept_through_a_power_loss(cluster: Cluster) -> None:
    client = await filled(cluster, flush_messages="1")
    assert facts(await trim(client, 7)) == (7, 0)
    cluster.kill(cluster.brokers[1], is_power_lost=True)
    await cluster.started()
    assert await start_offset(await cluster.client()) == 7


@pytest.mark.parametrize("offset", [11, -2, 2**63 - 1])
async def test_an_offset_outside_the_log_is_out_of_range(cluster: Cluster, offset: int) -> None:
    client = await filled(cluster)
    assert facts(await trim(client, offset)) == (-1, Error.OFFSET_OUT_OF_RANGE)
    assert await start_offset(client) == 0


async def test_a_compacted_topic_is_refused(cluster: Cluster) -> None:
    await cluster.started()
    client = await cluster.client()
    await create(client, "clicks", cleanup_policy="compact")
    assert facts(await trim(client, 0)) == (-1, Error.POLICY_VIOLATION)


@pytest.mark.parametrize(
    ("asked", "error"),
    [
        ({"topic": "nowhere"}, Error.UNKNOWN_TOPIC_OR_PARTITION),
        ({"partition": 1}, Error.UNKNOWN_TOPIC_OR_PARTITION),
        ({"topic": "__consumer_offsets"}, Error.INVALID_TOPIC_EXCEPTION),
    ],
)
async def test_unknown_partitions_and_internal_topics_are_refused(
    cluster: Cluster, asked: dict[str, Any], error: Error
) -> None:
    client = await filled(cluster)
    assert facts(await trim(client, 0, **asked)) == (-1, error)


async def test_a_broker_that_is_not_the_leader_refuses(cluster: Cluster) -> None:
    await cluster.started(1)
    await cluster.started(2)
    client = await cluster.client(1)
    await create(client, "clicks", 2)
    cache = cluster.brokers[2].service.cache
    await cluster.until(lambda: cache.has(CLICKS))
    other = 3 - cache.leader_of(CLICKS)
    result = await trim(await cluster.client(other), 0)
    assert facts(result) == (-1, Error.NOT_LEADER_OR_FOLLOWER)
