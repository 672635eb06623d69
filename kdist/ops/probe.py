"""Probes whether a broker serves, by writing one record to it and reading it back.

The record goes to a temporary topic with one partition, on this broker alone. Creating and deleting
the topic also tests that the controller works and reaches the broker.
"""

from __future__ import annotations

from kdist.client.admin.topics import NewTopic, create_topics, delete_topic
from kdist.client.cluster import Cluster
from kdist.client.fetch_once import fetch_at
from kdist.client.produce_once import produce
from kdist.errors import ApiError, Error, UserError
from kdist.model import TopicPartition
from kdist.ops.gate import PROBE_PREFIX
from kdist.records.build import build_batch, read_batch

_SETTINGS = {"min.insync.replicas": "1"}


async def probe(cluster: Cluster, broker: int, timestamp_ms: int) -> None:
    """Write and read through `broker`; `ApiError` or `UserError` if that fails."""
    name = f"{PROBE_PREFIX}{broker}"
    await _create(cluster, name, broker)
    try:
        await cluster.topic(name)  # its leader is known from here on
        await write_and_read(cluster, TopicPartition(name, 0), timestamp_ms)
    finally:
        await _delete(cluster, name)


async def _create(cluster: Cluster, name: str, broker: int) -> None:
    new = NewTopic(name, settings=_SETTINGS, replicas=[[broker]])

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
