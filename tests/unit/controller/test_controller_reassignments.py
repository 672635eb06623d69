"""Each step of a move: what becomes of the assignment, and of leader and ISR."""

from __future__ import annotations

import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kdist.config.listeners import Listener
from kdist.config.topic import TopicSettings
from kdist.controller.context import Assigned, ControllerContext, LiveBroker, Topic
from kdist.controller.reassignments import (
    Step,
    left_of_request,
    plan_begin,
    plan_cancel,
    plan_completions,
    plan_new_epochs,
)
from kdist.errors import ApiError, Error
from kdist.model import LeaderAndIsr, TopicPartition
from kdist.zk.registration import BrokerRegistration

CLICKS = TopicPartition("clicks", 0)
EPOCH = 9
ALIVE = {1, 2, 3, 4, 5, 6}
MOVING = Assigned((4, 5, 1, 2), (4, 5), (1, 2), (2, 1))  # from 2 and 1


def cluster(
    assigned: Assigned,
    *isr: int,
    leader: int | None = None,
    alive: set[int] | None = None,
    min_isr: int = 2,
    **state: tuple[int, ...],
) -> ControllerContext:
    made = ControllerContext(lambda _: TopicSettings(min_insync_replicas=min_isr))
    for each in ALIVE if alive is None else alive:
        listener = Listener("PLAINTEXT", f"host-{each}", 9092)
        made.brokers[each] = LiveBroker(each, 1, BrokerRegistration((), 0), listener)
    topic = Topic("clicks", uuid.UUID(int=1), {0: (1,), 1: (7,)}, 3)
    made.put_topic(topic.with_assigned({0: assigned}))
    first = isr[0] if leader is None else leader
    made.put_states({CLICKS: LeaderAndIsr(first, 4, isr, 1, 5, **state)})
    return made


def after(leader: int, *isr: int, **state: tuple[int, ...]) -> LeaderAndIsr:
    return LeaderAndIsr(leader, 5, isr, EPOCH, 6, **state)


@pytest.mark.parametrize(
    ("assigned", "isr", "target", "expected"),
    [
        # To others, to one more, to fewer, to the same in another order.
        (Assigned((1, 2)), (1, 2), (3, 4), Assigned((3, 4, 1, 2), (3, 4), (1, 2), (1, 2))),
        (Assigned((1, 2)), (1, 2), (1, 2, 3), Assigned((1, 2, 3), (3,), (), (1, 2))),
        (Assigned((1, 2)), (1, 2), (2,), Assigned((2, 1), (), (1,), (1, 2))),
        (Assigned((1, 2)), (1, 2), (2, 1), Assigned((2, 1))),
        # Another target during a move: what only the first one needed is dropped,
        (MOVING, (1, 2), (4, 6), Assigned((4, 6, 2, 1), (4, 6), (2, 1), (2, 1), (5,))),
        (MOVING, (1, 2, 5), (4, 6), Assigned((4, 6, 2, 1), (4, 6), (2, 1), (2, 1), (5,))),
        # unless it is in sync, and too few others are.
        (MOVING, (1, 5), (4, 6), Assigned((4, 6, 2, 1, 5), (4, 6), (2, 1, 5), (2, 1))),
        # Back: at once, or when enough of the origin are in sync.
        (MOVING, (1, 2, 5), (1, 2), Assigned((1, 2), removed=(4, 5))),
        (MOVING, (1, 5), (1, 2), Assigned((1, 2, 5), (), (5,), (2, 1), (4,))),
        # A former replica whose log is to be deleted yet is one again.
        (Assigned((1,), removed=(2, 3)), (1,), (2,), Assigned((2, 1), (2,), (1,), (1,), (3,))),
    ],
)
def test_a_move_begins(
    assigned: Assigned, isr: tuple[int, ...], target: tuple[int, ...], expected: Assigned
) -> None:
    step = plan_begin(cluster(assigned, *isr), CLICKS, target, EPOCH)
    assert step is not None
    kept = tuple(each for each in isr if each in expected.replicas)
    assert step == Step(expected, after(1, *kept))


@pytest.mark.parametrize(("assigned", "target"), [(Assigned((1, 2)), (1, 2)), (MOVING, (4, 5))])
def test_what_is_there_or_on_its_way_begins_no_move(
    assigned: Assigned, target: tuple[int, ...]
) -> None:
    assert plan_begin(cluster(assigned, 1, 2), CLICKS, target, EPOCH) is None


