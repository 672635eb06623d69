"""How long partitions are unavailable and records take, and what a run prints of it."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from tests.chaos.availability import (
    Occurrence,
    Outage,
    acknowledged,
    latencies,
    outages,
    quantile,
    too_long,
)
from tests.chaos.checker import Anomaly
from tests.chaos.history import OK, UNKNOWN, Answered, Event, Sent
from tests.chaos.pace import COUNT_MIN, Pace, Paces, Span, paces, too_slow
from tests.chaos.report import lines
from tests.chaos.result import Plan, Result

KILL = Occurrence("kill", 10.0, frozenset({0}))

NOTHING = Pace(0, 0.0, 0.0)


def record(at_s: float, seconds: float, number: int = 0) -> list[Event]:
    return [
        Sent(at_s, "p", 0, number),
        Answered(at_s + seconds, "p", 0, number, OK, number, ""),
    ]


def result() -> Result:
    found = Result(Plan(seed=1, seconds=60, directory=Path(), kind="kdist"))
    found.outcomes = Counter({"sent": 3, "ok": 2})
    return found


def test_the_longest_pause_after_a_fault_counts() -> None:
    acks = {0: [9.0, 10.5, 13.0, 13.1], 1: [10.25, 13.0]}
    assert outages(acks, [KILL], 14.0) == [
        Outage("kill", 0, True, 2.5),
        Outage("kill", 1, False, 2.75),
    ]


def test_a_pause_before_the_fault_is_not_due_to_it() -> None:
    assert outages({0: [1.0, 10.5]}, [KILL], 11.0) == [Outage("kill", 0, True, 0.5)]


def test_a_pause_is_shared_at_the_next_fault() -> None:
    faults = [KILL, Occurrence("pause", 20.0, frozenset())]
    found = outages({0: [10.0, 18.0, 25.0]}, faults, 26.0)
    assert [each.seconds for each in found] == [8.0, 5.0]


def test_a_partition_that_never_comes_back_is_unavailable_to_the_end() -> None:
    assert outages({0: [1.0]}, [KILL], 30.0) == [Outage("kill", 0, True, 20.0)]


def test_a_fault_that_met_an_earlier_one_is_left_out() -> None:
    assert outages({0: [1.0]}, [KILL._replace(is_counted=False)], 30.0) == []


def test_only_acknowledgements_count() -> None:
    events = [Answered(2.0, "p", 0, 1, OK, 1, ""), Answered(1.0, "p", 0, 0, UNKNOWN, -1, "")]
    assert acknowledged(events) == {0: [2.0]}


def test_latencies_are_of_acknowledged_records() -> None:
    events = [
        *(Sent(1.0, "p", 0, 0), Sent(2.0, "p", 0, 1), Sent(2.0, "p", 0, 2)),
        *(Answered(5.0, "p", 0, 0, OK, 0, ""), Answered(2.5, "p", 0, 1, OK, 1, "")),
        Answered(9.0, "p", 0, 2, UNKNOWN, -1, ""),
    ]
    assert latencies(events) == [0.5, 4.0]


def test_quantiles_are_values_that_there_are() -> None:
    assert [quantile([1, 2, 3, 4], share) for share in (0, 0.5, 0.9, 1)] == [1, 3, 4, 4]


def test_an_outage_over_its_limit_is_an_anomaly_once_it_is_over_the_slack_too() -> None:
    found = [
        *(Outage("kill", 0, True, 3.9), Outage("kill", 1, False, 4.1)),
        *(Outage("pause", 0, True, 60.0), Outage("roll", 0, True, 60.0)),
    ]
    assert list(too_long(found, {"kill": 2.0, "pause": None})) == [
        Anomaly("unavailable", "partition 1 for 4.1 s after kill, 2.0 s at most were promised")
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


def test_each_kind_of_fault_is_a_row() -> None:
    run = result()
    run.faults = [Occurrence("kill", at_s, frozenset({0})) for at_s in (1, 2)]
    run.outages = [Outage("kill", 0, True, 0.5), Outage("kill", 0, True, 1.5)]
    row = next(line for line in lines(run, {"kill": 2.0}) if line.startswith("kill"))
    assert row.split() == ["kill", "2", "1.50", "1.50", "1.50", "-", "-", "-", "2.0"]


def test_records_are_counted_by_what_their_producers_were_told() -> None:
    run = result()
    run.latencies = [0.01, 0.25]
    texts = list(lines(run, {}))
    assert "records: 3 sent, 2 ok" in texts
    assert "acknowledged after: median 250 ms, p99 250 ms, p99.9 250 ms, max 0.25 s" in texts
    assert texts[-1] == "anomalies: none"


def test_what_moved_and_how_long_records_took_meanwhile_is_told() -> None:
    run = result()
    run.moved = Counter({"reversed": 1, "cancelled": 2})
    run.paces = Paces(still=Pace(9, 0.01, 0.05), moving=Pace(7, 0.02, 0.08))
    texts = list(lines(run, {}))
    start = texts.index("moves: 2 cancelled, 1 reversed")
    assert texts[start + 1 : start + 3] == [
        "while nothing is broken and partitions move: median 20 ms, p99 80 ms (7 records)",
        "while nothing is broken and none moves: median 10 ms, p99 50 ms (9 records)",
    ]


def test_anomalies_are_counted_by_kind_and_the_first_of_each_shown() -> None:
    run = result()
    run.anomalies = [Anomaly("lost", f"record {n}") for n in range(12)] + [Anomaly("torn", "one")]
    texts = list(lines(run, {}))
    start = texts.index("anomalies: 12 lost, 1 torn")
    assert texts[start + 1] == "  lost: record 0"
    assert texts[-2:] == ["  lost: 2 more", "  torn: one"]
