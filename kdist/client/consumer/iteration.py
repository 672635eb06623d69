"""Iteration over records without work per record: the position is computed only when needed.

A run is a list of records taken from one partition at once. They are yielded by a plain list
iterator, whose length hint says how many are left; from that commits learn which were yielded. A
loop that is slow, or a poll of another task, has the run held, so that the next record is asked for
as by a poll: then it goes on with the rest, unless that has been revoked.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from operator import length_hint
from typing import NamedTuple

from kdist.client.consumer.batch import ConsumedRecord
from kdist.client.consumer.partition import Partition
from kdist.model import TopicPartition


class _Rest(NamedTuple):
    """What is left of a run: to yield next, and held behind that. Replaced as a whole."""

    left: Iterator[ConsumedRecord]
    held: list[ConsumedRecord]


class Iteration:
    """The run that is being yielded. Owner: the loop, and between its calls the consuming thread.

    That thread only yields, goes on and begins: all that need not know how many records are left
    while the loop may `hold` them.
    """

    def __init__(self) -> None:
        self._partition: Partition | None = None
        self._records: list[ConsumedRecord] = []
        self._rest = _Rest(iter(()), [])
        self._end = 0
        self._position = 0  # as last set here; the loop may have set another since

    @property
    def is_open(self) -> bool:
        """Whether there is a run, of which some records may be left."""
        return self._partition is not None

    @property
    def left(self) -> Iterator[ConsumedRecord]:
        """Yields records of the run, until it ends or is held."""
        return self._rest.left

    @property
    def is_held(self) -> bool:
        """Whether the rest of the run is held."""
        return bool(self._rest.held)

    @property
    def _left_count(self) -> int:
        return length_hint(self._rest.left) + len(self._rest.held)

    def begin(self, partition: Partition, records: list[ConsumedRecord]) -> None:
        """Start yielding `records`, which were just taken from the partition."""
        assert partition.position is not None
        partition.is_lent = True
        self._partition, self._records = partition, records
        self._end = self._position = partition.position
        self._rest = _Rest(iter(records), [])

    def hold(self) -> None:
        """End `left` here, whoever is yielding from it.

        One call in C, so the consuming thread finds each record in `left` or in what is held.
        """
        left, held = self._rest
        held.extend(left)

    def take_back(self, record: ConsumedRecord) -> None:
        """Yield this record again, if it is the one last yielded: it reached nobody."""
        self.hold()
        count = len(self._records) - self._left_count
        if count and self._records[count - 1] is record:
            self._rest.held.insert(0, record)

    def pause(self) -> None:
        """Hold and settle; end a run of which all was yielded: no reset waits for that any more."""
        self.hold()
        if self.is_held:
            self.settle()
        else:
            self.drop()

    def go_on(self) -> Partition | None:
        """Have `left` yield what was held, and return whose it is.

        None if nothing is left, or it has been revoked.
        """
        partition = self._partition
        if length_hint(self.left):
            return partition  # another loop has gone on
        if self.is_held and partition is not None and not partition.is_revoked:
            self._rest = _Rest(iter(self._rest.held), [])
            return partition
        self.drop()
        return None

    def settle(self) -> None:
        """Set the partition's position to that of the next record to yield."""
        partition, left = self._partition, self._left_count
        if partition is not None and partition.position == self._position:
            self._position = self._records[-left].offset if left else self._end
            partition.position = self._position

    def last_given(self) -> dict[Partition, int]:
        """Where the records begin that the application may not have finished, by partition.

        That is the last record yielded. Empty if the partition's position has changed since.
        """
        self.settle()
        partition, count = self._partition, len(self._records) - self._left_count
        if partition is None or partition.position != self._position:
            return {}
        return {partition: self._records[count - 1].offset if count else self._position}

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
        self.hold()  # exhausted, as a loop may hold it
        rest, self._rest = self._rest.held, _Rest(iter(()), [])
        partition.is_lent = False
        self._partition, self._records = None, []
        return (partition, rest) if rest and partition.position == rest[0].offset else None