@pytest.mark.parametrize(
    ("partition", "target", "error"),
    [
        (TopicPartition("views", 0), (1,), Error.UNKNOWN_TOPIC_OR_PARTITION),
        (TopicPartition("clicks", 2), (1,), Error.UNKNOWN_TOPIC_OR_PARTITION),
        (CLICKS, (), Error.INVALID_REPLICA_ASSIGNMENT),
        (CLICKS, (3, 3), Error.INVALID_REPLICA_ASSIGNMENT),
        (CLICKS, (-1,), Error.INVALID_REPLICA_ASSIGNMENT),
        (CLICKS, (1, 8), Error.INVALID_REPLICA_ASSIGNMENT),
    ],
)
def test_a_move_of_nothing_or_to_nobody_is_refused(
    partition: TopicPartition, target: tuple[int, ...], error: Error
) -> None:
    with pytest.raises(ApiError) as raised:
        plan_begin(cluster(Assigned((1, 2)), 1, 2), partition, target, EPOCH)
    assert raised.value.error is error


def test_two_replicas_are_not_moved_to_one_host() -> None:
    made = cluster(Assigned((1, 2)), 1, 2)
    for each in (3, 4):
        shared = made.brokers[each].registration._replace(host="host-3")
        made.brokers[each] = made.brokers[each]._replace(registration=shared)
    with pytest.raises(ApiError, match="on one host"):
        plan_begin(made, CLICKS, (3, 4), EPOCH)
    assert plan_begin(made, CLICKS, (3, 5), EPOCH) is not None


def test_a_replica_that_is_down_may_stay_one() -> None:
    step = plan_begin(cluster(Assigned((1, 2)), 1, alive={1, 3}), CLICKS, (3, 2), EPOCH)
    assert step is not None
    assert step.assigned == Assigned((3, 2, 1), (3,), (1,), (1, 2))


@pytest.mark.parametrize(
    ("isr", "leader", "alive", "expected"),
    [
        ((1, 2, 4, 5), 1, ALIVE, after(4, 4, 5)),
        ((1, 2, 4, 5), 5, ALIVE, after(5, 4, 5)),
        ((1, 5, 4), 1, {4}, after(4, 5, 4)),
        ((1, 2, 4), 1, ALIVE, None),
        ((1, 2), 1, ALIVE, None),
        ((1, 4, 5), 1, {1, 2}, None),  # they are about to leave the ISR
    ],
)
def test_a_move_is_completed_once_the_whole_target_is_in_sync_and_one_of_it_may_lead(
    isr: tuple[int, ...], leader: int, alive: set[int], expected: LeaderAndIsr | None
) -> None:
    found = plan_completions(cluster(MOVING, *isr, leader=leader, alive=alive), [CLICKS], EPOCH)
    done = Assigned((4, 5), removed=(1, 2))
    assert found == ({} if expected is None else {CLICKS: Step(done, expected)})


def test_nobody_that_leaves_is_eligible_or_remembered_in_another_way() -> None:
    made = cluster(MOVING, 4, 5, eligible=(1,), emptied=(2,), lossy=(1, 2))
    assert plan_completions(made, [CLICKS], EPOCH)[CLICKS].state == after(4, 4, 5)


@pytest.mark.parametrize(
    ("isr", "leader", "min_isr", "expected"),
    [
        ((1, 2), 1, 2, Step(Assigned((2, 1), removed=(4, 5)), after(1, 1, 2))),
        ((4, 1, 2), 4, 2, Step(Assigned((2, 1), removed=(4, 5)), after(2, 1, 2))),
        ((4, 1), 4, 1, Step(Assigned((2, 1), removed=(4, 5)), after(1, 1))),
        # It is below the minimum already, whoever goes.
        ((1,), 1, 2, Step(Assigned((2, 1), removed=(4, 5)), after(1, 1))),
        ((4, 1), 4, 2, Step(Assigned((2, 1, 4), (), (4,), (2, 1), (5,)), after(4, 4, 1))),
        ((4, 5), 4, 1, Step(Assigned((2, 1, 4, 5), (), (4, 5), (2, 1)), after(4, 4, 5))),
    ],
)
def test_a_cancelled_move_goes_back_at_once_where_enough_of_the_origin_are_in_sync(
    isr: tuple[int, ...], leader: int, min_isr: int, expected: Step
) -> None:
    assert plan_cancel(cluster(MOVING, *isr, leader=leader, min_isr=min_isr), CLICKS, EPOCH) == (
        expected
    )


