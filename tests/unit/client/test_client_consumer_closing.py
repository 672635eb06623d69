"""The end of a consumer that blocks, wherever it is asked for."""

from __future__ import annotations

from kdist.client.consumer.consumer import Consumer
from kdist.client.consumer.partition import Partition
from kdist.client.consumer.rebalancing import Partitions, RebalanceListener
from kdist.model import TopicPartition


def test_a_listener_that_is_told_of_the_end_may_close_its_consumer() -> None:
    """As it does on any other rebalance, to end its program."""

    class Closing(RebalanceListener):
        def on_revoked(self, partitions: Partitions) -> None:
            told.append(list(partitions))
            consumer.close()

    told: list[list[TopicPartition]] = []
    partition = TopicPartition("t", 0)
    consumer = Consumer("127.0.0.1:1", group_id="g", enable_auto_commit=False)
    consumer.subscribe(["t"], Closing())
    consumer._core.partitions[partition] = Partition(partition)
    consumer.close()
    assert told == [[partition]]
    consumer.close()
