"""Records one after the other, at no cost for each: the position is computed only when needed.

A run is what one partition gave at once. Its records go through a plain list iterator, whose length
hint tells how many are left: so commits and positions know which were given.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from operator import length_hint

from kdist.client.consumer.batch import ConsumedRecord
from kdist.client.consumer.partition import Partition


class Iteration:
    """The run that is being given. Owner: who takes from the shelf."""

    def __init__(self) -> None:
        self._partition: Partition | None = None
        self._records: list[ConsumedRecord] = []
        self._left: Iterator[ConsumedRecord] = iter(())
        self._end = 0

    def begin(
        self, partition: Partition, records: list[ConsumedRecord]
    ) -> Iterator[ConsumedRecord]:
        """Give `records`, which the partition has just given."""
        assert partition.position is not None
        self._partition, self._records, self._end = partition, records, partition.position
        self._left = iter(records)
        return self._left

    def settle(self) -> None:
        """Have the partition's position be that of the next record to give."""
        partition, left = self._partition, length_hint(self._left)
        if partition is not None and partition.position is not None:
            partition.position = self._records[-left].offset if left else self._end

    def finish(self) -> None:
        """The run was given to its end."""
        self.settle()
        self._partition, self._records = None, []

    def rest(self, count: int) -> list[ConsumedRecord]:
        """Up to `count` of what was not given yet, which now are."""
        rest = list(islice(self._left, count))
        self.settle()
        return rest

    def drop(self, is_dropped: Callable[[Partition], bool] = lambda _: True) -> None:
        """Give no more of the run, if it is of such a partition."""
        if self._partition is not None and is_dropped(self._partition):
            list(self._left)
            self._partition, self._records = None, []
