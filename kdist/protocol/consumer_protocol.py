"""What consumers write inside JoinGroup and SyncGroup: subscriptions and assignments.

    version int16 | message           (versioned.py writes both)

    version  changed
    1        subscription: owned partitions, for cooperative rebalancing (KIP-429)
    2        subscription: generation id of the owned partitions (KIP-792)
    3        subscription: rack id (KIP-881)

The broker passes these bytes on; of a subscription it reads the topics, whose offsets stay while
somebody reads them. A version newer than 3 is read as 3, by the format's own rule that fields are
only ever added at the end.
"""

from __future__ import annotations

from kdist.protocol.schema import (
    at,
    int32,
    message,
    nullable_bytes,
    nullable_string,
    string,
    struct,
)
from kdist.protocol.versioned import get_version, get_versioned
from kdist.wire.varint import Buffer

NEWEST = 3


@struct
class TopicPartitions:
    """Partitions of one topic."""

    topic: string
    partitions: list[int32]


@message()
class ConsumerProtocolSubscription:
    """What a member wants, and what it holds."""

    topics: list[string]
    user_data: nullable_bytes = None
    owned_partitions: list[TopicPartitions] = at(since=1, default=[], ignorable=True)
    generation_id: int32 = at(since=2, default=-1, ignorable=True)
    rack_id: nullable_string = at(since=3, default=None, ignorable=True)


@message()
class ConsumerProtocolAssignment:
    """What a member gets."""

    assigned_partitions: list[TopicPartitions]
    user_data: nullable_bytes = None


def read_subscription(buffer: Buffer) -> ConsumerProtocolSubscription:
    """What JoinGroup's metadata says; ProtocolError if it is none of a consumer's."""
    version = min(get_version(buffer), NEWEST)
    return get_versioned(ConsumerProtocolSubscription, buffer, version)


def read_assignment(buffer: Buffer) -> ConsumerProtocolAssignment:
    """What SyncGroup's assignment says; ProtocolError if it is none of a consumer's."""
    version = min(get_version(buffer), NEWEST)
    return get_versioned(ConsumerProtocolAssignment, buffer, version)
