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
        self.left: Iterator[ConsumedRecord] = iter(())  # of the run
        self._end = 0
        self._position = 0  # as it was set here: the loop may have looked up another since

    @property
    def is_given(self) -> bool:
        """Whether there is nothing left of the run."""
        return not length_hint(self.left)

    def begin(self, partition: Partition, records: list[ConsumedRecord]) -> None:
        """Give `records`, which the partition has just given."""
        assert partition.position is not None
        self._partition, self._records = partition, records
        self._end = self._position = partition.position
        self.left = iter(records)

    def settle(self) -> None:
        """Have the partition's position be that of the next record to give."""
        partition, left = self._partition, length_hint(self.left)
        if partition is not None and partition.position == self._position:
            self._position = self._records[-left].offset if left else self._end
            partition.position = self._position

    def rest(self, count: int) -> list[ConsumedRecord]:
        """Up to `count` of what was not given yet, which now are."""
        rest = list(islice(self.left, count))
        self.settle()
        return rest

    def drop(self, is_dropped: Callable[[Partition], bool] = lambda _: True) -> None:
        """Settle, and give no more of the run, if it is of such a partition."""
        self.settle()
        if self._partition is not None and is_dropped(self._partition):
            list(self.left)
            self._partition, self._records = None, []
