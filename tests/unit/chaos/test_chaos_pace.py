"""How long records take while partitions move, beside how long they take else."""

from __future__ import annotations

from tests.chaos.checker import Anomaly
from tests.chaos.history import OK, Answered, Event, Sent
from tests.chaos.pace import COUNT_MIN, Pace, Paces, Span, paces, too_slow

NOTHING = Pace(0, 0.0, 0.0)


def record(at_s: float, seconds: float, number: int = 0) -> list[Event]:
    return [
        Sent(at_s, "p", 0, number),
        Answered(at_s + seconds, "p", 0, number, OK, number, ""),
    ]


def test_records_count_by_whether_partitions_moved_when_they_were_sent() -> None:
    events = [*record(9.9, 4.0, 0), *record(10.0, 0.5, 1), *record(19.9, 8.0, 2)]
    found = paces([*events, *record(20.0, 2.0, 3)], [Span(10.0, 20.0)], [])
    assert found == Paces(still=Pace(2, 4.0, 4.0), moving=Pace(2, 8.0, 8.0))


def test_records_that_a_fault_may_have_held_up_do_not_count() -> None:
    broken = [Span(10.0, 12.0), Span(12.5, 14.0)]
    held_up = [*record(9.5, 1.0, 0), *record(12.25, 1.0, 1), *record(14.5, 1.0, 2)]
    assert paces(held_up, [], broken) == Paces(NOTHING, NOTHING)
    apart = [*record(8.75, 1.0, 0), *record(15.25, 3.0, 1)]
    assert paces(apart, [Span(15.0, 16.0)], broken) == Paces(Pace(1, 1.0, 1.0), Pace(1, 3.0, 3.0))


def test_moves_may_make_the_slowest_records_twice_as_slow() -> None:
    still = Pace(COUNT_MIN, 0.1, 0.5)
    assert list(too_slow(Paces(still, Pace(COUNT_MIN, 0.1, 1.04)))) == []
    assert list(too_slow(Paces(still, Pace(COUNT_MIN, 0.1, 1.06)))) == [
        Anomaly("slow", "p99 1060 ms while partitions move, 500 else")
    ]


def test_few_records_say_nothing_of_the_slowest() -> None:
    few, slow = Pace(COUNT_MIN - 1, 0.1, 0.1), Pace(COUNT_MIN, 1.0, 9.0)
    assert list(too_slow(Paces(few, slow))) == []
