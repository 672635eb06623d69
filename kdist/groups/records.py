"""A group's records in `__consumer_offsets`: encoded, decoded, and a partition of them read back.

    key                              value
    group, topic, partition          a committed offset; null: deleted
    group                            a generation: members, their metadata and assignments, or that
                                     the group is empty; null: the group is deleted

The layouts are in `protocol/group_records.py`; docs/formats/consumer-offsets.md shows the bytes.
Compaction keeps the last record of each key, and loading uses it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from kdist.errors import CorruptRecords
from kdist.groups.context import LogRecord
from kdist.groups.group import EMPTY, STABLE, Commits, CommittedOffset, Group, Home, Member
from kdist.model import NO_TIMESTAMP, TopicPartition
from kdist.protocol.compiler import put_versioned
from kdist.protocol.group_records import (
    GROUP_METADATA_KEY_VERSION,
    OFFSET_COMMIT_KEY_VERSION,
    VALUE_VERSION,
    GroupMember,
    GroupMetadataKey,
    GroupMetadataValue,
    OffsetCommitKey,
    OffsetCommitValue,
    read_group_value,
    read_key,
    read_offset_value,
)
from kdist.records.batch import BatchHeader, iter_headers
from kdist.records.build import read_batch
from kdist.records.control import ControlType, read_control_type
from kdist.records.record import Record
from kdist.runtime.steps import CountedSteps
from kdist.wire.primitives import Buffer

EXPIRING_VALUE_VERSION = 1  # the only one with an expiry time; it has no leader epoch

_RECORDS_PER_STEP = 1_000
_OFFSET_US, _GROUP_US, _MEMBER_US = 3, 12, 4

_OLD_OFFSET_KEY, _OFFSET_KEY = b"\0\0", b"\0\1"  # two versions of the same key


def commit_records(group_id: str, commits: Commits) -> list[LogRecord]:
    """A record for each committed offset."""
    return [
        (_offset_key(group_id, partition), _offset_value(committed))
        for partition, committed in commits.items()
    ]


def generation_record(group: Group, assignments: Mapping[str, bytes]) -> LogRecord:
    """The group's generation, with an assignment for each member id; or that it is empty."""
    value = GroupMetadataValue(
        protocol_type=group.protocol_type or "",
        generation=group.generation,
        protocol=group.protocol_name,
        leader=group.leader_id,
        current_state_timestamp=group.state_since_ms,
        members=[
            _member_value(member, group.protocol_name or "", assignments[member.member_id])
            for member in group.members.values()
        ],
    )
    return _group_key(group.group_id), put_versioned(value, VALUE_VERSION)


def tombstones(
    group_id: str, partitions: Iterable[TopicPartition], *, is_group_gone: bool
) -> list[LogRecord]:
    """Tombstones for committed offsets, and for the group itself if it is gone."""
    keys = [_offset_key(group_id, partition) for partition in partitions]
    if is_group_gone:
        keys.append(_group_key(group_id))
    return [(key, None) for key in keys]


def read_commit(value: Buffer) -> CommittedOffset:
    """Decode a committed offset; ProtocolError if it is not one, or of a later version."""
    read = read_offset_value(value)
    return CommittedOffset(
        read.offset, read.leader_epoch, read.metadata, read.commit_timestamp, read.expire_timestamp
    )


def read_group(group_id: str, value: Buffer, home: Home | None = None) -> Group:
    """Decode a group, which is STABLE or EMPTY; ProtocolError as for `read_commit`.

    Raises `CorruptRecords` if its members do not make a group: only damage or another program that
    writes there does that, and such a group would fail when it is next used.
    """
    read = read_group_value(value)
    _check_members(group_id, read)
    group = Group(group_id, read.current_state_timestamp, home)
    group.generation = read.generation
    group.protocol_type = read.protocol_type or None
    group.protocol_name = read.protocol
    for each in read.members:
        group.add(_member_of(each, read.protocol or ""), read.protocol_type)
    group.leader_id = read.leader if read.leader in group.members else group.leader_id
    group.state = STABLE if group.members else EMPTY
    group.subscribed_topics = group.read_subscribed_topics()
    return group


def _check_members(group_id: str, read: GroupMetadataValue) -> None:
    if read.members and (not read.protocol_type or read.protocol is None):
        raise CorruptRecords(f"group {group_id} has members and no protocol")
    instance_ids = [e.group_instance_id for e in read.members if e.group_instance_id is not None]
    for ids in ([each.member_id for each in read.members], instance_ids):
        if len(set(ids)) < len(ids):
            raise CorruptRecords(f"group {group_id} has a member twice")


def _offset_key(group_id: str, partition: TopicPartition) -> bytes:
    key = OffsetCommitKey(group=group_id, topic=partition.topic, partition=partition.partition)
    return put_versioned(key, OFFSET_COMMIT_KEY_VERSION)


def _group_key(group_id: str) -> bytes:
    return put_versioned(GroupMetadataKey(group=group_id), GROUP_METADATA_KEY_VERSION)