def test_a_move_that_a_controller_of_kafka_began_goes_back_to_the_same_replicas() -> None:
    step = plan_cancel(cluster(MOVING._replace(before=()), 1, 2), CLICKS, EPOCH)
    assert step.assigned == Assigned((1, 2), removed=(4, 5))


def test_nothing_under_way_can_be_cancelled() -> None:
    with pytest.raises(ApiError) as raised:
        plan_cancel(cluster(Assigned((1, 2)), 1, 2), CLICKS, EPOCH)
    assert raised.value.error is Error.NO_REASSIGNMENT_IN_PROGRESS


def test_a_topic_that_is_being_deleted_moves_no_more() -> None:
    made = cluster(MOVING, 4, 5)
    made.queue_for_deletion("clicks")
    assert made.moving() == []
    with pytest.raises(ApiError):
        plan_begin(made, CLICKS, (1,), EPOCH)


def test_a_partition_without_a_state_moves_too() -> None:
    made = cluster(Assigned((1, 2)), 1, 2)
    step = plan_begin(made, TopicPartition("clicks", 1), (1,), EPOCH)
    assert step == Step(Assigned((1, 7), (1,), (7,), (7,)), None)


def test_another_controller_begins_new_epochs() -> None:
    made = cluster(MOVING, 4, 1, eligible=(2,))
    assert plan_new_epochs(made, [CLICKS], EPOCH) == {CLICKS: after(4, 4, 1, eligible=(2,))}


def test_what_a_move_adds_is_no_reason_to_refuse_records() -> None:
    growing = Assigned((1, 2, 3), (2, 3), (), (1,))
    assert cluster(growing, 1, min_isr=2).min_isr(CLICKS) == 1
    assert cluster(Assigned((1, 2, 3)), 1, min_isr=2).min_isr(CLICKS) == 2


def test_of_an_old_tools_request_that_is_left_which_is_on_its_way() -> None:
    made = cluster(MOVING, 1, 2)
    other = TopicPartition("clicks", 1)
    request = {CLICKS: (4, 5), other: (7,), TopicPartition("views", 0): (1,)}
    assert left_of_request(made, request) == {CLICKS: (4, 5)}
    assert left_of_request(made, {CLICKS: (5, 4)}) == {}


ids = st.permutations(range(1, 7))


@given(
    *(ids, ids, ids, ids),
    *(st.integers(1, 4) for _ in range(4)),
    st.integers(1, 3),
    st.sets(st.integers(1, 6)),
)
def test_no_step_empties_an_isr_or_takes_it_below_its_minimum(
    replicas: list[int],
    first: list[int],
    second: list[int],
    isr: list[int],
    factor: int,
    first_factor: int,
    second_factor: int,
    in_sync: int,
    min_isr: int,
    alive: set[int],
) -> None:
    made = cluster(Assigned(tuple(replicas[:factor])), replicas[0], min_isr=min_isr)
    asked = (tuple(first[:first_factor]), tuple(second[:second_factor]), None, "complete")
    for target in asked:
        assigned = made.topics["clicks"].assigned(0)
        members = tuple(each for each in isr if each in assigned.replicas)[:in_sync]
        state = made.leader_and_isr(CLICKS)
        assert state is not None
        members = members or state.isr
        leader = next((each for each in members if each in alive), -1)
        state = state._replace(isr=members, leader=leader)
        made.put_states({CLICKS: state})
        for each in ALIVE - alive:
            made.brokers.pop(each, None)
        step: Step | None
        try:
            if target == "complete":
                step = plan_completions(made, [CLICKS], EPOCH).get(CLICKS)
            elif target is None:
                step = plan_cancel(made, CLICKS, EPOCH)
            else:
                step = plan_begin(made, CLICKS, target, EPOCH)  # type: ignore[arg-type]
        except ApiError:
            continue
        if step is None or step.state is None:
            continue
        wanted = min(min_isr, len(step.assigned.replicas) - len(step.assigned.adding))
        assert step.state.isr
        assert {*step.state.isr} <= {*step.assigned.replicas}
        assert step.state.leader in (-1, *step.state.isr)
        assert len(step.state.isr) >= min(wanted, len(members))
        assert (step.state.leader == -1) == (leader == -1)
        assert {*step.assigned.removed}.isdisjoint(step.assigned.replicas)
        topic = made.topics["clicks"].with_assigned({0: step.assigned})
        made.put_topic(topic)
        made.put_states({CLICKS: step.state})
