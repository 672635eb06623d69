"""For how long partitions are unavailable after faults, and how long records take."""

from __future__ import annotations

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
from tests.chaos.history import OK, UNKNOWN, Answered, Sent

KILL = Occurrence("kill", 10.0, frozenset({0}))


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
