"""Sends the queued records to the topic, in order, until the queue is empty or a send fails.

Delivery is at least once: a record whose acknowledgement is lost is sent again. Readers can
recognise duplicates by host and timestamp.
"""

from __future__ import annotations

import logging

from kdist.agent.queue import Queue, Queued
from kdist.client.cluster import Cluster
from kdist.client.partitioner import partition_for
from kdist.client.produce_once import produce
from kdist.errors import ApiError, Error, UserError
from kdist.metrics.agent import AgentMetrics
from kdist.model import TopicPartition
from kdist.records.build import build_batch
from kdist.records.compression import Codec

logger = logging.getLogger(__name__)

_BATCH_BYTES_MAX = 500_000  # before compression: half of a topic's default max.message.bytes
_PERMANENT = (
    Error.MESSAGE_TOO_LARGE,
    Error.RECORD_LIST_TOO_LARGE,
    Error.INVALID_RECORD,
    Error.INVALID_TIMESTAMP,
)


class Publisher:
    """Sends the queue. `cluster` does not retry: the next interval does. Owner: the loop."""

    def __init__(
        self, cluster: Cluster, topic: str, host: str, queue: Queue, metrics: AgentMetrics
    ) -> None:
        self._cluster = cluster
        self._topic = topic
        self._key = host.encode()
        self._queue = queue
        self._metrics = metrics
        self._partition: TopicPartition | None = None
        self._told = ""

    async def send_all(self) -> bool:
        """Send all queued records; whether that succeeded. Those not sent stay in the queue.

        Of a batch that is refused for good each half is tried, so that only what is to blame for it
        is dropped.
        """
        bytes_max = _BATCH_BYTES_MAX
        while taken := self._queue.take(bytes_max):
            try:
                await self._send(taken)
            except (ApiError, UserError) as error:
                if _is_permanent(error) and len(taken) > 1:
                    self._queue.put_back(taken)
                    bytes_max = sum(len(each.value) for each in taken) // 2
                    continue
                self._fail(taken, error)
                return False
            except BaseException:
                self._queue.put_back(taken)
                raise
            self._metrics.published_records += len(taken)
        self._tell("")
        return True

    async def _send(self, records: list[Queued]) -> None:
        if self._partition is None:
            count = len((await self._cluster.topic(self._topic)).partitions)
            self._partition = TopicPartition(self._topic, partition_for(self._key, count))
        batch = build_batch(
            [each.value for each in records],
            [self._key] * len(records),
            timestamps=[each.timestamp_ms for each in records],
            timestamp_ms=records[0].timestamp_ms,
            codec=Codec.LZ4,
        )
        await produce(self._cluster, {self._partition: batch})

    def _fail(self, taken: list[Queued], error: ApiError | UserError) -> None:
        self._metrics.failed_sends += 1
        self._partition = None  # the topic may have been recreated, or have more partitions
        if _is_permanent(error):
            self._queue.dropped += len(taken)
        else:
            self._queue.put_back(taken)
        self._tell(str(error))

    def _tell(self, trouble: str) -> None:
        """Log when trouble begins and when it ends, but not for each record."""
        if bool(trouble) != bool(self._told):
            if trouble:
                logger.warning("records cannot be sent: %s", trouble)
            else:
                logger.info("records are sent again")
        self._told = trouble


def _is_permanent(error: ApiError | UserError) -> bool:
    return isinstance(error, ApiError) and error.error in _PERMANENT
