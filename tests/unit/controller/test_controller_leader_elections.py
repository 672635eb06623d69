"""Which partitions are given back to their preferred replicas, and at what rate."""

from __future__ import annotations

import uuid
from collections.abc import Iterable

import pytest

from kdist.config.addresses import Listener
from kdist.config.topic import TopicSettings
from kdist.controller.context import ControllerContext, LiveBroker, Topic
from kdist.controller.elections import (
    choose_imbalanced,
    imbalanced,
    plan_for_preferred,
    plan_for_unclean,
)
from kdist.model import LeaderAndIsr, TopicPartition
from kdist.zk.registration import BrokerRegistration


def cluster(leaders: Iterable[int], isr: tuple[int, ...] = (1, 2, 3)) -> ControllerContext:
    """A topic whose partitions have replicas 1, 2, 3 in turn for preferred, and these leaders."""
    made = ControllerContext(lambda _: TopicSettings())
    for i in (1, 2, 3):
        listener = Listener("PLAINTEXT", f"host-{i}", 9092)
        made.brokers[i] = LiveBroker(i, 1, BrokerRegistration((), 0), listener)
    found = dict(enumerate(leaders))
    assignment = {i: tuple((i + j) % 3 + 1 for j in range(3)) for i in found}
    made.put_topic(Topic("clicks", uuid.UUID(int=1), assignment, 0))
    states = {i: LeaderAndIsr(leader, 3, isr, 1, 5) for i, leader in found.items()}
    made.put_states({TopicPartition("clicks", i): state for i, state in states.items()})
    return made


def chosen(made: ControllerContext, percentage: int = 10, most: int = 100) -> list[int]:
    return [each.partition for each in choose_imbalanced(made, percentage, most)]


def test_nothing_is_chosen_where_preferred_replicas_lead() -> None:
    assert chosen(cluster([1, 2, 3] * 4)) == []


def test_a_partition_on_its_way_to_another_preferred_replica_is_not_led_by_a_wrong_one() -> None:
    made, partition = cluster([2]), TopicPartition("clicks", 0)
    assert imbalanced(made) == {partition}
    made.put_topic(made.topics["clicks"]._replace(adding={0: (1,)}))
    assert not imbalanced(made)
    assert chosen(made) == []


def test_a_broker_that_lacks_no_more_than_the_percentage_is_left_alone() -> None:
    leaders = [1, 2, 3] * 10
    leaders[0] = 2
    assert chosen(cluster(leaders), percentage=10) == []
    assert chosen(cluster(leaders), percentage=9) == [0]


def test_brokers_take_turns_and_a_check_has_a_limit() -> None:
    made = cluster([3, 3, 3] * 3)
    assert chosen(made) == [0, 1, 3, 4, 6, 7]
    assert chosen(made, most=3) == [0, 1, 3]


def test_a_preferred_replica_that_is_not_in_sync_or_about_to_stop_or_gone_is_not_chosen() -> None:
    assert chosen(cluster([2, 3, 1], isr=(2, 3))) == [1, 2]
    made = cluster([2, 3, 1])
    made.shutting_down[2] = 1
    assert chosen(made) == [0, 2]
    del made.brokers[3]
    assert chosen(made) == [0]


def test_partitions_that_nobody_leads_or_that_are_deleted_are_not_chosen() -> None:
    made = cluster([-1, 2, 3])
    assert chosen(made) == []
    made = cluster([2, 2, 3])
    made.queue_for_deletion("clicks")
    assert chosen(made) == []


def test_a_preferred_leader_is_elected_with_the_isr_as_it_was() -> None:
    made = cluster([3, 2], isr=(2, 3, 1))
    partitions = [TopicPartition("clicks", i) for i in range(2)]
    expected = LeaderAndIsr(1, 4, (2, 3, 1), 9, 6)
    assert plan_for_preferred(made, partitions, 9) == {partitions[0]: expected}


@pytest.mark.parametrize(
    ("emptied", "alive", "leader"),
    [((), {2, 3}, 2), ((2,), {2, 3}, 3), ((2, 3), {2, 3}, 2), ((), set(), None)],
)
def test_an_ordered_election_takes_a_new_disk_last(
    emptied: tuple[int, ...], alive: set[int], leader: int | None
) -> None:
    made, partition = cluster([-1], isr=(1,)), TopicPartition("clicks", 0)
    state = LeaderAndIsr(-1, 3, (1,), 1, 5, emptied=emptied)
    made.put_states({partition: state})
    made.brokers = {i: made.brokers[i] for i in alive}
    plan = plan_for_unclean(made, [partition], 9)
    if leader is None:
        assert plan == {}
    else:
        assert plan == {partition: LeaderAndIsr(leader, 4, (leader,), 9, 6, is_recovering=True)}


def test_an_ordered_election_is_clean_where_it_can_be_and_touches_no_living_leader() -> None:
    made, partition = cluster([-1], isr=(3,)), TopicPartition("clicks", 0)
    assert plan_for_unclean(made, [partition], 9) == {partition: LeaderAndIsr(3, 4, (3,), 9, 6)}
    assert plan_for_unclean(cluster([2]), [partition], 9) == {}
