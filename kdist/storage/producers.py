"""Idempotent producers' states in a partition, which reveal retries and out-of-order batches.

Per producer id: its epoch and its last five batches. A retry is answered like the first append; a
batch that leaves a gap is refused; an older epoch is fenced. `producer_snapshot.py` stores this on
disk, and it is rebuilt from a snapshot and the batches after it. Of transactions it keeps only the
first offset, for the last stable offset and for the snapshots.

The rules are those of Kafka 2.5 to 3.9 (KIP-98, KIP-360): a producer the partition does not know
may start at any sequence, as its older records may have been removed; so UNKNOWN_PRODUCER_ID,
which older brokers answered then, never comes from here.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import NamedTuple

from kdist.errors import ApiError, CorruptRecords, Error
from kdist.model import NO_OFFSET, NO_PRODUCER_EPOCH, NO_SEQUENCE, OffsetRange
from kdist.records.batch import BatchHeader
from kdist.records.build import read_records
from kdist.records.control import read_marker
from kdist.wire.varint import Buffer

logger = logging.getLogger(__name__)

BATCHES_KEPT = 5  # as many as a producer may have in flight
SEQUENCE_MAX = 2**31 - 1
NO_COORDINATOR_EPOCH = -1


class Batch(NamedTuple):
    """One appended batch of a producer, with what identifies its retry."""

    last_sequence: int
    last_offset: int
    offset_delta: int  # of the last record to the first, in offsets and in sequences
    timestamp: int  # the batch's largest, ms

    @property
    def first_sequence(self) -> int:
        """The sequence of its first record; a batch may run over the wrap."""
        return (self.last_sequence - self.offset_delta) & SEQUENCE_MAX

    @property
    def first_offset(self) -> int:
        return self.last_offset - self.offset_delta


class Producer(NamedTuple):
    """The state of one producer id. Immutable, so a kept one can be given to `restore`."""

    epoch: int
    batches: tuple[Batch, ...]  # of this epoch, oldest first, at most five
    last_timestamp: int  # of the newest batch or marker, ms; expiry counts from it
    coordinator_epoch: int = NO_COORDINATOR_EPOCH
    transaction_start: int = NO_OFFSET  # first offset of its open transaction

    @property
    def last_sequence(self) -> int:
        """The newest sequence of this epoch, -1 if it has none yet."""
        return self.batches[-1].last_sequence if self.batches else NO_SEQUENCE


class Duplicate(NamedTuple):
    """A batch that was appended before: what the answer to its retry contains."""

    first_offset: int
    last_offset: int
    timestamp: int


class ProducerStates:
    """The producers of one partition, owned by its log.

    A leader calls `check` when it prepares an append, `append` when that is written or deferred,
    and `restore` if a deferred one fails; followers and recovery `replay` what the leader has
    checked. Batches without a producer id may be passed to `append`.
    """

    __slots__ = ("_open", "_producers")

    def __init__(self) -> None:
        self._producers: dict[int, Producer] = {}
        # Producer ids by the first offset of their open transactions. Invariant: in order, as
        # offsets only grow and `restore` sorts; so the oldest is the first.
        self._open: dict[int, int] = {}

    def __len__(self) -> int:
        return len(self._producers)

    def producer(self, producer_id: int) -> Producer | None:
        """The state of a producer id, None if it is not known."""
        return self._producers.get(producer_id)

    def copy(self) -> ProducerStates:
        """The states as they are now: 2 ms for 100,000 producers, since each is immutable."""
        states = ProducerStates()
        states._producers, states._open = dict(self._producers), dict(self._open)
        return states

    @property
    def producers(self) -> dict[int, Producer]:
        """A copy of all states by producer id."""
        return dict(self._producers)

    @property
    def first_unstable_offset(self) -> int | None:
        """Where the oldest open transaction began, None if there is none."""
        return next(iter(self._open), None)

    def check(self, header: BatchHeader) -> Duplicate | None:
        """Check that a client's batch may be appended; return the earlier one for a retry (pure).

        Raises `ApiError`: INVALID_PRODUCER_EPOCH for an epoch that was replaced or cannot be,
        OUT_OF_ORDER_SEQUENCE_NUMBER for a gap or for a retry of more than five batches ago,
        INVALID_TXN_STATE for a plain batch inside the producer's transaction.
        """
        producer = self._producers.get(header.producer_id)
        if producer is None:
            if header.producer_epoch < NO_PRODUCER_EPOCH:
                raise _replaced(header, NO_PRODUCER_EPOCH)
            return None
        sequence = header.base_sequence
        batches = producer.batches
        # The common case first: the next batch of the same epoch. No retry looks like this.
        if not (
            batches
            and header.producer_epoch == producer.epoch
            and sequence == batches[-1].last_sequence + 1
        ):
            if duplicate := _find_duplicate(producer, header):
                return duplicate
            _check_order(producer, header)
        if producer.transaction_start != NO_OFFSET and not header.is_transactional:
            raise ApiError(
                Error.INVALID_TXN_STATE,
                f"producer {header.producer_id} sent a plain batch within its transaction",
            )
        return None

    def append(self, header: BatchHeader, base_offset: int, timestamp: int | None = None) -> None:
        """Note an appended batch of data that got `base_offset`.

        `timestamp` is the log append time, where that replaces the batch's own. Raises nothing.
        """
        producer_id = header.producer_id
        if producer_id < 0:
            return
        assert not header.is_control
        delta = header.last_offset_delta
        if timestamp is None:
            timestamp = header.max_timestamp
        batch = Batch(header.last_sequence, base_offset + delta, delta, timestamp)
        producer = self._producers.get(producer_id)
        epoch = header.producer_epoch
        if producer is None:
            producer = Producer(epoch, (batch,), timestamp)
        else:
            batches = (
                (*producer.batches[1 - BATCHES_KEPT :], batch)
                if epoch == producer.epoch
                else (batch,)
            )
            producer = Producer(
                epoch, batches, timestamp, producer.coordinator_epoch, producer.transaction_start
            )
        if header.is_transactional and producer.transaction_start == NO_OFFSET:
            producer = producer._replace(transaction_start=base_offset)
            self._open[base_offset] = producer_id
        self._producers[producer_id] = producer

    def end_transaction(
        self, header: BatchHeader, offset: int, coordinator_epoch: int
    ) -> OffsetRange | None:
        """Note a commit or abort marker at `offset`; return the offsets of its transaction.

        None if it ends none. A marker of a new epoch (KIP-360's fencing) drops the old epoch's
        batches.
        """
        producer_id, epoch = header.producer_id, header.producer_epoch
        producer = self._producers.get(producer_id)
        start = NO_OFFSET if producer is None else producer.transaction_start
        batches = producer.batches if producer and producer.epoch == epoch else ()
        self._open.pop(start, None)
        self._producers[producer_id] = Producer(
            epoch, batches, header.max_timestamp, coordinator_epoch
        )
        return None if start == NO_OFFSET else OffsetRange(start, offset + 1)

    def restore(self, producer_id: int, producer: Producer | None) -> None:
        """Restore a state that `producer` returned (None: forget it), as after a failed append."""
        current = self._producers.pop(producer_id, None)
        if current is not None:
            self._open.pop(current.transaction_start, None)
        if producer is None:
            return
        self._producers[producer_id] = producer
        start = producer.transaction_start
        if start != NO_OFFSET:
            is_in_order = start > next(reversed(self._open), NO_OFFSET)
            self._open[start] = producer_id
            if not is_in_order:
                self._open = dict(sorted(self._open.items()))

    def expire(
        self, now_ms: int, expiration_ms: int, producer_ids: Iterable[int] | None = None
    ) -> int:
        """Forget producers, of these or of all, idle for `producer.id.expiration.ms`; how many.

        Idle counts from the newest batch's timestamp, as in Kafka. An open transaction keeps its
        producer.
        """
        producers = self._producers
        expired = [
            producer_id
            for producer_id in (producers if producer_ids is None else producer_ids)
            if (producer := producers.get(producer_id)) is not None
            and producer.transaction_start == NO_OFFSET
            and now_ms - producer.last_timestamp >= expiration_ms
        ]
        for producer_id in expired:
            del producers[producer_id]
        return len(expired)


def replay(states: ProducerStates, header: BatchHeader, batch: Buffer, path: str) -> None:
    """Note a batch of the log with a producer id: data, or a marker, whose bytes are `batch`.

    A marker that cannot be read is logged with the file's `path`: the leader has taken it too.
    """
    if not header.is_control:
        states.append(header, header.base_offset)
        return
    try:
        records = read_records(batch, 0, header)
        if records:  # compaction may have removed the marker and kept its offset
            marker = read_marker(records[0].key, records[0].value)
            states.end_transaction(header, header.last_offset, marker.coordinator_epoch)
    except CorruptRecords as damage:
        where = f"{path}, offset {header.base_offset}"
        logger.error("%s: the end of a transaction cannot be read: %s", where, damage)


def _find_duplicate(producer: Producer, header: BatchHeader) -> Duplicate | None:
    if header.producer_epoch != producer.epoch:
        return None
    first, last = header.base_sequence, header.last_sequence
    for batch in producer.batches:
        if batch.last_sequence == last and batch.first_sequence == first:
            return Duplicate(batch.first_offset, batch.last_offset, batch.timestamp)
    return None


def _check_order(producer: Producer, header: BatchHeader) -> None:
    """Raise `ApiError` unless the batch continues its epoch or begins a new one at sequence 0."""
    epoch, sequence = header.producer_epoch, header.base_sequence
    if epoch < producer.epoch:
        raise _replaced(header, producer.epoch)
    if epoch > producer.epoch:
        expected = 0
    else:
        last = producer.last_sequence
        expected = 0 if last == SEQUENCE_MAX else last + 1
    if sequence != expected:
        raise ApiError(
            Error.OUT_OF_ORDER_SEQUENCE_NUMBER,
            f"producer {header.producer_id} sent sequence {sequence} of epoch {epoch},"
            f" expected {expected}",
        )


def _replaced(header: BatchHeader, epoch: int) -> ApiError:
    return ApiError(
        Error.INVALID_PRODUCER_EPOCH,
        f"producer {header.producer_id} sent epoch {header.producer_epoch} and has {epoch}",
    )
