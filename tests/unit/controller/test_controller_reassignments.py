"""Each step of a move, and where the replicas of new partitions go."""

from __future__ import annotations

import uuid
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kdist.config.addresses import Listener
from kdist.config.topic import TopicSettings
from kdist.controller.context import Assigned, ControllerContext, LiveBroker, Topic
from kdist.controller.placement import check_explicit, interleave, place, start_of
from kdist.controller.reassignments import (
    MoveStep,
    left_of_request,
    plan_begin,
    plan_cancel,
    plan_completions,
    plan_new_epochs,
)
from kdist.errors import ApiError, Error
from kdist.model import Broker, LeaderAndIsr, TopicPartition
from kdist.zk.registration import BrokerRegistration
from tests.refusals import refused

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


def racked(racks: int, hosts: int, disks: int) -> list[Broker]:
    """`hosts` in each of `racks`, with `disks` brokers each; ids count through."""
    places = [(r, h) for r in range(racks) for h in range(hosts) for _ in range(disks)]
    return [Broker(i, f"host-{r}-{h}", 9092 + i, f"rack-{r}") for i, (r, h) in enumerate(places)]


def loose(hosts: list[str]) -> list[Broker]:
    """Brokers on the named hosts, without racks."""
    return [Broker(i, host, 9092) for i, host in enumerate(hosts)]


fleets = st.builds(racked, st.integers(1, 4), st.integers(1, 4), st.integers(1, 4))


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
    assert step == MoveStep(expected, after(1, *kept))


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
    with refused(error):
        plan_begin(cluster(Assigned((1, 2)), 1, 2), partition, target, EPOCH)


def test_two_replicas_are_not_moved_to_one_host() -> None:
    made = cluster(Assigned((1, 2)), 1, 2)
    for each in (3, 4):
        shared = made.brokers[each].registration._replace(host="host-3")
        made.brokers[each] = made.brokers[each]._replace(registration=shared)
    with refused(Error.INVALID_REPLICA_ASSIGNMENT):
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
    assert found == ({} if expected is None else {CLICKS: MoveStep(done, expected)})


def test_nobody_that_leaves_is_eligible_or_remembered_in_another_way() -> None:
    made = cluster(MOVING, 4, 5, eligible=(1,), emptied=(2,), lossy=(1, 2))
    assert plan_completions(made, [CLICKS], EPOCH)[CLICKS].state == after(4, 4, 5)


@pytest.mark.parametrize(
    ("isr", "leader", "min_isr", "expected"),
    [
        ((1, 2), 1, 2, MoveStep(Assigned((2, 1), removed=(4, 5)), after(1, 1, 2))),
        ((4, 1, 2), 4, 2, MoveStep(Assigned((2, 1), removed=(4, 5)), after(2, 1, 2))),
        ((4, 1), 4, 1, MoveStep(Assigned((2, 1), removed=(4, 5)), after(1, 1))),
        # It is below the minimum already, whoever goes.
        ((1,), 1, 2, MoveStep(Assigned((2, 1), removed=(4, 5)), after(1, 1))),
        ((4, 1), 4, 2, MoveStep(Assigned((2, 1, 4), (), (4,), (2, 1), (5,)), after(4, 4, 1))),
        ((4, 5), 4, 1, MoveStep(Assigned((2, 1, 4, 5), (), (4, 5), (2, 1)), after(4, 4, 5))),
    ],
)
def test_a_cancelled_move_goes_back_at_once_where_enough_of_the_origin_are_in_sync(
    isr: tuple[int, ...], leader: int, min_isr: int, expected: MoveStep
) -> None:
    assert plan_cancel(cluster(MOVING, *isr, leader=leader, min_isr=min_isr), CLICKS, EPOCH) == (
        expected
    )


def test_a_move_that_a_controller_of_kafka_began_goes_back_to_the_same_replicas() -> None:
    step = plan_cancel(cluster(MOVING._replace(before=()), 1, 2), CLICKS, EPOCH)
    assert step.assigned == Assigned((1, 2), removed=(4, 5))


def test_nothing_under_way_can_be_cancelled() -> None:
    with refused(Error.NO_REASSIGNMENT_IN_PROGRESS):
        plan_cancel(cluster(Assigned((1, 2)), 1, 2), CLICKS, EPOCH)


def test_a_topic_that_is_being_deleted_moves_no_more() -> None:
    made = cluster(MOVING, 4, 5)
    made.queue_for_deletion("clicks")
    assert made.moving() == []
    with pytest.raises(ApiError):
        plan_begin(made, CLICKS, (1,), EPOCH)


def test_a_partition_without_a_state_moves_too() -> None:
    made = cluster(Assigned((1, 2)), 1, 2)
    step = plan_begin(made, TopicPartition("clicks", 1), (1,), EPOCH)
    assert step == MoveStep(Assigned((1, 7), (1,), (7,), (7,)), None)


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
        step: MoveStep | None
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
    with refused(Error.INVALID_REPLICATION_FACTOR):
        place([], range(1), 1, 0)


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
