"""Which offsets expire, and which topics a group is known to read."""

from __future__ import annotations

import pytest
from aiokafka.coordinator.protocol import ConsumerProtocolMemberMetadata
from kafka.protocol.consumer import ConsumerProtocolSubscription as KafkaPythonSubscription

from kdist.groups.expiry import choose_expired
from kdist.groups.group import Group
from kdist.groups.member import Member
from kdist.groups.offsets import CommittedOffset
from kdist.groups.states import COMPLETING, EMPTY, PREPARING, STABLE, GroupState
from kdist.model import NO_TIMESTAMP, TopicPartition
from kdist.protocol.consumer_protocol import ConsumerProtocolSubscription
from kdist.protocol.versioned import put_versioned

RETENTION_MS = 1000
READ, UNREAD = TopicPartition("read", 0), TopicPartition("unread", 0)


def subscription(version: int) -> bytes:
    return put_versioned(ConsumerProtocolSubscription(topics=["read"], user_data=b"x"), version)


def group_in(state: GroupState, metadata: bytes | None, *, since_ms: int = 0) -> Group:
    """A group that committed READ and UNREAD at 0; without metadata it has no members."""
    group = Group("g", since_ms)
    if metadata is not None:
        member = Member("m", None, "c", "/h", (("range", metadata),), 6000, 6000)
        group.add(member, "consumer")
        group.protocol_name = "range"
    group.state = state
    group.subscribed_topics = group.read_subscribed_topics()
    group.offsets.load(READ, CommittedOffset(1, -1, "", 0))
    group.offsets.load(UNREAD, CommittedOffset(2, -1, "", 0))
    return group


def expired(group: Group, now_ms: int) -> list[TopicPartition]:
    return choose_expired(group, now_ms, RETENTION_MS, group.offsets.all())


def test_in_a_stable_group_only_offsets_of_unread_topics_expire() -> None:
    group = group_in(STABLE, subscription(0))
    assert expired(group, RETENTION_MS - 1) == []
    assert expired(group, RETENTION_MS) == [UNREAD]


@pytest.mark.parametrize("state", [PREPARING, COMPLETING])
def test_no_offset_expires_during_a_rebalance(state: GroupState) -> None:
    assert expired(group_in(state, subscription(0)), 10 * RETENTION_MS) == []


def test_no_offset_expires_while_the_subscriptions_are_unreadable() -> None:
    assert expired(group_in(STABLE, b"?"), 10 * RETENTION_MS) == []


def test_in_an_empty_group_all_offsets_expire_since_it_became_empty() -> None:
    group = group_in(EMPTY, None, since_ms=500)
    group.protocol_type = "consumer"
    assert expired(group, 500 + RETENTION_MS - 1) == []
    assert expired(group, 500 + RETENTION_MS) == [READ, UNREAD]


def test_in_an_empty_group_of_an_old_record_offsets_expire_since_their_commits() -> None:
    group = group_in(EMPTY, None, since_ms=NO_TIMESTAMP)
    group.protocol_type = "consumer"
    assert expired(group, RETENTION_MS - 1) == []
    assert expired(group, RETENTION_MS) == [READ, UNREAD]


def test_an_offsets_own_expiry_time_counts_alone() -> None:
    group = group_in(EMPTY, None)
    group.offsets.load(READ, CommittedOffset(1, -1, "", 0, expire_timestamp_ms=5000))
    assert expired(group, 4999) == [UNREAD]
    assert expired(group, 5000) == [READ, UNREAD]


@pytest.mark.parametrize(
    "metadata",
    [
        *(subscription(version) for version in range(4)),
        b"\0\x63" + subscription(3)[2:] + b"what version 99 may add",
        ConsumerProtocolMemberMetadata(0, ["read"], b"").encode(),
        KafkaPythonSubscription(topics=["read"], user_data=b"").encode(version=1),
    ],
)
def test_subscriptions_of_every_version_are_understood(metadata: bytes) -> None:
    assert group_in(STABLE, metadata).subscribed_topics == {"read"}


def test_subscriptions_of_other_protocol_types_are_unknown() -> None:
    group = group_in(STABLE, subscription(0))
    group.protocol_type = "connect"
    assert group.read_subscribed_topics() is None
