"""Whether a broker serves: one record written to it and read back, on a topic made for that.

The topic has one partition, which only this broker has, and is deleted afterwards. So the probe
passes through the controller too: creation has to reach the broker.
"""

from __future__ import annotations

from typing import Any

from kdist.client.admin.topics import NewTopic, create_topics, delete_topic
from kdist.client.cluster import Cluster
from kdist.client.fetching import Reader
from kdist.client.gate import PROBE_PREFIX
from kdist.client.producing import produce
from kdist.errors import ApiError, Error, UserError
from kdist.model import TopicPartition
from kdist.records.build import build_batch

_SETTINGS = {"min.insync.replicas": "1"}


async def probe(cluster: Cluster, broker: int, timestamp_ms: int) -> None:
    """Write and read through `broker`; `ApiError` or `UserError` with what went wrong."""
    name = f"{PROBE_PREFIX}{broker}"
    await _create(cluster, name, broker)
    try:
        await _write_and_read(cluster, TopicPartition(name, 0), timestamp_ms)
    finally:
        await _delete(cluster, name)


async def _create(cluster: Cluster, name: str, broker: int) -> None:
    new = NewTopic(name, settings=_SETTINGS, replicas=[[broker]])

    async def create() -> None:
        try:
            await create_topics(cluster, [new])
        except ApiError as error:
            if error.error is not Error.TOPIC_ALREADY_EXISTS:  # a probe before this one left it
                raise

    await cluster.retried(create)


async def _write_and_read(cluster: Cluster, partition: TopicPartition, timestamp_ms: int) -> None:
    written = str(timestamp_ms).encode("ascii")
    await cluster.topic(partition.topic)  # its leader is known from here on
    batch = build_batch([written], timestamp_ms=timestamp_ms)
    offset = (await produce(cluster, {partition: batch}))[partition]
    reader = Reader(cluster, {partition: offset})
    async for fetched in reader.read():
        values: list[Any] = [record.value for _, record in fetched.records]
        if values:
            reader.leave(partition)
            if bytes(values[0] or b"") != written:
                raise UserError(f"{partition} gave other bytes back than were written")


async def _delete(cluster: Cluster, name: str) -> None:
    try:
        await delete_topic(cluster, name)
    except ApiError as error:
        if error.error is not Error.TOPIC_DELETION_DISABLED:
            raise
