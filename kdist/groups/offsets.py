"""A group's committed offsets: a position per partition, and the commits still under way (pure).

A commit counts once its record is in the log: `begin` before the append, then `finish` or `fail`.
So does a deletion. Several of one partition may be under way; the last in the log wins, in whatever
order they finish. Transactional commits (KIP-98) will be a second kind under way, held until the
transaction's marker; they are not implemented yet.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from kdist.groups.totals import Totals
from kdist.model import NO_EPOCH, NO_OFFSET, NO_TIMESTAMP, TopicPartition


class CommittedOffset(NamedTuple):
    """A position: the offset of the next record to read.

    `expire_timestamp_ms` is set where a client of versions 2 to 4 asked for its own retention.
    """

    offset: int
    leader_epoch: int = NO_EPOCH
    metadata: str = ""
    commit_timestamp_ms: int = NO_TIMESTAMP
    expire_timestamp_ms: int = NO_TIMESTAMP


NOTHING_COMMITTED = CommittedOffset(NO_OFFSET)

Commits = dict[TopicPartition, CommittedOffset]


class _Kept(NamedTuple):
    committed: CommittedOffset
    order: int  # the number of its append, counted per group


class GroupOffsets:
    """Owned by its group."""

    def __init__(self, totals: Totals | None = None) -> None:
        """`totals` are those of the group's partition."""
        self._totals = totals or Totals()
        self._kept: dict[TopicPartition, _Kept] = {}
        self._under_way: dict[TopicPartition, set[int]] = {}
        self._appends = 0

    def __len__(self) -> int:
        return len(self._kept)

    def __bool__(self) -> bool:
        return bool(self._kept or self._under_way)

    def __iter__(self) -> Iterator[TopicPartition]:
        return iter(self._kept)

    def get(self, partition: TopicPartition) -> CommittedOffset:
        """The position; its offset is -1 where there is none."""
        kept = self._kept.get(partition)
        return NOTHING_COMMITTED if kept is None else kept.committed

    def is_under_way(self, partition: TopicPartition) -> bool:
        """Whether a commit of the partition is not in the log yet."""
        return partition in self._under_way

    def load(self, partition: TopicPartition, committed: CommittedOffset) -> None:
        """Set a position loaded from the log."""
        self._keep(partition, _Kept(committed, 0))

    def begin(self, commits: Iterable[TopicPartition]) -> int:
        """Call before the append of a commit or of tombstones. Returns its number, for `finish`,
        `finish_deletion` or `fail`."""
        self._appends += 1
        for partition in commits:
            self._under_way.setdefault(partition, set()).add(self._appends)
        return self._appends

    def finish(self, number: int, commits: Commits) -> None:
        """The commit is in the log. Partitions forgotten in the meantime stay forgotten."""
        for partition, committed in commits.items():
            if self._end(number, partition):
                kept = self._kept.get(partition)
                if kept is None or kept.order < number:
                    self._keep(partition, _Kept(committed, number))

    def fail(self, number: int, commits: Iterable[TopicPartition]) -> None:
        """It did not get into the log: the earlier positions remain."""
        for partition in commits:
            self._end(number, partition)

    def finish_deletion(self, number: int, partitions: Iterable[TopicPartition]) -> None:
        """The tombstones are in the log: of what was begun before them nothing is left."""
        for partition in partitions:
            kept = self._kept.get(partition)
            if kept is not None and kept.order < number:
                del self._kept[partition]
                self._totals.offsets -= 1
            for each in list(self._under_way.get(partition, ())):
                if each <= number:
                    self._end(each, partition)

    def forget(self, partitions: Iterable[TopicPartition]) -> list[TopicPartition]:
        """Drop positions and commits under way; returns those that need a tombstone."""
        found = self.known(partitions)
        for partition in found:
            self._totals.offsets -= self._kept.pop(partition, None) is not None
            self._under_way.pop(partition, None)
        return found

    def all(self) -> list[TopicPartition]:
        """The partitions that have a position, or a commit under way."""
        return list(self._kept | self._under_way) if self._under_way else list(self._kept)

    def known(self, among: Iterable[TopicPartition]) -> list[TopicPartition]:
        """Those that have a position, or a commit under way."""
        return [each for each in among if each in self._kept or each in self._under_way]

    def find(
        self,
        condition: Callable[[TopicPartition, CommittedOffset], bool],
        among: Iterable[TopicPartition],
    ) -> list[TopicPartition]:
        """Those that have a position and no commit under way, and meet the condition."""
        kept = self._kept
        return [
            each
            for each in among
            if each in kept
            and each not in self._under_way
            and condition(each, kept[each].committed)
        ]

    def _keep(self, partition: TopicPartition, kept: _Kept) -> None:
        self._totals.offsets += partition not in self._kept
        self._kept[partition] = kept

    def _end(self, number: int, partition: TopicPartition) -> bool:
        """Mark the commit as no longer under way; False if it was forgotten before."""
        numbers = self._under_way.get(partition)
        if numbers is None or number not in numbers:
            return False
        numbers.remove(number)
        if not numbers:
            del self._under_way[partition]
        return True
