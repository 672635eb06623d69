"""The requests for one broker, and those that wait until the controller is known."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Coroutine
from typing import Any, cast

import pytest

from kdist.config.addresses import Listener
from kdist.config.topic import TopicSettings
from kdist.controller.channels import BrokerRequestBatch
from kdist.controller.context import ControllerContext, LiveBroker, Topic
from kdist.controller.controller import ControllerStatus
from kdist.controller.requests import (
    ControllerIdAndEpoch,
    leader_and_isr,
    stop_replica,
    update_metadata,
)
from kdist.controller.term import ControllerTerm
from kdist.model import LeaderAndIsr, TopicPartition
from kdist.protocol.leader_and_isr import FULL, INCREMENTAL
from kdist.testing.virtual_clock import VirtualClock
from kdist.testing.virtual_loop import VirtualLoop
from kdist.zk.registration import BrokerRegistration, Endpoint

CONTROLLER = ControllerIdAndEpoch(controller_id=1, controller_epoch=9)
NEW_ID, OLD_ID = uuid.UUID(int=2), uuid.UUID(int=1)
FIRST, SECOND = TopicPartition("clicks", 0), TopicPartition("clicks", 1)


def live(broker_id: int) -> LiveBroker:
    inner = Listener("INNER", f"inner-{broker_id}", 9091)
    outer = Listener("OUTER", f"outer-{broker_id}", 9092)
    endpoints = (Endpoint(outer, "SSL"), Endpoint(inner, "PLAINTEXT"))
    return LiveBroker(broker_id, 70 + broker_id, BrokerRegistration(endpoints, 0, "r1"), inner)


def cluster() -> ControllerContext:
    """Broker 1 leads partition 0; partition 1 is on broker 2, which is down."""
    made = ControllerContext(lambda _: TopicSettings())
    made.brokers = {1: live(1), 3: live(3)}
    made.put_topic(Topic("clicks", NEW_ID, {0: (1, 3), 1: (2,)}, 0, adding={0: (3,)}))
    made.put_states(
        {
            FIRST: LeaderAndIsr(1, 0, (1,), 9, 0, eligible=(3,)),
            SECOND: LeaderAndIsr(-1, 4, (2,), 8, 6),
        }
    )
    return made


TERM = cast(ControllerTerm, object())


def run(scenario: Coroutine[Any, Any, None]) -> None:
    loop = VirtualLoop(VirtualClock())
    try:
        loop.run_until_complete(scenario)
    finally:
        loop.close()


def test_a_replica_is_told_of_its_own_partitions_and_where_their_leader_is() -> None:
    request = leader_and_isr(cluster(), CONTROLLER, live(3), [FIRST, SECOND], is_full=False)
    assert (request.type, request.broker_epoch, request.controller_epoch) == (INCREMENTAL, 73, 9)
    [topic] = request.topic_states
    [state] = topic.partition_states
    assert (topic.topic_id, state.partition_index, state.leader) == (NEW_ID, 0, 1)
    assert state.is_new
    assert (state.adding_replicas, state.eligible_replicas) == ([3], [3])
    [leader] = request.live_leaders
    assert (leader.broker_id, leader.host_name, leader.port) == (1, "inner-1", 9091)


def test_a_full_request_has_all_partitions_of_the_broker_whatever_changed() -> None:
    request = leader_and_isr(cluster(), CONTROLLER, live(1), [], is_full=True)
    assert request.type == FULL
    assert [topic.topic_name for topic in request.topic_states] == ["clicks"]


def test_metadata_has_every_endpoint_rack_and_offline_replica() -> None:
    request = update_metadata(cluster(), CONTROLLER, live(1), [SECOND], {}, is_full=False)
    [topic] = request.topic_states
    [state] = topic.partition_states
    assert (state.leader, state.leader_epoch, state.offline_replicas) == (-1, 4, [2])
    assert [broker.id for broker in request.live_brokers] == [1, 3]
    first = request.live_brokers[0]
    assert first.rack == "r1"
    assert [(e.listener, e.host, e.security_protocol) for e in first.endpoints] == [
        ("OUTER", "outer-1", 1),
        ("INNER", "inner-1", 0),
    ]


def test_partitions_of_a_deleted_topic_come_before_those_of_the_one_created_again() -> None:
    deleted = {FIRST: OLD_ID, TopicPartition("clicks", 7): OLD_ID}
    request = update_metadata(cluster(), CONTROLLER, live(1), [FIRST], deleted, is_full=False)
    old, new = request.topic_states
    assert (old.topic_id, new.topic_id) == (OLD_ID, NEW_ID)
    assert [(state.partition_index, state.leader) for state in old.partition_states] == [
        (0, -2),
        (7, -2),
    ]


def test_a_full_order_names_topics_that_cannot_be_read_and_says_nothing_of_them() -> None:
    made = cluster()
    made.unreadable = {"views"}
    told = leader_and_isr(made, CONTROLLER, live(1), [], is_full=True).topic_states
    assert [(each.topic_name, len(each.partition_states)) for each in told] == [
        ("clicks", 1),
        ("views", 0),
    ]
    assert not leader_and_isr(made, CONTROLLER, live(1), [], is_full=False).topic_states


def test_a_topic_queued_for_deletion_is_led_by_nobody_and_told_to_be_gone() -> None:
    queued_for_deletion = cluster()
    queued_for_deletion.queue_for_deletion("clicks")
    assert (
        leader_and_isr(queued_for_deletion, CONTROLLER, live(1), [FIRST], is_full=True).topic_states
        == []
    )
    request = update_metadata(queued_for_deletion, CONTROLLER, live(1), [FIRST], {}, is_full=False)
    assert request.topic_states == []
    [topic] = update_metadata(
        queued_for_deletion, CONTROLLER, live(1), [], {}, is_full=True
    ).topic_states
    assert (topic.topic_id, [s.leader for s in topic.partition_states]) == (NEW_ID, [-2, -2])
    [stopped] = stop_replica(
        queued_for_deletion, CONTROLLER, live(1), {SECOND, FIRST}, set(), {SECOND}
    ).topic_states
    assert [state.partition_index for state in stopped.partition_states] == [0, 1]
    assert all(s.delete_partition and s.leader_epoch == -2 for s in stopped.partition_states)


@pytest.mark.parametrize(
    ("leader", "isr", "is_stopped"), [(1, (1,), True), (1, (1, 3), False), (3, (3,), False)]
)
def test_a_replica_is_stopped_once_it_is_out_of_the_isr(
    leader: int, isr: tuple[int, ...], is_stopped: bool
) -> None:
    made = cluster()
    made.put_states({FIRST: LeaderAndIsr(leader, 5, isr, 9, 7)})
    topics = stop_replica(made, CONTROLLER, live(3), set(), set(), {FIRST, SECOND}).topic_states
    found = [
        (each.partition_index, each.leader_epoch, each.delete_partition)
        for topic in topics
        for each in topic.partition_states
    ]
    assert found == [(0, 5, False), (1, 4, False)][0 if is_stopped else 1 :]


def test_a_replica_that_was_moved_away_is_deleted_unless_a_newer_epoch_is_known_there() -> None:
    [topic] = stop_replica(cluster(), CONTROLLER, live(3), set(), {SECOND}, {SECOND}).topic_states
    [state] = topic.partition_states
    assert (state.partition_index, state.leader_epoch, state.delete_partition) == (1, 4, True)


def test_replicas_of_brokers_that_are_gone_or_about_to_stop_are_offline() -> None:
    made = cluster()
    made.shutting_down[3] = 73
    request = update_metadata(made, CONTROLLER, live(1), [FIRST, SECOND], {}, is_full=False)
    [topic] = request.topic_states
    assert [each.offline_replicas for each in topic.partition_states] == [[3], [2]]


def test_a_full_request_includes_deletions_made_while_the_broker_was_down() -> None:
    deleted = {TopicPartition("old", 0): OLD_ID}
    told = update_metadata(cluster(), CONTROLLER, live(1), [], deleted, is_full=True).topic_states
    assert [(each.topic_name, each.topic_id) for each in told] == [
        ("old", OLD_ID),
        ("clicks", NEW_ID),
    ]


def test_pending_requests_merge_and_know_when_they_are_empty() -> None:
    pending = BrokerRequestBatch()
    assert pending.is_empty
    pending.add(BrokerRequestBatch(leaders={FIRST: None}, deleted={SECOND: OLD_ID}))
    pending.add(BrokerRequestBatch(leaders={FIRST: None, SECOND: None}, has_brokers=True))
    assert ([*pending.leaders], pending.deleted) == ([FIRST, SECOND], {SECOND: OLD_ID})
    assert not pending.is_empty
    assert pending.has_metadata


@pytest.mark.parametrize("known", [TERM, None])
def test_a_known_controller_is_returned_even_without_time_to_wait(
    known: ControllerTerm | None,
) -> None:
    async def scenario() -> None:
        status = ControllerStatus()
        status.set(known)
        assert await status.term(0) is known
        assert await status.term(-1) is known

    run(scenario())


def test_at_first_no_controller_is_known_and_a_wait_times_out() -> None:
    async def scenario() -> None:
        status = ControllerStatus()
        start_s = asyncio.get_running_loop().time()
        with pytest.raises(TimeoutError):
            await status.term(700)
        assert asyncio.get_running_loop().time() - start_s == pytest.approx(0.7)
        assert not status.is_known

    run(scenario())


@pytest.mark.parametrize("known", [TERM, None])
def test_a_waiter_gets_the_controller_once_it_is_known(known: ControllerTerm | None) -> None:
    async def scenario() -> None:
        status = ControllerStatus()
        waits = asyncio.ensure_future(status.term(700))
        await asyncio.sleep(0.1)
        status.set(known)
        assert await waits is known

    run(scenario())


def test_a_term_that_ends_before_the_waiter_is_woken_is_not_handed_out() -> None:
    async def scenario() -> None:
        status = ControllerStatus()
        waits = asyncio.ensure_future(status.term(700))
        await asyncio.sleep(0.1)
        status.set(TERM)
        status.forget()
        await asyncio.sleep(0.1)
        assert not waits.done()
        status.set(None)
        assert await waits is None

    run(scenario())
