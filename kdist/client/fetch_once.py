"""Fetches a few batches of a partition at an offset, once and without a consumer."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from kdist.client.cluster import Cluster, Outcome, Outcomes
from kdist.errors import Error
from kdist.model import TopicPartition
from kdist.protocol.fetch import NEWEST_BY_NAME, FetchPartition, FetchRequest, FetchTopic
from kdist.records.batch import BatchHeader
from kdist.records.convert import iter_fetched
from kdist.wire.primitives import Buffer

_LOOK_BYTES = 1 << 20


class FetchedBatches(NamedTuple):
    """The complete batches that one fetch returned."""

    buffer: Buffer

    def headers(self) -> Iterator[BatchHeader]:
        """The batches' headers, in order; the first may begin before the requested offset."""
        for _, _, header in iter_fetched(self.buffer, 0):
            yield header


async def fetch_at(
    cluster: Cluster, partition: TopicPartition, offset: int, bytes_max: int = _LOOK_BYTES
) -> FetchedBatches:
    """The batches from `offset` on, at least one whole batch if there is one. `ApiError`."""
    asked = FetchPartition(
        partition=partition.partition, fetch_offset=offset, partition_max_bytes=bytes_max
    )
    request = FetchRequest(
        max_wait_ms=0,
        min_bytes=0,
        max_bytes=bytes_max,
        topics=[FetchTopic(topic=partition.topic, partitions=[asked])],
    )

    async def ask(leader: int, _: list[TopicPartition]) -> Outcomes:
        answer = await cluster.ask(request, leader, NEWEST_BY_NAME)
        if answer.error_code:
            return {partition: Outcome(answer.error_code)}
        if not answer.responses:  # what a client over its quota is answered (KIP-219)
            return {partition: Outcome(Error.THROTTLING_QUOTA_EXCEEDED)}
        ((found,),) = (topic.partitions for topic in answer.responses)
        records = None if found.error_code else found.records or b""
        return {partition: Outcome(found.error_code, records)}

    return FetchedBatches((await cluster.ask_leaders([partition], ask))[partition])
