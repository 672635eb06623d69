"""Probes whether brokers serve, by writing one record to each and reading it back.

The records go to a temporary topic with a partition on each broker alone: one topic however many
they are, as each that is made and deleted is told to all brokers of the cluster. That also tests
that the controller works and reaches them.
"""

from __future__ import annotations

from collections.abc import Sequence
from zlib import crc32

from kdist.client.admin.topics import NewTopic, create_topics, delete_topic
from kdist.client.cluster import Cluster
from kdist.client.fetch_once import fetch_at
from kdist.client.produce_once import produce
from kdist.errors import ApiError, Error, KdistError, UserError
from kdist.model import TopicPartition
from kdist.ops.gate import PROBE_PREFIX
from kdist.records.build import build_batch, read_batch

_SETTINGS = {"min.insync.replicas": "1"}


async def probe(
    cluster: Cluster, brokers: Sequence[int], timestamp_ms: int
) -> dict[int, KdistError]:
    """Write and read through each of `brokers`; returns why that failed, where it did.

    `ApiError` or `UserError` if not even their topic could be made.
    """
    name = f"{PROBE_PREFIX}{brokers[0]}"
    if len(brokers) > 1:  # one that is left over from a probe is used again by the same alone
        name += f"-{crc32(repr(list(brokers)).encode()):08x}"
    await _create(cluster, name, brokers)
    failed: dict[int, KdistError] = {}
    try:
        await cluster.topic(name)  # the leaders are known from here on
        for number, broker in enumerate(brokers):
            try:
                await write_and_read(cluster, TopicPartition(name, number), timestamp_ms)
            except (ApiError, UserError) as error:
                failed[broker] = error
    finally:
        await _delete(cluster, name)
    return failed


async def _create(cluster: Cluster, name: str, brokers: Sequence[int]) -> None:
    new = NewTopic(name, settings=_SETTINGS, replicas=[[each] for each in brokers])

    async def create() -> None:
        try:
            await create_topics(cluster, [new])
        except ApiError as error:
            if error.error is not Error.TOPIC_ALREADY_EXISTS:  # left over from an earlier probe
                raise

    await cluster.retried(create)


async def write_and_read(cluster: Cluster, partition: TopicPartition, timestamp_ms: int) -> None:
    """Write a record to a partition and read it back; `ApiError` or `UserError` if that fails."""
    written = str(timestamp_ms).encode("ascii")
    batch = build_batch([written], timestamp_ms=timestamp_ms)
    offset = (await produce(cluster, {partition: batch}))[partition]
    returned = (await fetch_at(cluster, partition, offset)).buffer
    if not returned:
        raise UserError(f"{partition} does not return what was written")
    if read_batch(returned)[0].value != written:
        raise UserError(f"{partition} returned other bytes than were written")


async def _delete(cluster: Cluster, name: str) -> None:
    try:
        await delete_topic(cluster, name)
    except ApiError as error:
        if error.error is not Error.TOPIC_DELETION_DISABLED:
            raise
