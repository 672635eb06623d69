"""Messages with their own version: consumers' metadata and the records of __consumer_offsets."""

import pytest
from kafka.protocol.consumer.metadata import ConsumerProtocolSubscription as PeerSubscription

from kdist.errors import ProtocolError
from kdist.protocol.consumer_protocol import (
    ConsumerProtocolAssignment,
    ConsumerProtocolSubscription,
    TopicPartitions,
    read_assignment,
    read_subscription,
)
from kdist.protocol.group_records import (
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
from kdist.protocol.versioned import get_version, put_versioned

SUBSCRIPTION = ConsumerProtocolSubscription(
    topics=["t"],
    user_data=b"u",
    owned_partitions=[TopicPartitions(topic="t", partitions=[0, 2])],
    generation_id=5,
    rack_id="r",
)


def test_kafka_python_reads_our_subscription():
    peer = PeerSubscription.decode(put_versioned(SUBSCRIPTION, 3))
    assert (peer.topics, peer.user_data, peer.generation_id, peer.rack_id) == (["t"], b"u", 5, "r")


def test_older_subscriptions_lack_the_newer_fields():
    older = read_subscription(put_versioned(SUBSCRIPTION, 1))
    assert older.owned_partitions == SUBSCRIPTION.owned_partitions
    assert (older.generation_id, older.rack_id) == (-1, None)


def test_a_newer_version_is_read_as_the_newest_known():
    newer = b"\x00\x09" + put_versioned(SUBSCRIPTION, 3)[2:] + b"fields of the future"
    assert read_subscription(newer) == SUBSCRIPTION


def test_assignments_come_back():
    assignment = ConsumerProtocolAssignment(
        assigned_partitions=[TopicPartitions(topic="t", partitions=[1])]
    )
    raw = put_versioned(assignment, 0)
    assert raw == bytes.fromhex("0000 00000001 0001 74 00000001 00000001 ffffffff")
    assert read_assignment(raw) == assignment


def test_keys_are_distinguished_by_their_version():
    position = OffsetCommitKey(group="g", topic="t", partition=3)
    raw = put_versioned(position, 1)
    assert raw == bytes.fromhex("0001 0001 67 0001 74 00000003")
    assert read_key(raw) == read_key(b"\x00\x00" + raw[2:]) == position
    assert read_key(bytes.fromhex("0002 0001 67")) == GroupMetadataKey(group="g")


def test_keys_of_an_unknown_version_are_skipped():
    assert read_key(bytes.fromhex("0003 0001 67")) is None


@pytest.mark.parametrize(
    ("version", "layout"),
    [
        (0, "0000 0000000000000007 0001 6d 0000000000000009"),
        (1, "0001 0000000000000007 0001 6d 0000000000000009 ffffffffffffffff"),
        (2, "0002 0000000000000007 0001 6d 0000000000000009"),
        (3, "0003 0000000000000007 ffffffff 0001 6d 0000000000000009"),
        (4, "0004 0000000000000007 ffffffff 02 6d 0000000000000009 00"),
    ],
)
def test_offset_values_of_every_version_have_the_published_layout(version, layout):
    value = OffsetCommitValue(offset=7, metadata="m", commit_timestamp=9)
    assert put_versioned(value, version) == bytes.fromhex(layout)
    assert read_offset_value(bytes.fromhex(layout)) == value


def test_group_values_have_the_published_layout():
    member = GroupMember(
        member_id="m",
        client_id="c",
        client_host="/h",
        rebalance_timeout=1,
        session_timeout=2,
        subscription=b"s",
        assignment=b"a",
    )
    value = GroupMetadataValue(
        protocol_type="consumer",
        generation=3,
        protocol="range",
        leader=None,
        current_state_timestamp=4,
        members=[member],
    )
    raw = put_versioned(value, VALUE_VERSION)
    assert raw == bytes.fromhex(
        "0003 0008 636f6e73756d6572 00000003 0005 72616e6765 ffff 0000000000000004 00000001"
        "0001 6d ffff 0001 63 0002 2f68 00000001 00000002 00000001 73 00000001 61"
    )
    assert read_group_value(raw) == value


@pytest.mark.parametrize("read", [read_offset_value, read_group_value])
def test_values_of_an_unknown_version_are_refused(read):
    with pytest.raises(ProtocolError, match="version 5; 4 is the newest"):
        read(b"\x00\x05" + bytes(100))


@pytest.mark.parametrize("raw", [b"", b"\x00", b"\xff\xff", b"\x80\x00 and more"])
def test_a_cut_or_negative_version_is_refused(raw):
    with pytest.raises(ProtocolError):
        get_version(raw)
