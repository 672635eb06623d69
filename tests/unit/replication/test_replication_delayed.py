"""Delayed operations: each ends once, by a change, by its timeout, or with its client."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kdist.errors import Error
from kdist.metrics.replication import ReplicationMetrics
from kdist.replication.delayed import DelayedDelete, DelayedOperation, DelayedOperations
from kdist.replication.leadership import Following, Leading, Role
from kdist.replication.peers import ALONE
from kdist.testing.virtual_clock import VirtualClock
from tests.stepped_process import SteppedProcess
from tests.unit.replication.replication_world import BROKER, World


class Place:
    """Something to watch."""

    def __init__(self) -> None:
        self.watchers: dict[DelayedOperation, None] = {}
        self.dependents: tuple[()] = ()
        self.dependents = ()
        self.is_open = False


class Visit(DelayedOperation):
    """Ends when all its places are open; writes down when and how."""

    __slots__ = ("attempts", "clock", "ended", "places")

    def __init__(self, clock: VirtualClock, *places: Place) -> None:
        self.clock = clock
        self.places = places
        self.attempts = 0
        self.ended: list[tuple[str, int]] = []

    def attempt(self) -> bool:
        self.attempts += 1
        is_done = all(place.is_open for place in self.places)
        if is_done:
            self.ended.append(("done", self.clock.monotonic_ns() // 1_000_000))
        return is_done

    def expire(self) -> None:
        self.ended.append(("expired", self.clock.monotonic_ns() // 1_000_000))


class Stage:
    def __init__(self) -> None:
        self.clock = VirtualClock()
        self.tasks = SteppedProcess(self.clock, random.Random(0))
        self.metrics = ReplicationMetrics()
        self.waiting = DelayedOperations(self.tasks, self.clock, self.tasks.call_soon, self.metrics)

    def wait(self, *places: Place, timeout_ms: int = 500, client: object = None) -> Visit:
        visit = Visit(self.clock, *places)
        self.waiting.add(visit, places, timeout_ms, client)
        return visit

    def open(self, place: Place) -> None:
        place.is_open = True
        self.waiting.changed(place)


@pytest.fixture
def stage() -> Stage:
    return Stage()


def test_an_operation_ends_when_what_it_watches_changes(stage: Stage) -> None:
    place = Place()
    visit = stage.wait(place)
    stage.tasks.run_for_ms(10)
    stage.open(place)
    stage.tasks.run_for_ms(1000)
    assert visit.ended == [("done", 10)]
    assert not place.watchers
    assert len(stage.waiting) == 0


def test_an_operation_expires_once_when_its_time_is_up_and_not_before(stage: Stage) -> None:
    visit = stage.wait(Place(), timeout_ms=500)
    stage.tasks.run_for_ms(500)
    assert not visit.ended
    stage.tasks.run_for_ms(5000)
    assert visit.ended == [("expired", 501)]
    assert stage.metrics.expired_operations == 1


def test_a_change_that_is_not_enough_leaves_it_waiting(stage: Stage) -> None:
    first, second = Place(), Place()
    visit = stage.wait(first, second)
    stage.open(first)
    stage.tasks.run_for_ms(1)
    assert (visit.attempts, visit.ended) == (1, [])
    stage.open(second)
    stage.tasks.run_for_ms(1)
    assert [how for how, _ in visit.ended] == ["done"]


def test_many_changes_in_one_turn_cause_one_attempt(stage: Stage) -> None:
    place = Place()
    visit = stage.wait(place)
    for _ in range(10):
        stage.waiting.changed(place)
    stage.tasks.run_for_ms(1)
    assert visit.attempts == 1


def test_an_unwatched_change_wakes_no_operation(stage: Stage) -> None:
    stage.waiting.changed(Place())
    stage.tasks.run_until_idle()
    assert stage.clock.monotonic_ns() == 0


def test_a_disconnected_client_gets_no_answer_and_leaves_nothing_behind(stage: Stage) -> None:
    place, client, other = Place(), object(), object()
    gone = [stage.wait(place, client=client) for _ in range(3)]
    kept = stage.wait(place, client=other)
    stage.waiting.cancel_all(client)
    assert len(stage.waiting) == 1
    stage.open(place)
    stage.tasks.run_for_ms(1000)
    assert [visit.ended for visit in gone] == [[], [], []]
    assert len(kept.ended) == 1
    assert not stage.waiting._clients


def test_a_timeout_shorter_than_the_others_expires_in_time(stage: Stage) -> None:
    visits = [stage.wait(Place(), timeout_ms=ms) for ms in (300, 5, 100, 0)]
    stage.tasks.run_for_ms(1000)
    assert [visit.ended[0][1] for visit in visits] == [301, 6, 101, 1]


def test_an_operation_added_while_others_expire_expires_in_time(stage: Stage) -> None:
    later: list[Visit] = []

    class Renewing(Visit):
        def expire(self) -> None:
            super().expire()
            later.append(stage.wait(Place(), timeout_ms=7))

    renewing = Renewing(stage.clock, Place())
    stage.waiting.add(renewing, renewing.places, 10, None)
    stage.tasks.run_for_ms(100)
    assert [visit.ended for visit in later] == [[("expired", 19)]]


def test_empty_buckets_do_not_pile_up_while_everything_ends_early(stage: Stage) -> None:
    place = Place()
    place.is_open = True
    for _ in range(5000):
        stage.wait(place)
        stage.waiting.changed(place)
        stage.tasks.run_for_ms(1)
    assert len(stage.waiting) == 0
    assert len(stage.waiting._buckets) <= 600


@given(st.data())
def test_whatever_happens_each_operation_ends_exactly_once(data: st.DataObject) -> None:
    stage = Stage()
    places = [Place() for _ in range(4)]
    clients = [object() for _ in range(3)]
    visits: list[tuple[Visit, object, int]] = []
    gone: set[int] = set()
    for _ in range(data.draw(st.integers(1, 30))):
        match data.draw(st.sampled_from(["wait", "wait", "open", "pass", "leave"])):
            case "wait":
                watched = data.draw(st.sets(st.integers(0, 3), min_size=1))
                timeout_ms = data.draw(st.integers(0, 40))
                client = data.draw(st.sampled_from(clients))
                chosen = [places[number] for number in watched]
                visit = Visit(stage.clock, *chosen)
                if not visit.attempt():
                    stage.waiting.add(visit, chosen, timeout_ms, client)
                visits.append((visit, client, timeout_ms))
            case "open":
                stage.open(data.draw(st.sampled_from(places)))
            case "pass":
                stage.tasks.run_for_ms(data.draw(st.integers(0, 15)))
            case "leave":
                client = data.draw(st.sampled_from(clients))
                stage.waiting.cancel_all(client)
                gone |= {id(v) for v, c, _ in visits if c is client and not v.ended}
    stage.tasks.run_for_ms(100)
    counts = Counter(len(visit.ended) for visit, _, _ in visits if id(visit) not in gone)
    assert set(counts) <= {1}
    assert not any(visit.ended for visit, _, _ in visits if id(visit) in gone)
    assert len(stage.waiting) == 0
    assert not any(place.watchers for place in places)


def test_ended_operations_with_deadlines_weeks_away_leave_nothing_behind() -> None:
    """A client whose fetches have such a timeout, and are answered at once, causes no leak."""
    stage = Stage()
    place = Place()
    patient = stage.wait(Place(), timeout_ms=60_000)
    for _ in range(30_000):
        stage.clock.advance_ms(1)
        visit = stage.wait(place, timeout_ms=2**31 - 1)
        stage.waiting.end(visit)
    assert len(stage.waiting) == 1
    assert len(stage.waiting._buckets) == len(stage.waiting._ticks) <= 10_000
    stage.tasks.run_for_ms(40_000)
    assert patient.ended == [("expired", 60_001)]


class Partition:
    """Led by this broker in epoch 4, where every replica has deleted all below 10."""

    def __init__(self) -> None:
        self.role: Role = Leading(4, 4)
        self.high_watermark = self.low_watermark = 10
        self.is_under_min_isr = False

    def request_flush(self) -> None:
        """Nothing waits for one."""


@pytest.mark.parametrize(("offset", "heard"), [(9, [Error.NONE]), (10, [Error.NONE]), (11, [])])
def test_a_delete_ends_once_the_low_watermark_is_the_offset(
    offset: int, heard: list[Error]
) -> None:
    partition, told = Partition(), list[Error]()
    waiting = DelayedDelete(partition, partition.role, offset, told.append)
    assert waiting.attempt() is bool(heard)
    assert told == heard


@pytest.mark.parametrize("role", [Following(4, 2), Following(5, 2), Leading(6, 6)])
def test_a_delete_fails_once_somebody_else_has_led(role: Role) -> None:
    partition, told = Partition(), list[Error]()
    waiting = DelayedDelete(partition, partition.role, 9, told.append)
    partition.role = role
    assert waiting.attempt()
    assert told == [Error.NOT_LEADER_OR_FOLLOWER]


def test_a_delete_goes_on_waiting_in_an_epoch_in_which_this_broker_leads_on() -> None:
    partition, told = Partition(), list[Error]()
    waiting = DelayedDelete(partition, partition.role, 11, told.append)
    partition.role = Leading(5, 4)
    assert not waiting.attempt()
    waiting.expire()
    assert told == [Error.REQUEST_TIMED_OUT]


def test_a_partition_has_a_delete_wait_as_long_as_it_was_told() -> None:
    world, told = World(), list[Error]()
    partition = world.lead(replicas=(BROKER, 2))
    state = partition.state._replace(leader_epoch=partition.leader_epoch + 1)
    peers = ALONE._replace(is_alive=lambda _: True)
    partition._context = partition._context._replace(peers=peers)
    partition.lead_or_follow(state, (BROKER, 2))
    partition.await_deleted(0, 1_000, told.append)
    world.settle(999)
    assert told == []
    world.settle(2)
    assert told == [Error.REQUEST_TIMED_OUT]
