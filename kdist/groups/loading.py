"""A partition of `__consumer_offsets` read back: a fold over its batches, one at a time.

The last record of a key counts. Until all is read, keys and values stay bytes: most records are
overtaken by later ones and need not be understood (measured: 2 µs a record instead of 8). So what
is held is a batch, and one record for each key. An offset that a transaction carries waits for the
transaction's end. `groups` hands over the result at once, so that nobody sees half a partition.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from kdist.errors import CorruptRecords
from kdist.groups.group import Group
from kdist.groups.records import read_commit, read_group
from kdist.model import TopicPartition
from kdist.protocol.group_records import GroupMetadataKey, OffsetCommitKey, read_key
from kdist.records.batch import BatchHeader, iter_headers
from kdist.records.build import read_batch
from kdist.records.control import ControlType, read_control_type
from kdist.records.record import Record
from kdist.wire.varint import Buffer

_OLD_OFFSET_KEY, _OFFSET_KEY = b"\0\0", b"\0\1"  # two versions that name the same thing


class _Said(NamedTuple):
    """What a record says of its key; None takes back. `offset` is the record's own."""

    offset: int
    value: bytes | None


class Loading:
    """One partition's records so far. Owner: who feeds it."""

    def __init__(self, partition: int) -> None:
        self.partition = partition
        self.deleted: set[TopicPartition] = set()  # since it began; the log may tell of them
        self._newest: dict[bytes, _Said] = {}
        self._open: dict[int, dict[bytes, _Said]] = {}  # by producer id

    def replay(self, batches: Buffer) -> None:
        """Take in whole batches, in the log's order.

        Raises `CorruptRecords`; the partition cannot be coordinated then.
        """
        for position, header in iter_headers(batches):
            records = read_batch(batches, position)
            if header.is_control:
                self._end_transaction(header, records)
            elif header.is_transactional:
                carried = self._open.setdefault(header.producer_id, {})
                carried.update(map(_said, records))
            else:
                self._newest.update(map(_said, records))

    def groups(self, now_ms: int) -> list[Group]:
        """The groups as the log leaves them: STABLE with members, else EMPTY; no timer runs.

        Ends the loading. `now_ms` is when a group of which only offsets are known became empty.
        Raises `ProtocolError` for a record that is none of a group's, or of a later version.
        """
        groups: dict[str, Group] = {}
        commits: list[tuple[OffsetCommitKey, bytes]] = []
        for key, value in self._left():
            read = read_key(key)
            if isinstance(read, GroupMetadataKey):
                groups[read.group] = read_group(read.group, value)
            elif isinstance(read, OffsetCommitKey):
                commits.append((read, value))
        for where, value in commits:
            if where.group not in groups:
                groups[where.group] = Group(where.group, now_ms)
            partition = TopicPartition(where.topic, where.partition)
            groups[where.group].offsets.load(partition, read_commit(value))
        return list(groups.values())

    def _left(self) -> Iterator[tuple[bytes, bytes]]:
        """Keys that were not taken back, and what they ended with."""
        for key, said in self._newest.items():
            if said.value is not None:
                yield key, said.value

    def _end_transaction(self, header: BatchHeader, markers: list[Record]) -> None:
        """Take what the transaction carried, unless a later record outside of it overtook that."""
        carried = self._open.pop(header.producer_id, {})
        if not markers or read_control_type(markers[0].key) is not ControlType.COMMIT:
            return
        for key, said in carried.items():
            newest = self._newest.get(key)
            if newest is None or newest.offset < said.offset:
                self._newest[key] = said


def _said(record: Record) -> tuple[bytes, _Said]:
    key = record.key
    if key is None:
        raise CorruptRecords(f"the record at offset {record.offset} has no key")
    if key.startswith(_OLD_OFFSET_KEY):
        key = _OFFSET_KEY + key[len(_OLD_OFFSET_KEY) :]
    return key, _Said(record.offset, record.value)
