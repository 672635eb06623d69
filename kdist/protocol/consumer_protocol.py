"""What consumers write inside JoinGroup and SyncGroup: subscriptions and assignments.

    version int16 | message           (compiler.py writes both)

    version  changed
    1        subscription: owned partitions, for cooperative rebalancing (KIP-429)
    2        subscription: generation id of the owned partitions (KIP-792)
    3        subscription: rack id (KIP-881)

The broker passes these bytes on. It reads only a subscription's topics, whose committed offsets do
not expire while a member subscribes to them. A version newer than 3 is read as 3: by the format's
own rule, fields are only added at the end.
"""

from __future__ import annotations

from kdist.protocol.compiler import get_version, get_versioned
from kdist.protocol.schema import (
    at,
    int32,
    message,
    nullable_bytes,
    nullable_string,
    string,
    struct,
)
from kdist.wire.primitives import Buffer

NEWEST = 3


@struct
class TopicPartitions:
    topic: string
    partitions: list[int32]


@message()
class ConsumerProtocolSubscription:
    """The topics a member subscribes to, and the partitions it owns."""

    topics: list[string]
    user_data: nullable_bytes = None
    owned_partitions: list[TopicPartitions] = at(since=1, default=[], ignorable=True)
    generation_id: int32 = at(since=2, default=-1, ignorable=True)
    rack_id: nullable_string = at(since=3, default=None, ignorable=True)


@message()
class ConsumerProtocolAssignment:
    assigned_partitions: list[TopicPartitions]
    user_data: nullable_bytes = None


def read_subscription(buffer: Buffer) -> ConsumerProtocolSubscription:
    """Decode JoinGroup's metadata; `ProtocolError` if it is not a consumer's."""
    version = min(get_version(buffer), NEWEST)
    return get_versioned(ConsumerProtocolSubscription, buffer, version)


def read_assignment(buffer: Buffer) -> ConsumerProtocolAssignment:
    """Decode SyncGroup's assignment; `ProtocolError` if it is not a consumer's."""
    version = min(get_version(buffer), NEWEST)
    return get_versioned(ConsumerProtocolAssignment, buffer, version)
