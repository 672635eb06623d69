"""Subscriptions and assignments are byte for byte what other clients write and read."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka.coordinator.assignors.sticky.sticky_assignor import StickyPartitionAssignor
from kafka.protocol.consumer.metadata import ConsumerProtocolAssignment as ForeignAssignment
from kafka.protocol.consumer.metadata import ConsumerProtocolSubscription as ForeignSubscription

from kdist.client.consumer.assignors import ASSIGNORS, Member
from kdist.client.consumer.subscriptions import (
    read_member,
    read_partitions,
    write_assignment,
    write_subscription,
)
from kdist.model import TopicPartition

PARTITIONS = st.frozensets(st.builds(TopicPartition, st.sampled_from("abc"), st.integers(0, 9)))
EXAMPLE = Member(
    "m", frozenset({"b", "a"}), "i", (TopicPartition("a", 1), TopicPartition("b", 0)), 7
)


@pytest.mark.parametrize("name", ASSIGNORS)
@given(
    topics=st.frozensets(st.sampled_from("abc")), owned=PARTITIONS, generation=st.integers(-1, 9)
)
def test_a_subscription_is_read_as_it_was_written(
    name: str, topics: frozenset[str], owned: frozenset[TopicPartition], generation: int
) -> None:
    member = Member("m", topics, "i", tuple(sorted(owned)), generation)
    assert read_member("m", "i", write_subscription(ASSIGNORS[name], member)) == member


@given(PARTITIONS)
def test_an_assignment_is_read_as_it_was_written(partitions: frozenset[TopicPartition]) -> None:
    assert read_partitions(write_assignment(partitions)) == tuple(sorted(partitions))


def test_an_empty_assignment_has_no_partitions() -> None:
    assert read_partitions(b"") == ()


def test_the_bytes_are_those_of_the_protocol() -> None:
    assert write_subscription(ASSIGNORS["cooperative-sticky"], EXAMPLE, "r1").hex(" ") == (
        "00 03 "  # version
        "00 00 00 02 00 01 61 00 01 62 "  # topics
        "00 00 00 04 00 00 00 07 "  # user data: the generation
        "00 00 00 02 00 01 61 00 00 00 01 00 00 00 01 00 01 62 00 00 00 01 00 00 00 00 "  # owned
        "00 00 00 07 "  # generation
        "00 02 72 31"  # rack
    )
    assert write_assignment([TopicPartition("a", 1), TopicPartition("a", 0)]).hex(" ") == (
        "00 03 00 00 00 01 00 01 61 00 00 00 02 00 00 00 00 00 00 00 01 ff ff ff ff"
    )


def test_kafka_python_reads_what_we_write() -> None:
    found = ForeignSubscription.decode(write_subscription(ASSIGNORS["range"], EXAMPLE, "r1"))
    assert list(found.topics) == ["a", "b"]
    assigned = ForeignAssignment.decode(write_assignment(EXAMPLE.owned))
    assert [(each.topic, list(each.partitions)) for each in assigned.assigned_partitions] == [
        ("a", [1]),
        ("b", [0]),
    ]


def test_sticky_user_data_is_what_kafka_python_expects() -> None:
    data = ForeignSubscription.decode(write_subscription(ASSIGNORS["sticky"], EXAMPLE)).user_data
    assert data.hex(" ") == (
        "00 00 00 02 00 01 61 00 00 00 01 00 00 00 01 00 01 62 00 00 00 01 00 00 00 00 00 00 00 07"
    )
    assert StickyPartitionAssignor.name == "sticky"


@pytest.mark.parametrize("user_data", [b"a user's own", b"", b"\x00\x00\x00\x01"])
def test_foreign_user_data_is_ignored_without_an_error(user_data: bytes) -> None:
    metadata = b"\x00\x00" + b"\x00\x00\x00\x01\x00\x01a" + len(user_data).to_bytes(4) + user_data
    member = read_member("m", None, metadata)
    assert (member.topics, member.owned) == (frozenset("a"), ())
