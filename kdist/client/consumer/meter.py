"""A consumer's metrics."""

from __future__ import annotations

from collections.abc import Mapping
from math import nan

from kdist.client.consumer.partition import Partition
from kdist.client.consumer.settings import ConsumerSettings
from kdist.client.metrics import ClientMeter
from kdist.metrics.clients import (
    ConsumerMetrics,
    ConsumerPartitionMetrics,
    ConsumerTopicMetrics,
)
from kdist.metrics.declare import Family
from kdist.model import NO_OFFSET, TopicPartition


class ConsumerMeter(ClientMeter):
    """Owner: the loop, except that the thread that takes completed fetches counts in a topic."""

    def __init__(self, settings: ConsumerSettings) -> None:
        super().__init__(settings.client_id)
        self.own = ConsumerMetrics()
        self.topics = Family(ConsumerTopicMetrics, "topic")
        self._is_committed_only = settings.is_committed_only
        self.exposition.add(self.own)
        self.exposition.add_family(self.topics)

    def show(self, partitions: Mapping[TopicPartition, Partition]) -> None:
        """Show the assigned partitions, which this is a view of."""

        def lags() -> Family[ConsumerPartitionMetrics]:
            family = Family(ConsumerPartitionMetrics, "topic", "partition")
            for (topic, number), partition in list(partitions.items()):
                family[topic, str(number)].lag_records = self._lag(partition)
            return family

        self.own.assigned_partitions = lambda: len(partitions)
        self.exposition.add_made(lags)

    def _lag(self, partition: Partition) -> float:
        """As `Core.lag`, but records taken count as read: whoever asks may be in any thread."""
        is_stable = self._is_committed_only
        end = partition.last_stable_offset if is_stable else partition.high_watermark
        position = None if partition.is_missing else partition.position
        if end == NO_OFFSET or position is None:
            return nan
        return max(0, end - max(position, partition.log_start_offset))
