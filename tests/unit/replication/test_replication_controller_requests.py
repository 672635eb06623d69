"""Controller requests that arrive faster than the disk follows, and those that are fenced."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kdist.errors import Error
from kdist.model import TopicPartition
from kdist.protocol.leader_and_isr import FULL, INCREMENTAL, LeaderAndIsrTopic
from kdist.protocol.update_metadata import UpdateMetadataRequest
from kdist.replication.leadership import fence
from tests.examples import examples
from tests.unit.replication.replication_world import (
    BROKER,
    World,
    append,
    error_of,
    leader_request,
    stop_request,
)

# --- any sequence of requests ---------------------------------------------------------------------


@examples(80, deadline=None)
@given(
    st.lists(
        st.tuples(st.sampled_from(["lead", "delete", "again", "pass", "append"]), st.integers(0, 2))
    ),
    st.integers(0, 99),
)
def test_requests_faster_than_the_disk_end_in_the_state_of_the_last_ones(
    steps: list[tuple[str, int]], seed: int
) -> None:
    """The model: the topic id of each partition that the controller created and did not delete."""
    world = World(seed=seed)
    model: dict[TopicPartition, uuid.UUID] = {}
    answered: list[int] = []
    sent = 0
    for step, number in steps:
        key = TopicPartition("clicks", number)
        tell = lambda _answer, sent=sent: answered.append(sent)  # noqa: E731
        if step == "pass":
            world.settle(number)
        elif step == "append":
            if (hosted := world.replicas.partitions.get(key)) is not None:
                append(world, hosted, b"x")
        elif step == "delete" or (step == "again" and key in model):
            world.replicas.apply_stop_replica(stop_request(key, -2, delete=True), tell)
            sent += 1
            model.pop(key, None)
        if step in ("lead", "again"):
            made = model.setdefault(key, uuid.UUID(int=1000 + sent))
            tell = lambda _answer, sent=sent: answered.append(sent)  # noqa: E731
            world.replicas.apply_leader_and_isr(leader_request([key], made), 7, tell)
            sent += 1
    world.settle(5000)
    assert answered == list(range(sent))
    hosted_ids = {each.key: each.topic_id for each in world.replicas.partitions.values()}
    assert hosted_ids == model
    assert set(world.directory.logs) == set(model)
    assert not world.failures


def test_many_partitions_are_deleted_a_few_per_turn_of_the_loop() -> None:
    world = World()
    many = [TopicPartition("clicks", number) for number in range(120)]
    for key in many:
        append(world, world.lead(key), b"x")
    world.settle()
    request = stop_request(many[0], -2, delete=True)
    for key in many[1:]:
        request.topic_states += stop_request(key, -2, delete=True).topic_states
    before, later = world.disk.calls["rename"], world.tasks.call_soon
    each_turn: list[int] = []

    def call_soon(work: Callable[[], None]) -> None:
        def tick() -> None:
            start = world.disk.calls["rename"]
            work()
            each_turn.append(world.disk.calls["rename"] - start)

        later(tick)

    world.tasks.call_soon = call_soon  # type: ignore[method-assign]
    world.replicas.apply_stop_replica(request, lambda _answer: None)
    assert world.disk.calls["rename"] == before
    world.settle()
    assert not world.directory.logs
    assert sum(each_turn) == len(many)
    assert max(each_turn) == 50


@pytest.mark.parametrize(
    ("controller_epoch", "broker_epoch", "error"),
    [
        (1, 5, Error.NONE),
        (2, -1, Error.STALE_BROKER_EPOCH),
        (0, 5, Error.STALE_CONTROLLER_EPOCH),
        (1, 4, Error.STALE_BROKER_EPOCH),
    ],
)
def test_metadata_updates_are_fenced_like_other_requests(
    controller_epoch: int, broker_epoch: int, error: Error
) -> None:
    request = UpdateMetadataRequest(
        controller_id=9,
        controller_epoch=controller_epoch,
        broker_epoch=broker_epoch,
        live_brokers=[],
    )
    assert fence(request, 1, 5) is error


# --- full requests --------------------------------------------------------------------------------


def test_partitions_missing_from_a_full_request_are_resigned_and_kept_on_disk() -> None:
    world = World()
    keys = [TopicPartition(name, 0) for name in ("clicks", "gone", "doubtful")]
    for key in keys:
        append(world, world.lead(key), b"x")
        assert error_of(world.tell(key, leader_epoch=3, partition_epoch=5)) is Error.NONE
    request = leader_request(keys[:1])
    request.topic_states[0].partition_states[0].leader_epoch = 3
    request.topic_states.append(LeaderAndIsrTopic(topic_name="doubtful", partition_states=[]))
    for kind, led in ((INCREMENTAL, [True, True, True]), (FULL, [True, False, True])):
        request.type = kind
        world.replicas.apply_leader_and_isr(request, 7, lambda _: None)
        world.settle()
        assert [world.replicas.partitions[key].is_leader for key in keys] == led
    assert [world.directory.logs[key].end_offset for key in keys] == [1, 1, 1]
    assert error_of(world.tell(keys[1])) is Error.NONE  # its znodes are recreated, from epoch 0 on
    assert world.replicas.partitions[keys[1]].is_leader


def test_a_partition_that_is_followed_and_missing_from_a_full_request_is_followed_no_longer() -> (
    None
):
    world = World()
    followed: dict[str, Any] = {"leader": 2, "isr": [2, BROKER], "replicas": [2, BROKER]}
    assert error_of(world.tell(leader_epoch=3, partition_epoch=5, **followed)) is Error.NONE
    request = leader_request([TopicPartition("other", 0)])
    request.type = FULL
    world.replicas.apply_leader_and_isr(request, 7, lambda _: None)
    world.settle()
    state = world.replicas.partitions[TopicPartition("clicks", 0)].state
    assert (state.leader, state.leader_epoch) == (-1, -1)
    assert error_of(world.tell(leader_epoch=0, **followed)) is Error.NONE  # recreated


def test_a_client_of_a_resigned_leader_is_sent_to_nobody() -> None:
    world = World()
    partition = world.lead()
    world.replicas.drain(lambda: None)
    world.settle()
    assert (partition.is_leader, partition.state.leader) == (False, -1)


@pytest.mark.parametrize(("epochs", "renewed"), [((5, 5), 0), ((5, 6), 1), ((-1, 5), 0)])
def test_leaders_are_told_again_once_the_broker_has_registered_anew(
    epochs: tuple[int, int], renewed: int
) -> None:
    world, heard = World(), list[int]()
    world.replicas.broker_epoch = epochs[0]
    world.replicas._fetchers.reconnect = lambda: heard.append(1)  # type: ignore[method-assign]
    world.replicas.know_epoch(epochs[1])
    assert (len(heard), world.replicas.broker_epoch) == (renewed, epochs[1])
