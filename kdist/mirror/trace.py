"""Where a mirror stands, written in each batch's header, and read back from it (pure).

    field            bits    holds
    producer id      62      1: no cluster's own ids, which count up from 0, get there
                     32-61   the mark: CRC-32C of the source's cluster id, topic and partition
                     0-31    the run: where it began, the lowest bits
    producer epoch   0-14    bits 31 to 45 of the source offset of the batch's last record
    last sequence    0-30    bits 0 to 30 of it

A broker appends a batch of a producer it knows only if its sequence follows, so under one producer
id it takes just the next records of the source, whoever sends them and how often. A run is as many
batches as follow each other without a gap in the source's offsets; behind a gap (a marker of a
transaction, records compacted away) a new run begins, with an id of its own, which is the same for
whoever comes to this gap. Sources: KIP-98; that a broker lets a producer it does not know begin at
any sequence: KAFKA-7190, Kafka 2.5.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from kdist.errors import UserError
from kdist.model import TopicPartition
from kdist.records.batch import BatchHeader
from kdist.wire.crc32c import crc32c

OFFSETS_MAX = 1 << 46  # 70 thousand billion records in a partition

_OURS = 1 << 62
_MARK_BITS, _RUN_BITS, _SEQUENCE_BITS = 30, 32, 31
_MARK_MASK = (1 << _MARK_BITS) - 1
_RUN_MASK = (1 << _RUN_BITS) - 1
_SEQUENCE_MASK = (1 << _SEQUENCE_BITS) - 1


class Run(NamedTuple):
    """Under which id and epoch batches are sent, and which source offset the next must begin at."""

    producer_id: int
    epoch: int
    next_offset: int

    @property
    def base_sequence(self) -> int:
        """Of the batch that comes next."""
        return self.next_offset & _SEQUENCE_MASK


def mark_of(cluster_id: str, partition: TopicPartition) -> int:
    """The mark of batches from this partition of this cluster."""
    name = f"{cluster_id}/{partition.topic}/{partition.partition}"
    return crc32c(name.encode()) & _MARK_MASK


def run_for(mark: int, last: Run | None, start: int, end: int) -> Run:
    """The run for a batch of source offsets from `start` up to `end`: `last`, or a new one.

    `start` is `end` less the number of records, so that the last record's sequence tells `end`.
    """
    if end > OFFSETS_MAX:
        raise UserError(f"source offset {end} is more than a mirror can keep in a batch's header")
    epoch = end - 1 >> _SEQUENCE_BITS
    if last is not None and last.next_offset == start and last.epoch == epoch:
        return last
    producer_id = _OURS | mark << _RUN_BITS | start & _RUN_MASK
    return Run(producer_id, epoch, start)


def read_run(header: BatchHeader, mark: int) -> Run | None:
    """The run that a batch of the target belongs to, as it goes on behind it; None: not ours."""
    if header.producer_id < 0 or header.producer_id >> _RUN_BITS != _OURS >> _RUN_BITS | mark:
        return None
    last_offset = header.producer_epoch << _SEQUENCE_BITS | header.last_sequence
    return Run(header.producer_id, header.producer_epoch, last_offset + 1)


def last_run(headers: Iterable[BatchHeader], mark: int) -> Run | None:
    """The run of the last of some batches that is ours."""
    found = None
    for header in headers:
        found = read_run(header, mark) or found
    return found