def _offset_value(committed: CommittedOffset) -> bytes:
    expires = committed.expire_timestamp_ms != NO_TIMESTAMP
    value = OffsetCommitValue(
        offset=committed.offset,
        leader_epoch=committed.leader_epoch,
        metadata=committed.metadata,
        commit_timestamp=committed.commit_timestamp_ms,
        expire_timestamp=committed.expire_timestamp_ms,
    )
    return put_versioned(value, EXPIRING_VALUE_VERSION if expires else VALUE_VERSION)


def _member_value(member: Member, protocol: str, assignment: bytes) -> GroupMember:
    return GroupMember(
        member_id=member.member_id,
        group_instance_id=member.instance_id,
        client_id=member.client_id,
        client_host=member.client_host,
        rebalance_timeout=member.rebalance_timeout_ms,
        session_timeout=member.session_timeout_ms,
        subscription=member.metadata(protocol),
        assignment=assignment,
    )


def _member_of(read: GroupMember, protocol: str) -> Member:
    has_none = read.rebalance_timeout < 0  # version 0
    return Member(
        member_id=read.member_id,
        instance_id=read.group_instance_id,
        client_id=read.client_id,
        client_host=read.client_host,
        protocols=((protocol, read.subscription),),
        session_timeout_ms=read.session_timeout,
        rebalance_timeout_ms=read.session_timeout if has_none else read.rebalance_timeout,
        assignment=read.assignment,
    )


# A partition read back


class _Entry(NamedTuple):
    """The latest record of a key: its offset in the log, and its value, None for a tombstone."""

    offset: int
    value: bytes | None


class Loading:
    """Reads a partition: a fold over its batches, one at a time. Owner: the caller of `replay`.

    The last record of a key counts. Until all is read, keys and values stay bytes: most records are
    superseded by later ones and need not be decoded (measured: 0.4 µs a record instead of 2.5).
    Memory holds one batch, and one record per key. Offsets committed in a transaction take effect
    with its commit marker. Both steps are done in slices (`runtime/steps.py`); nobody is given
    their result before the end, so that nobody sees half a partition.
    """

    def __init__(self, partition: int) -> None:
        self.partition = partition
        self.home = Home()  # filled by `decode`
        # Deleted during the load; the log may still have offsets for them.
        self.deleted: dict[TopicPartition, None] = {}
        self._newest: dict[bytes, _Entry] = {}
        self._open: dict[int, dict[bytes, _Entry]] = {}  # by producer id

    def replay(self, batches: Buffer) -> CountedSteps:
        """Apply whole batches, in the log's order.

        Raises `CorruptRecords`; the partition's groups cannot be served then.
        """
        for position, header in iter_headers(batches):
            records = read_batch(batches, position)
            if header.is_control:
                self._end_transaction(header, records)
                continue
            into = self._newest
            if header.is_transactional:
                into = self._open.setdefault(header.producer_id, {})
            for first in range(0, len(records), _RECORDS_PER_STEP):
                some = records[first : first + _RECORDS_PER_STEP]
                into.update(map(_entry_of, some))
                yield len(some) // 2

    def decode(self, now_ms: int) -> CountedSteps:
        """Fill `home` with the groups as the log has them, which ends the loading.

        They are STABLE if they have members, else EMPTY; no timers run. A group of which the log
        has only offsets counts as empty since `now_ms`. Raises `CorruptRecords`, or `ProtocolError`
        for a record of an unknown kind or a later version.
        """
        newest = self._newest
        keys = list(reversed(newest))  # taken from the end, so that memory is freed in slices too
        while keys:
            key = keys.pop()
            yield self._decode(key, newest.pop(key).value, now_ms)

    def _decode(self, key: bytes, value: bytes | None, now_ms: int) -> int:
        """Returns how long it takes."""
        read, groups = None if value is None else read_key(key), self.home.groups
        if value is None or read is None:
            return 1
        known = groups.get(read.group)
        if isinstance(read, GroupMetadataKey):
            groups[read.group] = group = read_group(read.group, value, self.home)
            if known is not None:
                group.offsets = known.offsets
            return _GROUP_US + _MEMBER_US * len(group.members)
        if known is None:
            groups[read.group] = known = Group(read.group, now_ms, self.home)
        known.offsets.load(TopicPartition(read.topic, read.partition), read_commit(value))
        return _OFFSET_US

    def _end_transaction(self, header: BatchHeader, markers: list[Record]) -> None:
        """If it was committed, apply its records, except where a later record has the same key."""
        carried = self._open.pop(header.producer_id, {})
        if not markers or read_control_type(markers[0].key) is not ControlType.COMMIT:
            return
        for key, entry in carried.items():
            newest = self._newest.get(key)
            if newest is None or newest.offset < entry.offset:
                self._newest[key] = entry


def _entry_of(record: Record) -> tuple[bytes, _Entry]:
    key = record.key
    if key is None:
        raise CorruptRecords(f"the record at offset {record.offset} has no key")
    if key.startswith(_OLD_OFFSET_KEY):
        key = _OFFSET_KEY + key[len(_OLD_OFFSET_KEY) :]
    return key, _Entry(record.offset, record.value)
