"""Iteration over records without work per record: the position is computed only when needed.

A run is a list of records taken from one partition at once. They are yielded by a plain list
iterator, whose length hint says how many are left; from that commits learn which were yielded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from operator import length_hint

from kdist.client.consumer.batch import ConsumedRecord
from kdist.client.consumer.partition import Partition


class Iteration:
    """The run that is being yielded. Owner: the thread that takes from the shelf."""

    def __init__(self) -> None:
        self._partition: Partition | None = None
        self._records: list[ConsumedRecord] = []
        self.left: Iterator[ConsumedRecord] = iter(())  # of the run
        self._end = 0
        self._position = 0  # as last set here; the loop may have set another since

    @property
    def is_given(self) -> bool:
        """Whether the whole run has been yielded."""
        return not length_hint(self.left)

    def begin(self, partition: Partition, records: list[ConsumedRecord]) -> None:
        """Start yielding `records`, which were just taken from the partition."""
        assert partition.position is not None
        self._partition, self._records = partition, records
        self._end = self._position = partition.position
        self.left = iter(records)

    def settle(self) -> None:
        """Set the partition's position to that of the next record to yield."""
        partition, left = self._partition, length_hint(self.left)
        if partition is not None and partition.position == self._position:
            self._position = self._records[-left].offset if left else self._end
            partition.position = self._position

    def rest(self, count: int) -> list[ConsumedRecord]:
        """Take up to `count` of the run's remaining records."""
        rest = list(islice(self.left, count))
        self.settle()
        return rest

    def drop(self, is_dropped: Callable[[Partition], bool] = lambda _: True) -> None:
        """Settle, and discard the rest of the run if `is_dropped` says so of its partition."""
        self.settle()
        if self._partition is not None and is_dropped(self._partition):
            list(self.left)
            self._partition, self._records = None, []
