"""Opens a fetch's record batches one by one: checks them, and filters out some (pure).

Filtered out are control batches and, with read_committed, the records of aborted transactions. The
broker lists those transactions by producer and first offset; each ends at its abort marker. What is
filtered out still advances the position. Corrupt data ends the sequence with its error, so that the
application gets all records before it, and then the error. Source: KIP-98.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from kdist.client.coding import Coder
from kdist.client.consumer.batch import Batch, BatchRun, CorruptFetch
from kdist.errors import CorruptRecords
from kdist.model import TopicPartition
from kdist.protocol.fetch import AbortedTransaction
from kdist.records.batch import BatchHeader, crc_fault
from kdist.records.build import read_records
from kdist.records.control import ControlType, read_control_type
from kdist.records.convert import iter_runs
from kdist.wire.primitives import Buffer


class Ready(NamedTuple):
    """One step of a partition: a batch, or None for one that was filtered out, or an error.

    `next_offset` is the position behind it.
    """

    next_offset: int
    leader_epoch: int
    size_bytes: int
    batch: Batch | None = None
    error: CorruptFetch | None = None


class Opening(NamedTuple):
    """How to open one partition's fetch; with `aborted` None, transactions are not filtered."""

    partition: TopicPartition
    position: int
    aborted: Iterable[AbortedTransaction] | None = None
    check_crcs: bool = True
    decoders: tuple[Coder | None, Coder | None] = (None, None)
    run_bytes_max: int = 0  # the size limit of a `BatchRun` of small batches


def open_fetched(buffer: Buffer, opening: Opening) -> Iterator[Ready]:
    """The batches in `buffer` at and after the position, in order, each offset once."""
    aborted = _Aborted(opening.aborted or ())
    position = opening.position
    try:
        most = opening.run_bytes_max
        found = iter_runs(buffer, position, most, check_crcs=opening.check_crcs)
        # The source is the answer's own bytes, or a batch converted from an old format.
        for source, at, header, checked_count in found:
            next_offset = header.next_offset
            if next_offset <= position:
                continue  # before the position: brokers return whole batches
            if opening.check_crcs and not checked_count:
                _check(source, at, header)
            batch: Batch | None = None
            if header.is_control:
                aborted.end(source, at, header)
            elif not aborted.covers(header) and header.record_count:
                kind = BatchRun if checked_count > 1 else Batch
                batch = kind(opening.partition, header, source, at, position, opening.decoders)
            yield Ready(next_offset, header.partition_leader_epoch, header.size, batch)
            position = next_offset
    except CorruptRecords as error:
        located = CorruptFetch(opening.partition, position, error.detail)
        yield Ready(position, -1, 0, error=located)


def _check(buffer: Buffer, at: int, header: BatchHeader) -> None:
    fault = crc_fault(buffer, at, header)
    if fault:
        raise CorruptRecords(fault)


class _Aborted:
    """Tracks which producers' transactions are aborted, as the batches go by."""

    def __init__(self, transactions: Iterable[AbortedTransaction]) -> None:
        self._coming = sorted(transactions, key=lambda each: each.first_offset)[::-1]
        self._open: set[int] = set()  # producers within an aborted transaction

    def covers(self, header: BatchHeader) -> bool:
        """Whether a batch belongs to an aborted transaction."""
        while self._coming and self._coming[-1].first_offset <= header.last_offset:
            self._open.add(self._coming.pop().producer_id)
        return header.is_transactional and header.producer_id in self._open

    def end(self, buffer: Buffer, at: int, header: BatchHeader) -> None:
        """Note a control batch: an abort marker ends its producer's aborted transaction."""
        self.covers(header)
        if header.producer_id not in self._open:
            return
        markers = read_records(buffer, at, header)
        if len(markers) != 1:
            raise CorruptRecords(f"a control batch has {len(markers)} records")
        if read_control_type(markers[0].key) is ControlType.ABORT:
            self._open.discard(header.producer_id)
