"""What a compacted partition must still have, record by record (S24, S25).

Its batches differ from replica to replica, as each cleans its own log. So a copy is compared with
a table of what was ever committed: records have kept their offsets, only what is committed is
cleaned, the last of each key is there, and one that was deleted has not come back. A producer's
last batch stays, emptied perhaps, for the sake of its sequence; and the first of a leader epoch,
for the sake of who copies the log.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from kdist.records.batch import BatchHeader
from kdist.records.build import read_records

Pair = tuple[bytes | None, bytes | None]


class Kept(NamedTuple):
    """A batch of a compacted log, with the records that it still has, by offset."""

    base: int
    end: int
    producer: int
    epoch: int
    records: dict[int, Pair]


def read_kept(data: bytearray, position: int, header: BatchHeader) -> Kept:
    """The batch at a position of a segment."""
    records = {
        each.offset: (each.key and bytes(each.key), each.value)
        for each in read_records(data, position, header)
    }
    epoch = header.partition_leader_epoch
    return Kept(header.base_offset, header.next_offset, header.producer_id, epoch, records)


class Row(NamedTuple):
    """A record that was committed, at a time."""

    offset: int
    value: bytes | None
    committed_s: float


class Table:
    """Of one partition. Owner: `Committed`."""

    def __init__(self, delete_retention_s: float) -> None:
        self._delete_retention_s = delete_retention_s
        self.pairs: dict[int, Pair] = {}  # all that was committed, by offset
        self.last: dict[bytes | None, Row] = {}  # of each key
        self._last_of: dict[int, int] = {}  # base offset of each producer's last batch
        self._batches: list[tuple[Kept, float]] = []  # with the times when they were committed
        self._first_of: dict[int, int] = {}  # of each leader epoch's first, but for epoch 0
        self.end = 0
        # A replica has lost the deletion of a key, or was not known to be away: it may be behind
        # for longer than deletions stay, and bring the key back.
        self.may_come_back = False
        self.expired: set[int] = set()  # offsets of the tombstones that are gone somewhere

    def commit(self, batch: Kept, now_s: float) -> str:
        """Take in the next batch that is committed; what is wrong with it."""
        fault = self._gap(batch, self.end)
        self._batches.append((batch, now_s))
        self.pairs |= batch.records
        for offset, (key, value) in batch.records.items():
            self.last[key] = Row(offset, value, now_s)
        if batch.producer >= 0:
            self._last_of[batch.producer] = batch.base
        if batch.epoch > max(self._first_of, default=0):
            self._first_of[batch.epoch] = batch.base
        self.end = batch.end
        return fault

    def cut(self, end: int) -> None:
        """What was committed from there on is lost: deletions with it, perhaps."""
        kept = [each for each in self._batches if each[0].end <= end]
        self.pairs, self.last, self._last_of, self._first_of, self._batches = {}, {}, {}, {}, []
        for batch, committed_s in kept:
            self.commit(batch, committed_s)
        self.end = min(self.end, end)
        self.may_come_back = True
        self.expired = {each for each in self.expired if each < end}

    def _gap(self, batch: Kept, expected: int) -> str:
        is_whole = batch.base == expected and len(batch.records) == batch.end - batch.base
        return "" if is_whole else f"has {batch} where {expected} follows, and is not committed"

    def needs(self, start_offset: int, end_offset: int) -> bool:
        """Whether a key's last value lies in this range."""
        rows = self.last.values()
        return any(
            start_offset <= each.offset < end_offset and each.value is not None for each in rows
        )

    def fault(self, batches: Iterable[Kept], start_offset: int, now_s: float) -> str:
        """What is wrong with a log that has all that is committed, from its start; "" if nothing.

        `now_s` is so late that a tombstone which has expired by then may be gone.
        """
        newest: dict[bytes | None, int] = {}
        producers: dict[int, int] = {}
        bases: set[int] = set()
        expected = self.end
        for batch in batches:
            producers[batch.producer] = batch.base
            bases.add(batch.base)
            if batch.base >= self.end:
                if fault := self._gap(batch, expected):
                    return fault
                expected = batch.end
                continue
            if batch.end > self.end:
                return ""  # it diverges here, and is yet to be cut off
            for offset, pair in batch.records.items():
                if self.pairs.get(offset) != pair:
                    return f"has {pair} at {offset}, {self.pairs.get(offset)} was committed"
                if offset >= start_offset:
                    newest[pair[0]] = offset
        missing = self._missing(producers, bases, start_offset)
        return missing or self._fault_of_keys(newest, start_offset, now_s)

    def _missing(self, producers: dict[int, int], bases: set[int], start_offset: int) -> str:
        """Which batch is not there that stays whatever its records: "" if none."""
        for producer, base in self._last_of.items():
            if base >= start_offset and producers.get(producer, -1) < base:
                return f"lacks the last batch of producer {producer}, at {base}"
        for epoch, base in self._first_of.items():
            if base >= start_offset and base not in bases:
                return f"lacks the first batch of epoch {epoch}, at {base}"
        return ""

    def _fault_of_keys(
        self, newest: dict[bytes | None, int], start_offset: int, now_s: float
    ) -> str:
        for key, row in self.last.items():
            found = newest.get(key)
            if found == row.offset or row.offset < start_offset:
                continue
            if row.value is not None:
                return f"has {key!r} at {found}, the last is {row}"
            if now_s < row.committed_s + self._delete_retention_s:
                return f"has no tombstone of {key!r}, {row}, already at {now_s:.3f}"
            if found is not None and not self.may_come_back:
                return f"has {key!r} again at {found}, deleted at {row.offset}"
            self.expired.add(row.offset)
        return ""
