"""What the producer knows of one topic: a queue for each partition, and which one is sticky now."""

from __future__ import annotations

import random
import uuid

from kdist.client.producer.batch import PartitionQueue
from kdist.errors import Error
from kdist.model import NO_LEADER, ZERO_UUID

LEADERLESS = frozenset((NO_LEADER,))


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
        "used_s",
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
        self.used_s: float | None = None  # when `was_used` last saw that it was
        self._batches_seen = 0

    @property
    def is_busy(self) -> bool:
        return not all(queue.is_empty for queue in self.every)

    @property
    def is_stranded(self) -> bool:
        """Whether there are records for a partition that has no leader."""
        return any(queue.leader == NO_LEADER and not queue.is_empty for queue in self.every)

    def was_used(self, now_s: float) -> bool:
        """Whether batches were opened since the last call of this, or are not done yet."""
        before, self._batches_seen = (
            self._batches_seen,
            sum(queue.last_number for queue in self.every),
        )
        was_used = self._batches_seen != before or self.is_busy
        if was_used or self.used_s is None:
            self.used_s = now_s
        return was_used

    # For records without a key. `shut` are the brokers that cannot be sent to now, and NO_LEADER.

    def stick(self, rng: random.Random, shut: frozenset[int]) -> PartitionQueue:
        """Switch to another sticky partition (KIP-480).

        One that can be sent to, or at least has a leader, if there is any; and the more likely, the
        fewer batches wait for it (KIP-794): else a slow broker would get the most records.
        """
        queues = self._ready(shut) or self._ready(LEADERLESS) or self.queues
        if len(queues) > 1 and self.sticky in queues:
            queues = [queue for queue in queues if queue is not self.sticky]
        lengths = [len(queue.waiting) + len(queue.in_flight) for queue in queues]
        longest = max(lengths)
        if longest == min(lengths):
            self.sticky = queues[0] if len(queues) == 1 else rng.choice(queues)
        else:
            (self.sticky,) = rng.choices(queues, [longest + 1 - length for length in lengths])
        return self.sticky

    def can_leave(self, shut: frozenset[int]) -> bool:
        """Whether another partition than the sticky one can be sent to."""
        return any(queue is not self.sticky for queue in self._ready(shut))

    def _ready(self, shut: frozenset[int]) -> list[PartitionQueue]:
        return [
            queue for queue in self.queues if queue.leader not in shut and not queue.is_recovering
        ]

    def in_turn(self, shut: frozenset[int]) -> PartitionQueue:
        """The next partition, but for those that cannot be sent to, or have no leader."""
        for barred in (shut, LEADERLESS):
            for _ in self.queues:
                self.turn += 1
                queue = self.queues[self.turn % len(self.queues)]
                if queue.leader not in barred:
                    return queue
        self.turn += 1
        return self.queues[self.turn % len(self.queues)]
