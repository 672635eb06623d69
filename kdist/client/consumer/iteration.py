"""Iteration over records without work per record: the position is computed only when needed.

A run is a list of records taken from one partition at once. They are yielded by a plain list
iterator, whose length hint says how many are left; from that commits learn which were yielded.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from itertools import islice
from operator import length_hint

from kdist.client.consumer.batch import ConsumedRecord
from kdist.client.consumer.partition import Partition
from kdist.model import TopicPartition


class Iteration:
    """The run that is being yielded. Owner: the thread that takes completed fetches."""

    def __init__(self) -> None:
        self._partition: Partition | None = None
        self._records: list[ConsumedRecord] = []
        self.left: Iterator[ConsumedRecord] = iter(())  # of the run
        self._end = 0
        self._position = 0  # as last set here; the loop may have set another since
        self._rest = -1, 0  # of the last `rest`: how many it left, and its first record's offset

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
        self._rest = -1, 0

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
        if rest:
            self._rest = length_hint(self.left), rest[0].offset
        else:
            self._partition, self._records = None, []
        return rest

    def last_given(self) -> dict[Partition, int]:
        """Where the records begin that the application may not have finished, by partition.

        That is the last record yielded, or the first of the last `rest`. Empty if the partition's
        position has changed since.
        """
        self.settle()
        partition, left = self._partition, length_hint(self.left)
        if partition is None or partition.position != self._position:
            return {}
        count = len(self._records) - left
        if not count:
            return {partition: self._position}
        was_left, first = self._rest
        return {partition: first if left == was_left else self._records[count - 1].offset}

    def drop(
        self, partitions: Collection[TopicPartition] = ()
    ) -> tuple[Partition, list[ConsumedRecord]] | None:
        """Settle, and discard the rest of the run if it is of these partitions; () means any.

        Returns its partition and the discarded records, if the partition goes on with those.
        """
        self.settle()
        partition = self._partition
        if partition is None or (partitions and partition.key not in partitions):
            return None
        rest = list(self.left)  # exhausted, as a loop may hold it
        self._partition, self._records = None, []
        return (partition, rest) if rest and partition.position == rest[0].offset else None
