"""A producer's metrics."""

from __future__ import annotations

from collections.abc import Callable

from kdist.client.metrics import ClientMeter
from kdist.client.producer.batch import ProducerBatch
from kdist.metrics.clients import ProducerMetrics, ProducerTopicMetrics
from kdist.metrics.declare import Family


class ProducerMeter(ClientMeter):
    """Owner: the loop."""

    def __init__(self, client_id: str, now_s: Callable[[], float]) -> None:
        super().__init__(client_id)
        self.own = ProducerMetrics()
        self._topics = Family(ProducerTopicMetrics, "topic")
        self._now_s = now_s
        self.exposition.add(self.own)
        self.exposition.add_family(self._topics)

    def settled(self, batch: ProducerBatch) -> None:
        """A batch was delivered or has failed; its frame is still there."""
        topic = self._topics[batch.queue.topic,]
        count = batch.count or len(batch.values)  # it may have failed before it was encoded
        if batch.error is not None:
            topic.record_errors += count
            return
        topic.records_sent += count
        topic.batches_sent += 1
        if batch.frame is not None:
            topic.bytes_sent += len(batch.frame) - batch.prefix_size
        self.own.delivery_seconds.observe(self._now_s() - batch.created_s)

    def retried(self, batch: ProducerBatch) -> None:
        """A batch was put back, to be sent again."""
        self._topics[batch.queue.topic,].record_retries += batch.count
