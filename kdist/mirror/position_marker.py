"""A mirror's position, written into each batch's header and read back from it (pure).

    field            bits    holds
    producer id      62      1: clusters assign ids from 0 upward, and never get there
                     32-61   the mark: CRC-32C of the source's cluster id, topic and partition
                     0-31    the run: the lowest bits of the source offset at which it began
    producer epoch   0-14    bits 31 to 45 of the source offset of the batch's last record
    last sequence    0-30    bits 0 to 30 of it

A broker appends a batch of a producer id that it knows only if the sequence follows. So under one
id it accepts just the next records of the source, whoever sends them and however often. A run is a
series of batches without a gap in the source's offsets. After a gap (a transaction marker, records
compacted away) a new run begins, with an id of its own, which any mirror that reaches this gap
computes alike. Sources: KIP-98; that a producer id unknown to a broker may begin at any sequence:
KAFKA-7190, Kafka 2.5.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from kdist.errors import UserError
from kdist.model import TopicPartition
from kdist.records.batch import BatchHeader
from kdist.wire.crc32c import crc32c

OFFSETS_MAX = 1 << 46  # 70 trillion records in a partition

_OURS = 1 << 62
_MARK_BITS, _RUN_BITS, _SEQUENCE_BITS = 30, 32, 31
_MARK_MASK = (1 << _MARK_BITS) - 1
_RUN_MASK = (1 << _RUN_BITS) - 1
_SEQUENCE_MASK = (1 << _SEQUENCE_BITS) - 1


class Run(NamedTuple):
    """The producer id and epoch of a run, and the source offset at which its next batch begins."""

    producer_id: int
    epoch: int
    next_offset: int

    @property
    def base_sequence(self) -> int:
        return self.next_offset & _SEQUENCE_MASK


def mark_of(cluster_id: str, partition: TopicPartition) -> int:
    """The mark of batches from this partition of the source."""
    name = f"{cluster_id}/{partition.topic}/{partition.partition}"
    return crc32c(name.encode()) & _MARK_MASK


def run_for(mark: int, last: Run | None, start: int, end: int) -> Run:
    """The run for a batch of source offsets from `start` up to `end`: `last`, or a new one.

    `start` is `end` less the number of records, so that the last record's sequence tells `end`.
    """
    if end > OFFSETS_MAX:
        raise UserError(f"source offset {end} is too large for a mirror to keep in batch headers")
    epoch = end - 1 >> _SEQUENCE_BITS
    if last is not None and last.next_offset == start and last.epoch == epoch:
        return last
    producer_id = _OURS | mark << _RUN_BITS | start & _RUN_MASK
    return Run(producer_id, epoch, start)


def read_run(header: BatchHeader, mark: int) -> Run | None:
    """The run of a batch in the target, as it is after that batch; None if it is not ours."""
    if header.producer_id < 0 or header.producer_id >> _RUN_BITS != _OURS >> _RUN_BITS | mark:
        return None
    last_offset = header.producer_epoch << _SEQUENCE_BITS | header.last_sequence
    return Run(header.producer_id, header.producer_epoch, last_offset + 1)


def last_run(headers: Iterable[BatchHeader], mark: int) -> Run | None:
    """The run after the last of these batches that is ours; None if none is."""
    found = None
    for header in headers:
        found = read_run(header, mark) or found
    return found
