"""Assignors give out every partition, evenly; other clients read what members write of it."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka.coordinator.assignors.sticky.sticky_assignor import StickyPartitionAssignor
from kafka.protocol.consumer.metadata import ConsumerProtocolAssignment as ForeignAssignment
from kafka.protocol.consumer.metadata import ConsumerProtocolSubscription as ForeignSubscription

from kdist.client.consumer.assignors import ASSIGNORS, Assignment, Member, assign_sticky
from kdist.client.consumer.subscriptions import (
    read_member,
    read_partitions,
    write_assignment,
    write_subscription,
)
from kdist.model import TopicPartition

TOPICS = ("a", "b", "c")
COUNTS = st.dictionaries(st.sampled_from(TOPICS), st.integers(0, 12), min_size=1)
NAMES = st.lists(st.sampled_from("klmnopqrst"), min_size=1, max_size=7, unique=True)


@st.composite
def groups(draw: st.DrawFn) -> list[Member]:
    """Groups of members that subscribe to some topics each; some members are static."""
    wanted = st.frozensets(st.sampled_from(TOPICS), min_size=1)
    return [
        Member(name, draw(wanted), instance_id=draw(st.none() | st.just(f"i-{name}")))
        for name in draw(NAMES)
    ]


def alike(names: list[str]) -> list[Member]:
    return [Member(name, frozenset(TOPICS)) for name in names]


def owning(members: list[Member], held: Assignment, generation: int) -> list[Member]:
    """The members, owning what they were assigned."""
    return [
        member._replace(owned=tuple(held.get(member.id, ())), generation=generation)
        for member in members
    ]


def check_complete(counts: dict[str, int], members: list[Member], found: Assignment) -> None:
    """Each subscribed partition has one owner, and the owner subscribes to its topic."""
    assert set(found) == {member.id for member in members}
    wanted = {member.id: member.topics for member in members}
    taken = Counter(each for held in found.values() for each in held)
    asked = {topic for member in members for topic in member.topics}
    assert taken == {
        TopicPartition(t, n): 1 for t, count in counts.items() if t in asked for n in range(count)
    }
    assert all(each.topic in wanted[who] for who, held in found.items() for each in held)


def check_even(members: list[Member], found: Assignment) -> None:
    """No member has two partitions more than another that could take one of them."""
    for rich, held in found.items():
        for member in members:
            if any(each.topic in member.topics for each in held):
                assert len(held) - len(found[member.id]) <= 1, (rich, member.id)


PARTITIONS = st.frozensets(st.builds(TopicPartition, st.sampled_from("abc"), st.integers(0, 9)))
EXAMPLE = Member(
    "m", frozenset({"b", "a"}), "i", (TopicPartition("a", 1), TopicPartition("b", 0)), 7
)


@pytest.mark.parametrize("name", ASSIGNORS)
@given(counts=COUNTS, members=groups(), seed=st.integers())
def test_every_partition_has_one_owner_whatever_the_order_of_members(
    name: str, counts: dict[str, int], members: list[Member], seed: int
) -> None:
    found = ASSIGNORS[name].assign(counts, members)
    check_complete(counts, members, found)
    random.Random(seed).shuffle(members)
    assert ASSIGNORS[name].assign(counts, members) == found


@given(counts=COUNTS, members=groups())
def test_sticky_shares_are_even(counts: dict[str, int], members: list[Member]) -> None:
    check_even(members, assign_sticky(counts, members))


@given(counts=COUNTS, names=NAMES, joining=NAMES, leaving=st.integers(0, 5))
def test_sticky_moves_only_what_balance_asks_for(
    counts: dict[str, int], names: list[str], joining: list[str], leaving: int
) -> None:
    before = assign_sticky(counts, alike(names))
    staying = names[leaving:]
    members = owning(alike(staying), before, 1) + alike([n for n in joining if n not in names])
    if not members:
        return
    after = assign_sticky(counts, members)
    check_complete(counts, members, after)
    check_even(members, after)
    # With the same topics for all, the fewest possible moves: what is above a fair share.
    total = sum(counts.values())
    least, richer = divmod(total, len(members))
    sizes = sorted((len(before.get(m.id, ())) for m in members), reverse=True)
    fair = [least + (index < richer) for index in range(len(members))]
    kept = sum(len(set(before.get(m.id, ())) & set(after[m.id])) for m in members)
    assert kept == sum(min(size, share) for size, share in zip(sizes, fair, strict=True))


@given(counts=COUNTS, members=groups())
def test_sticky_repeats_its_own_assignment(counts: dict[str, int], members: list[Member]) -> None:
    found = assign_sticky(counts, members)
    assert assign_sticky(counts, owning(members, found, 3)) == found


@given(counts=COUNTS, names=NAMES, joining=NAMES)
def test_cooperative_never_assigns_what_another_still_owns(
    counts: dict[str, int], names: list[str], joining: list[str]
) -> None:
    assign = ASSIGNORS["cooperative-sticky"].assign
    held = assign(counts, alike(names))
    newcomers = alike([name for name in joining if name not in names])
    members = owning(alike(names), held, 1) + newcomers
    first = assign(counts, members)
    for member in members:
        for other in members:
            if other is not member:
                assert not set(first[member.id]) & set(other.owned)
    # What was withheld is free in the next generation: then all is assigned, and stays.
    kept = {m.id: [each for each in m.owned if each in first[m.id]] for m in members}
    second = assign(counts, owning(members, {n: first[n] for n in kept}, 2))
    check_complete(counts, members, second)
    check_even(members, second)
    assert assign(counts, owning(members, second, 3)) == second


def test_of_two_claims_the_later_generation_wins() -> None:
    partition = TopicPartition("a", 0)
    wants = frozenset("a")
    old = Member("k", wants, owned=(partition,), generation=4)
    new = Member("l", wants, owned=(partition,), generation=5)
    assert assign_sticky({"a": 1}, [old, new]) == {"k": [], "l": [partition]}


def test_ranges_are_javas() -> None:
    members = [Member(name, frozenset({"a", "b"})) for name in ("m2", "m1", "m3")]
    found = ASSIGNORS["range"].assign({"a": 4, "b": 2}, members)
    assert {name: [str(each) for each in held] for name, held in found.items()} == {
        "m1": ["a-0", "a-1", "b-0"],
        "m2": ["a-2", "b-1"],
        "m3": ["a-3"],
    }


def test_round_robin_is_javas() -> None:
    members = [Member("m1", frozenset({"a", "b"})), Member("m2", frozenset({"b"}))]
    found = ASSIGNORS["roundrobin"].assign({"a": 2, "b": 3}, members)
    assert {name: [str(each) for each in held] for name, held in found.items()} == {
        "m1": ["a-0", "a-1", "b-1"],
        "m2": ["b-0", "b-2"],
    }


def test_static_members_come_first_and_by_their_instance_ids() -> None:
    wants = frozenset("a")
    members = [Member("k", wants), Member("z", wants, "1"), Member("m", wants, "2")]
    found = ASSIGNORS["range"].assign({"a": 4}, members)
    assert [len(found[name]) for name in ("z", "m", "k")] == [2, 1, 1]
    assert found["z"][0].partition == 0


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
