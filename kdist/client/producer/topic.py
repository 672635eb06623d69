"""What the producer knows of one topic: a queue for each partition, and which one is sticky now."""

from __future__ import annotations

import random
import uuid

from kdist.client.producer.batch import PartitionQueue
from kdist.errors import Error
from kdist.model import NO_LEADER, ZERO_UUID


class Topic:
    """One topic. Owner: the loop; others read it under the accumulator's lock.

    `queues` are those of its partitions. `every` has also those of partitions that it no longer
    has, as it was recreated with fewer: batches may still be in flight there, and if the partition
    comes back, its queue goes on with its sequence numbers.
    """

    __slots__ = (
        "_batches_seen",
        "error",
        "every",
        "id",
        "missing_since_s",
        "name",
        "queues",
        "sticky",
        "turn",
    )

    def __init__(self, name: str) -> None:
        self.name = name
        self.id: uuid.UUID = ZERO_UUID
        self.every: list[PartitionQueue] = []
        self.queues: list[PartitionQueue] = []
        self.sticky: PartitionQueue | None = None
        self.turn = 0  # the round-robin counter
        self.error: Error | None = None  # from the latest metadata
        self.missing_since_s: float | None = None  # by all metadata since; None if it exists
        self._batches_seen = 0

    @property
    def is_busy(self) -> bool:
        return not all(queue.is_empty for queue in self.every)

    @property
    def is_stranded(self) -> bool:
        """Whether there are records for a partition that has no leader."""
        return any(queue.leader == NO_LEADER and not queue.is_empty for queue in self.every)

    def was_used(self) -> bool:
        """Whether batches were opened since the last call of this, or are not done yet."""
        before, self._batches_seen = (
            self._batches_seen,
            sum(queue.last_number for queue in self.every),
        )
        return self._batches_seen != before or self.is_busy

    def stick(self, rng: random.Random) -> PartitionQueue:
        """Switch to another sticky partition, one with a leader if there is any (KIP-480)."""
        led = [queue for queue in self.queues if queue.leader != NO_LEADER] or self.queues
        if len(led) > 1 and self.sticky in led:
            led = [queue for queue in led if queue is not self.sticky]
        self.sticky = led[0] if len(led) == 1 else rng.choice(led)
        return self.sticky
