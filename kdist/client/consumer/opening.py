"""A fetch's record batches one by one: checked, without those that must not be given (pure).

Left out are control batches and, with read_committed, what aborted transactions wrote. The broker
says which those are, by producer and first offset; each ends with its marker. What is left out
still moves the position. A fault ends the fetch's batches and is kept in its place, so that who
asks for records gets all before it, and then the error. Source: KIP-98.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from kdist.client.consumer.batch import Batch, CorruptFetch, Decoder
from kdist.client.consumer.batch_run import BatchRun
from kdist.errors import CorruptRecords
from kdist.model import TopicPartition
from kdist.protocol.fetch import AbortedTransaction
from kdist.records.batch import BatchHeader, crc_fault
from kdist.records.build import read_records
from kdist.records.control import ControlType, read_control_type
from kdist.records.fetched import iter_runs
from kdist.wire.varint import Buffer


class Ready(NamedTuple):
    """The next of a partition: a batch, or None where one was left out, or what is wrong with it.

    `next_offset` is the position behind it.
    """

    next_offset: int
    leader_epoch: int
    size_bytes: int
    batch: Batch | None = None
    error: CorruptFetch | None = None


class Opening(NamedTuple):
    """How one partition's fetch is to be opened; `aborted` None gives whatever is there."""

    partition: TopicPartition
    position: int
    aborted: Iterable[AbortedTransaction] | None = None
    check_crcs: bool = True
    decoders: tuple[Decoder | None, Decoder | None] = (None, None)
    run_bytes_max: int = 0  # of small batches that become one `BatchRun`


def open_fetched(buffer: Buffer, opening: Opening) -> Iterator[Ready]:
    """What `buffer` holds at and behind the position, in order, each offset once."""
    aborted = _Aborted(opening.aborted or ())
    position = opening.position
    try:
        most = opening.run_bytes_max
        found = iter_runs(buffer, position, most, check_crcs=opening.check_crcs)
        # The source is the answer's own bytes, or made of an old format.
        for source, at, header, checked_count in found:
            next_offset = header.next_offset
            if next_offset <= position:
                continue  # all of it was given: the broker gives from a batch's beginning
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
        told = CorruptFetch(opening.partition, position, error.detail)
        yield Ready(position, -1, 0, error=told)


def _check(buffer: Buffer, at: int, header: BatchHeader) -> None:
    fault = crc_fault(buffer, at, header)
    if fault:
        raise CorruptRecords(fault)


class _Aborted:
    """Whose records are left out, as the batches go by."""

    def __init__(self, transactions: Iterable[AbortedTransaction]) -> None:
        self._coming = sorted(transactions, key=lambda each: each.first_offset)[::-1]
        self._open: set[int] = set()  # producers whose aborted transaction has begun

    def covers(self, header: BatchHeader) -> bool:
        """Whether a batch belongs to an aborted transaction."""
        while self._coming and self._coming[-1].first_offset <= header.last_offset:
            self._open.add(self._coming.pop().producer_id)
        return header.is_transactional and header.producer_id in self._open

    def end(self, buffer: Buffer, at: int, header: BatchHeader) -> None:
        """Note an abort marker: what its producer wrote behind it is another transaction's."""
        self.covers(header)
        if header.producer_id not in self._open:
            return
        markers = read_records(buffer, at, header)
        if len(markers) != 1:
            raise CorruptRecords(f"a control batch has {len(markers)} records")
        if read_control_type(markers[0].key) is ControlType.ABORT:
            self._open.discard(header.producer_id)
