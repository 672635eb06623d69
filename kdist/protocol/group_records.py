"""The group coordinator's records in __consumer_offsets: their keys and values.

    key      version int16 | OffsetCommitKey (versions 0, 1) or GroupMetadataKey (version 2)
    value    version int16 | OffsetCommitValue or GroupMetadataValue

    OffsetCommitValue           GroupMetadataValue
    1   expire timestamp        1   rebalance timeout (KIP-62)
    2   no expire timestamp     2   timestamp of the current state (KIP-211)
    3   leader epoch (KIP-320)  3   group instance id (KIP-345)
    4   flexible (KIP-915)      4   flexible (KIP-915)

A null value is a tombstone: the offset expired, or its topic or group was deleted. Values are
written in version 3, as by Kafka, so that an older broker can read them after a downgrade.
`compiler.py` encodes all four.
"""

from __future__ import annotations

from kdist.errors import ProtocolError
from kdist.protocol.compiler import get_version, get_versioned
from kdist.protocol.schema import at, bytes_, int32, int64, message, nullable_string, string, struct
from kdist.wire.primitives import Buffer

OFFSET_COMMIT_KEY_VERSION = 1  # 0 has the same format
GROUP_METADATA_KEY_VERSION = 2
VALUE_VERSION = 3  # what is written
VALUE_NEWEST = 4  # what can be read


@message()
class OffsetCommitKey:
    """One group's position in one partition."""

    group: string
    topic: string
    partition: int32


@message(flexible=4)
class OffsetCommitValue:
    """`offset` is that of the next record to read; timestamps are milliseconds."""

    offset: int64
    leader_epoch: int32 = at(since=3, default=-1, ignorable=True)
    metadata: string
    commit_timestamp: int64
    expire_timestamp: int64 = at(since=1, until=1, default=-1, ignorable=True)


@message()
class GroupMetadataKey:
    group: string


@struct
class GroupMember:
    """A member of the generation; subscription and assignment as it and its leader wrote them."""

    member_id: string
    group_instance_id: nullable_string = at(since=3, default=None, ignorable=True)
    client_id: string
    client_host: string
    rebalance_timeout: int32 = at(since=1, default=-1, ignorable=True)
    session_timeout: int32
    subscription: bytes_
    assignment: bytes_


@message(flexible=4)
class GroupMetadataValue:
    """A group's last finished generation; `protocol` and `leader` are None while it is empty."""

    protocol_type: string
    generation: int32
    protocol: nullable_string
    leader: nullable_string
    current_state_timestamp: int64 = at(since=2, default=-1, ignorable=True)
    members: list[GroupMember]


def read_key(buffer: Buffer) -> OffsetCommitKey | GroupMetadataKey | None:
    """A record's key; None for a later type (KIP-848), which readers skip."""
    version = get_version(buffer)
    if version <= OFFSET_COMMIT_KEY_VERSION:
        return get_versioned(OffsetCommitKey, buffer, version)
    if version == GROUP_METADATA_KEY_VERSION:
        return get_versioned(GroupMetadataKey, buffer, version)
    return None


def read_offset_value(buffer: Buffer) -> OffsetCommitValue:
    """The value of a record with an OffsetCommitKey; `ProtocolError` for a version too new."""
    return get_versioned(OffsetCommitValue, buffer, _known_version(buffer))


def read_group_value(buffer: Buffer) -> GroupMetadataValue:
    """The value of a record with a GroupMetadataKey; `ProtocolError` for a version too new."""
    return get_versioned(GroupMetadataValue, buffer, _known_version(buffer))


def _known_version(buffer: Buffer) -> int:
    version = get_version(buffer)
    if version > VALUE_NEWEST:
        raise ProtocolError(f"a value of version {version}; {VALUE_NEWEST} is the newest known")
    return version
