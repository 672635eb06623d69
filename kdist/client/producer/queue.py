"""One partition's batches in order, and their sequence numbers for idempotence.

A batch gets its sequence number when it is first sent and keeps it on every retry, so a broker
writes it once. After an error that leaves a gap in the sequence the queue is *stale*: it waits
until nothing is in flight, then starts again at 0 under a newer epoch (KIP-360).

After a batch has to be retried, the queue is *recovering*: only one batch at a time is in flight,
so that the batches behind it keep their order, even without idempotence.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from typing import NamedTuple

from kdist.client.producer.batch import Batch
from kdist.model import NO_PRODUCER_EPOCH, NO_PRODUCER_ID, NO_SEQUENCE

SEQUENCE_MASK = 0x7FFF_FFFF


class Identity(NamedTuple):
    """The producer id and epoch by which brokers know a producer."""

    id: int
    epoch: int


NOBODY = Identity(NO_PRODUCER_ID, NO_PRODUCER_EPOCH)


class PartitionQueue:
    """Owner: the loop, except for `open` and `take_number`, which the accumulator's lock guards."""

    __slots__ = (
        "_flown_to",
        "_next_sequence",
        "check_waiter",
        "flying",
        "hurry",
        "identity",
        "is_recovering",
        "is_stale",
        "last_number",
        "leader",
        "open",
        "partition",
        "prefix",
        "retry_at_s",
        "topic",
        "waiting",
    )

    def __init__(
        self,
        topic: str,
        partition: int,
        leader: int,
        hurry: Callable[[Batch], None],
        check_waiter: Callable[[], None] = lambda: None,
    ) -> None:
        self.topic = topic
        self.partition = partition
        self.leader = leader
        self.hurry = hurry
        self.check_waiter = check_waiter
        self.open: Batch | None = None
        self.waiting: deque[Batch] = deque()  # sealed, in order
        self.flying: list[Batch] = []  # in flight, in order
        self.retry_at_s = 0.0
        self.is_recovering = False
        self.is_stale = False
        self.identity = NOBODY
        self.prefix: tuple[int, bytes] = (-1, b"")  # a request's version, and its encoded start
        self.last_number = 0
        self._next_sequence = 0
        self._flown_to = leader  # the leader that the batches in flight were sent to

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"

    def take_number(self) -> int:
        """The next batch's number."""
        self.last_number += 1
        return self.last_number

    def batches(self) -> Iterable[Batch]:
        """All batches that are not done. From any thread, while the loop goes on."""
        yield from (*self.flying, *self.waiting)
        if self.open is not None:
            yield self.open

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to send and nothing in flight."""
        return self.open is None and not self.waiting and not self.flying

    @property
    def may_send(self) -> bool:
        """Whether another batch can be sent now without breaking order or numbering."""
        if not self.flying:
            return True
        # A new leader would write this batch before those in flight to the old one.
        return not (self.is_recovering or self.is_stale) and self.leader == self._flown_to

    @property
    def has_sent(self) -> bool:
        """Whether a batch that is not done was sent at least once, and so may have been written."""
        return bool(self.flying) or any(batch.attempts for batch in self.waiting)

    # Sending

    def take_off(self, batch: Batch) -> None:
        """Note that the batch is now in flight; the caller has taken it from `waiting`."""
        self.flying.append(batch)
        self._flown_to = self.leader

    def number(self, batch: Batch) -> bool:
        """Give the batch its sequence number; False if it already has one."""
        if batch.sequence != NO_SEQUENCE:
            return False
        batch.sequence = self._next_sequence
        self._next_sequence = self._next_sequence + batch.count & SEQUENCE_MASK
        return True

    def begin_anew(self, identity: Identity) -> None:
        """Number the waiting batches from 0 under a new identity. Nothing may be in flight."""
        assert not self.flying, "a batch in flight already has its sequence number"
        self.identity = identity
        self.is_stale = False
        self._next_sequence = 0
        for batch in self.waiting:
            batch.sequence = NO_SEQUENCE

    # Answers

    def land(self, batch: Batch) -> None:
        """Note that the batch is no longer in flight."""
        self.flying.remove(batch)
        if not self.flying and not self._has_returned():
            self.is_recovering = False

    def _has_returned(self) -> bool:
        return bool(self.waiting) and self.waiting[0].attempts > 0

    def is_first(self, batch: Batch) -> bool:
        """Whether every earlier batch is done."""
        return not any(each.number < batch.number for each in (*self.flying, *_first(self.waiting)))

    def put_back(self, batch: Batch) -> None:
        """Queue the batch to be sent again, in its place."""
        place = 0
        while place < len(self.waiting) and self.waiting[place].number < batch.number:
            place += 1
        self.waiting.insert(place, batch)
        self.is_recovering = True

    def put_back_parts(self, parts: Iterable[Batch]) -> None:
        """Queue the parts of a split batch, which share its number, in its place."""
        for part in reversed(list(parts)):
            self.put_back(part)


def _first(batches: deque[Batch]) -> Iterable[Batch]:
    return (batches[0],) if batches else ()
