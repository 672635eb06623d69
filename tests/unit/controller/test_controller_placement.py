"""Where the replicas of new partitions go: balance, hosts, racks; what a person may choose."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kdist.controller.placement import check_explicit, interleave, place, start_of
from kdist.errors import ApiError, Error
from kdist.model import Broker


def racked(racks: int, hosts: int, disks: int) -> list[Broker]:
    """`hosts` in each of `racks`, with `disks` brokers each; ids count through."""
    places = [(r, h) for r in range(racks) for h in range(hosts) for _ in range(disks)]
    return [Broker(i, f"host-{r}-{h}", 9092 + i, f"rack-{r}") for i, (r, h) in enumerate(places)]


def loose(hosts: list[str]) -> list[Broker]:
    """Brokers on the named hosts, without racks."""
    return [Broker(i, host, 9092) for i, host in enumerate(hosts)]


fleets = st.builds(racked, st.integers(1, 4), st.integers(1, 4), st.integers(1, 4))


def test_racks_take_turns_and_hosts_within_a_rack() -> None:
    order = interleave(racked(racks=2, hosts=2, disks=2))
    assert [broker.host for broker in order] == [
        "host-0-0", "host-1-0", "host-0-1", "host-1-1",
        "host-0-0", "host-1-0", "host-0-1", "host-1-1",
    ]  # fmt: skip


@given(fleets, st.randoms())
def test_the_order_does_not_depend_on_who_came_first(fleet, rng) -> None:
    shuffled = list(fleet)
    rng.shuffle(shuffled)
    assert interleave(shuffled) == interleave(fleet)
    assert sorted(interleave(shuffled)) == sorted(fleet)


@given(fleets, st.integers(1, 100), st.integers(0, 50), st.data())
def test_leaders_differ_by_one_partition_at_most(fleet, partitions, start, data) -> None:
    factor = data.draw(st.integers(1, len({b.host for b in fleet})))
    placed = place(interleave(fleet), range(partitions), factor, start)
    leaders = Counter({b.id: 0 for b in fleet})
    leaders.update(replicas[0] for replicas in placed.values())
    assert max(leaders.values()) - min(leaders.values()) <= 1


@given(fleets, st.integers(0, 50), st.data())
def test_hosts_hold_one_replica_and_racks_are_all_used(fleet, start, data) -> None:
    factor = data.draw(st.integers(1, len({b.host for b in fleet})))
    host = {b.id: b.host for b in fleet}
    rack = {b.id: b.rack for b in fleet}
    for replicas in place(interleave(fleet), range(40), factor, start).values():
        assert len({host[r] for r in replicas}) == factor
        use = Counter(rack[r] for r in replicas)
        assert len(use) == min(factor, len(set(rack.values())))
        assert max(use.values()) - min(use.values()) <= 1


@given(st.integers(2, 7), st.integers(0, 20), st.data())
def test_replicas_are_even_over_n_times_n_minus_1_partitions(n, start, data) -> None:
    factor = data.draw(st.integers(1, n))
    order = interleave(loose([f"h{i}" for i in range(n)]))
    placed = place(order, range(n * (n - 1)), factor, start)
    held = Counter(replica for replicas in placed.values() for replica in replicas)
    assert set(held.values()) == {factor * (n - 1)}


@given(fleets, st.integers(1, 20), st.integers(1, 20), st.integers(0, 50))
def test_added_partitions_go_on_where_the_topic_stopped(fleet, old, added, start) -> None:
    order = interleave(fleet)
    whole = place(order, range(old + added), 1, start)
    first = place(order, range(old), 1, start)
    assert first | place(order, range(old, old + added), 1, start_of(order, first)) == whole


def test_a_topic_whose_first_broker_is_gone_goes_on_from_the_head_of_the_list() -> None:
    assert start_of(interleave(loose(["a", "b"])), {0: (7,)}) == 0


def test_a_topic_without_a_partition_0_is_grown_from_the_head_of_the_list() -> None:
    assert start_of(interleave(loose(["a", "b"])), {3: (1,)}) == 0


@pytest.mark.parametrize("factor", [0, -1, 3])
def test_more_replicas_than_hosts_are_refused(factor: int) -> None:
    with pytest.raises(ApiError) as caught:
        place(interleave(loose(["a", "a", "b"])), range(1), factor, 0)
    assert caught.value.error is Error.INVALID_REPLICATION_FACTOR
    assert caught.value.detail == (
        f"a replication factor of {factor} with 2 hosts alive;"
        " a host holds at most one replica of a partition"
    )


def test_no_broker_at_all_is_refused() -> None:
    with pytest.raises(ApiError) as caught:
        place([], range(1), 1, 0)
    assert caught.value.error is Error.INVALID_REPLICATION_FACTOR


@pytest.mark.parametrize(
    ("assignment", "sentence"),
    [
        ({1: [0], 2: [1]}, "not numbered from 0"),
        ({0: [0], 2: [1]}, "not numbered from 0"),
        ({0: [0], 1: [1, 2]}, "differ in their number"),
        ({0: []}, "no replicas"),
        ({0: [1, 1]}, "twice"),
        ({0: [9]}, "broker 9, which is not alive"),
        ({0: [0, 1]}, "two replicas on one host"),
    ],
)
def test_a_chosen_assignment_is_refused_with_a_sentence(assignment, sentence) -> None:
    brokers = {b.id: b for b in loose(["a", "a", "b"])}
    with pytest.raises(ApiError, match=sentence) as caught:
        check_explicit(assignment, 0, brokers)
    assert caught.value.error is Error.INVALID_REPLICA_ASSIGNMENT


def test_a_valid_chosen_assignment_is_taken_as_it_is() -> None:
    brokers = {b.id: b for b in loose(["a", "a", "b"])}
    assert check_explicit({4: [2, 0], 3: [1, 2]}, 3, brokers) == {3: (1, 2), 4: (2, 0)}
