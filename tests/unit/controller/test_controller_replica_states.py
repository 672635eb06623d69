"""The states of replicas follow from the cluster's, and change by the table alone."""

from __future__ import annotations

import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kdist.config.listeners import Listener
from kdist.config.topic import TopicSettings
from kdist.controller.context import ControllerContext, LiveBroker, Topic
from kdist.controller.deletions import Deletions
from kdist.controller.elections import plan_for_broker_change
from kdist.controller.replica_states import (
    ALLOWED,
    DELETION_INELIGIBLE,
    DELETION_STARTED,
    DELETION_SUCCESSFUL,
    NEW,
    NON_EXISTENT,
    OFFLINE,
    ONLINE,
    ReplicaState,
    replica_state,
)
from kdist.model import TopicPartition
from kdist.zk.registration import BrokerRegistration

CLICKS = TopicPartition("clicks", 0)


class World:
    """A topic with one partition on brokers 1 and 2, and whatever happens to them."""

    def __init__(self) -> None:
        self.cluster = ControllerContext(lambda _: TopicSettings())
        self.deletions = Deletions()
        self.epoch = 0

    @property
    def topic(self) -> Topic:
        return Topic("clicks", uuid.UUID(int=1), {0: (1, 2)}, 0)

    def states(self) -> list[ReplicaState]:
        return [replica_state(self.cluster, self.deletions, CLICKS, each) for each in (1, 2)]

    def do(self, event: str) -> None:
        cluster, deletions = self.cluster, self.deletions
        is_queued = "clicks" in cluster.queued_for_deletion
        match event.split():
            case ["come", number]:
                self.epoch += 1
                broker_id = int(number)
                listener = Listener("PLAINTEXT", "host", 9092)
                registration = BrokerRegistration((), 0)
                live = LiveBroker(broker_id, self.epoch, registration, listener)
                cluster.brokers = {**cluster.brokers, broker_id: live}
            case ["go", number]:
                cluster.brokers = {i: b for i, b in cluster.brokers.items() if i != int(number)}
            case ["stop", number] if int(number) in cluster.brokers:
                cluster.shutting_down[int(number)] = cluster.brokers[int(number)].epoch
            case ["create"] if "clicks" not in cluster.topics:
                cluster.put_topic(self.topic)
            case ["elect"]:
                cluster.put_states(plan_for_broker_change(cluster, cluster.partitions(), 1))
            case ["queue"] if "clicks" in cluster.topics and not is_queued:
                cluster.queue_for_deletion("clicks")
                deletions.begin(self.topic)
            case ["delete", number] if is_queued and int(number) in cluster.brokers:
                deletions.complete_replicas(int(number), [CLICKS])
            case ["complete"] if deletions.complete():
                cluster.drop_topics(["clicks"])
                deletions.end("clicks")


EVENTS = (
    *(f"{what} {number}" for what in ("come", "go", "stop", "delete") for number in (1, 2)),
    *("create", "elect", "queue", "complete"),
)


@given(st.lists(st.sampled_from(EVENTS), max_size=40))
def test_every_history_keeps_to_the_table(history: list[str]) -> None:
    world = World()
    before = world.states()
    for event in history:
        world.do(event)
        for was, now in zip(before, world.states(), strict=True):
            assert now is was or now in ALLOWED[was], f"{event}: {was} to {now}"
        before = world.states()


@pytest.mark.parametrize(
    ("history", "expected"),
    [
        ([], [NON_EXISTENT, NON_EXISTENT]),
        (["come 1", "create"], [NEW, NEW]),
        (["come 1", "create", "elect"], [ONLINE, OFFLINE]),
        (["come 1", "create", "elect", "stop 1"], [OFFLINE, OFFLINE]),
        (["come 1", "create", "elect", "stop 1", "come 1"], [ONLINE, OFFLINE]),
        (["come 1", "create", "elect", "queue"], [DELETION_STARTED, DELETION_INELIGIBLE]),
        (
            ["come 1", "create", "elect", "queue", "delete 1"],
            [DELETION_SUCCESSFUL, DELETION_INELIGIBLE],
        ),
    ],
)
def test_the_states_of_two_replicas(history: list[str], expected: list[ReplicaState]) -> None:
    world = World()
    for event in history:
        world.do(event)
    assert world.states() == expected
    waiting = world.deletions.count_left_without(world.cluster.alive)
    assert waiting == expected.count(DELETION_INELIGIBLE)


def test_each_state_can_be_reached_and_left() -> None:
    assert set(ALLOWED) == set(ReplicaState)
    assert {state for after in ALLOWED.values() for state in after} == set(ReplicaState)
    assert all(ALLOWED.values())
