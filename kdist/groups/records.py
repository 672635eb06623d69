"""A group's records in `__consumer_offsets`: encoding and decoding (pure).

    key                              value
    group, topic, partition          a committed offset; null: deleted
    group                            a generation: members, their metadata and assignments, or that
                                     the group is empty; null: the group is deleted

The layouts are in `protocol/group_records.py`; docs/formats/consumer-offsets.md shows the bytes.
Compaction keeps the last record of each key, and loading uses it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from kdist.errors import CorruptRecords
from kdist.groups.context import LogRecord
from kdist.groups.group import Group, Home
from kdist.groups.member import Member
from kdist.groups.offsets import Commits, CommittedOffset
from kdist.groups.states import EMPTY, STABLE
from kdist.model import NO_TIMESTAMP, TopicPartition
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
    read_offset_value,
)
from kdist.protocol.versioned import put_versioned
from kdist.wire.varint import Buffer

EXPIRING_VALUE_VERSION = 1  # the only one with an expiry time; it has no leader epoch


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
