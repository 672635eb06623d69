"""Committed offsets that expire, or whose partitions are deleted; which topics a group reads."""

from __future__ import annotations

import pytest
from aiokafka.coordinator.protocol import ConsumerProtocolMemberMetadata
from groups_transcript import check
from kafka.protocol.consumer import ConsumerProtocolSubscription as KafkaPythonSubscription

from kdist.groups.deletion import choose_expired
from kdist.groups.group import (
    COMPLETING,
    EMPTY,
    PREPARING,
    STABLE,
    CommittedOffset,
    Group,
    GroupState,
    Member,
)
from kdist.model import NO_TIMESTAMP, TopicPartition
from kdist.protocol.compiler import put_versioned
from kdist.protocol.consumer_protocol import ConsumerProtocolSubscription

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


def test_offsets_of_a_simple_consumer_expire_since_their_commit() -> None:
    check("""
        set offsets_retention_minutes=10 offsets_retention_check_interval_ms=60000
        committed t-0:1
        pass 300000
        commit outside t-1:2
            log: readers t-1 2
            outside committed t-1 NONE
        pass 200000
        expire
        pass 39999
        expire
            log: readers t-0 gone
        fetch
            offsets t-1 2
        pass 200000
        expire
            log: readers t-1 gone
        list
            groups none NONE
    """)


def test_offsets_of_an_empty_group_expire_since_it_became_empty() -> None:
    check("""
        set offsets_retention_minutes=10
        set offsets_retention_check_interval_ms=60000 max_session_timeout_ms=2000000000
        stable a session=1000000000
        commit a t-0:1
            log: readers t-0 1
            a committed t-0 NONE
        pass 1000000
        leave a
            log: readers generation 2 empty
            leave NONE: NONE
        pass 539999
        expire
        expire
            log: readers t-0 gone
            log: readers gone
        list
            groups none NONE
    """)


def test_a_stable_group_keeps_its_offsets_while_it_is_not_known_what_it_reads() -> None:
    check("""
        set offsets_retention_minutes=10
        set offsets_retention_check_interval_ms=60000 max_session_timeout_ms=2000000000
        stable a session=1000000000 type=connect
        commit a t-0:1
            log: readers t-0 1
            a committed t-0 NONE
        pass 1000000
        expire
        fetch
            offsets t-0 1
    """)


def test_a_retention_of_the_largest_number_there_is_means_for_ever() -> None:
    check(f"""
        commit outside t-0:1 retention={2**63 - 1}
            log: readers t-0 1
            outside committed t-0 NONE
    """)


def test_a_retention_of_the_clients_own_counts() -> None:
    check("""
        set offsets_retention_check_interval_ms=1000
        commit outside t-0:1 retention=5000
            log: readers t-0 1
            outside committed t-0 NONE
        commit outside t-1:1
            log: readers t-1 1
            outside committed t-1 NONE
        pass 3999
        expire
        expire
            log: readers t-0 gone
        fetch
            offsets t-1 1
    """)


def test_offsets_with_a_commit_under_way_do_not_expire() -> None:
    check("""
        set offsets_retention_minutes=10 offsets_retention_check_interval_ms=60000
        committed t-0:1
        pass 600000
        log holds
        commit outside t-0:2
            log: readers t-0 2
        expire
        log continues
            outside committed t-0 NONE
        fetch
            offsets t-0 2
    """)


def test_deleted_partitions_take_their_offsets_along() -> None:
    check("""
        committed t-0:1 t-1:2 u-0:3
        delete t-0 t-1
            log: readers t-0 gone
            log: readers t-1 gone
        fetch
            offsets u-0 3
        delete u-0
            log: readers u-0 gone
        list
            groups none NONE
    """)


def test_a_commit_under_way_to_a_deleted_partition_is_forgotten() -> None:
    check("""
        committed u-0:1
        log holds
        commit outside t-0:2
            log: readers t-0 2
        delete t-0
            log: readers t-0 gone
        log continues
            outside committed t-0 NONE
        fetch t-0 u-0
            offsets t-0 -1, u-0 1
    """)


def test_a_group_with_members_survives_the_loss_of_its_offsets() -> None:
    check("""
        stable a
        commit a t-0:1
            log: readers t-0 1
            a committed t-0 NONE
        delete t-0
            log: readers t-0 gone
        heartbeat a
            a heartbeat NONE
    """)


def test_an_empty_group_without_offsets_goes_with_the_next_look() -> None:
    check("""
        set offsets_retention_check_interval_ms=1000
        empty a
        list
            groups readers Empty consumer NONE
        expire
            log: readers gone
        list
            groups none NONE
    """)


def test_a_group_that_an_id_was_given_out_for_stays() -> None:
    check("""
        set offsets_retention_check_interval_ms=1000
        join a v=4
            a join MEMBER_ID_REQUIRED
        expire
        join a v=4
        pass 0
            a joined generation 1 by range, leader a, members a
    """)


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
