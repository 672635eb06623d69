"""What members exchange in JoinGroup and SyncGroup, encoded as Java's consumers do (pure).

The subscription and the assignment are `protocol.consumer_protocol`'s. The sticky assignors add
user data, which is not versioned:

    sticky              previous partitions [topic string, [int32]] | generation int32
    cooperative-sticky  generation int32

The generation in sticky's data was added later, and may be missing. librdkafka writes sticky's
format for both. Owned partitions and a generation in the subscription itself (KIP-429, KIP-792)
take precedence.
"""

from __future__ import annotations

from collections.abc import Iterable

from kdist.client.cluster import by_topic
from kdist.client.consumer.assignors import NO_GENERATION, Assignor, Member
from kdist.errors import ProtocolError
from kdist.model import TopicPartition
from kdist.protocol.compiler import codec_for, put_versioned
from kdist.protocol.consumer_protocol import (
    NEWEST,
    ConsumerProtocolAssignment,
    ConsumerProtocolSubscription,
    TopicPartitions,
    read_assignment,
    read_subscription,
)
from kdist.protocol.schema import at, int32, message
from kdist.wire.primitives import Buffer

_GENERATION_BYTES = 4


@message()
class StickyUserData:
    """Written as version 1; version 0 had no generation."""

    previous_assignment: list[TopicPartitions]
    generation: int32 = at(since=1, default=NO_GENERATION)


def write_subscription(assignor: Assignor, member: Member, rack: str | None = None) -> bytes:
    """JoinGroup's metadata for one assignor."""
    keeps = assignor.keeps_owned_in_user_data
    subscription = ConsumerProtocolSubscription(
        topics=sorted(member.topics),
        user_data=_user_data(assignor, member),
        owned_partitions=[] if keeps else _by_topic(member.owned),
        generation_id=member.generation,
        rack_id=rack,
    )
    return put_versioned(subscription, NEWEST)


def _user_data(assignor: Assignor, member: Member) -> bytes | None:
    if assignor.keeps_owned_in_user_data:
        data = StickyUserData(
            previous_assignment=_by_topic(member.owned), generation=member.generation
        )
        out = bytearray()
        codec_for(StickyUserData, 1).encode(data, out)
        return bytes(out)
    if assignor.is_cooperative:
        return member.generation.to_bytes(_GENERATION_BYTES, "big", signed=True)
    return None


def read_member(member_id: str, instance_id: str | None, metadata: Buffer) -> Member:
    """Decode a member; `ProtocolError` if its metadata is not a consumer's."""
    subscription = read_subscription(metadata)
    owned = _partitions(subscription.owned_partitions)
    generation = subscription.generation_id
    if subscription.user_data:
        previous, since = _read_user_data(subscription.user_data)
        owned = owned or previous
        generation = since if generation == NO_GENERATION else generation
    return Member(member_id, frozenset(subscription.topics), instance_id, owned, generation)


def _read_user_data(data: Buffer) -> tuple[tuple[TopicPartition, ...], int]:
    """The previous partitions and generation; empty if another kind of assignor wrote the data."""
    if len(data) == _GENERATION_BYTES:
        return (), int.from_bytes(data, "big", signed=True)
    for version in (1, 0):
        try:
            found, _ = codec_for(StickyUserData, version).decode(memoryview(data), 0)
        except ProtocolError:
            continue  # an older or an application's own format, which is not an error
        return _partitions(found.previous_assignment), found.generation
    return (), NO_GENERATION


def write_assignment(partitions: Iterable[TopicPartition]) -> bytes:
    """Encode one member's assignment for SyncGroup."""
    assignment = ConsumerProtocolAssignment(assigned_partitions=_by_topic(partitions))
    return put_versioned(assignment, NEWEST)


def read_partitions(assignment: Buffer) -> tuple[TopicPartition, ...]:
    """Decode an assignment's partitions, sorted; empty bytes mean none."""
    if not len(assignment):
        return ()
    return tuple(sorted(_partitions(read_assignment(assignment).assigned_partitions)))


def _by_topic(partitions: Iterable[TopicPartition]) -> list[TopicPartitions]:
    return [
        TopicPartitions(topic=topic, partitions=numbers)
        for topic, numbers in by_topic(partitions).items()
    ]


def _partitions(topics: Iterable[TopicPartitions]) -> tuple[TopicPartition, ...]:
    return tuple(TopicPartition(each.topic, n) for each in topics for n in each.partitions)
