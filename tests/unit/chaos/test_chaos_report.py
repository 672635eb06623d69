"""What a run prints in the end."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from tests.chaos.availability import Occurrence, Outage
from tests.chaos.checker import Anomaly
from tests.chaos.pace import Pace, Paces
from tests.chaos.report import lines
from tests.chaos.result import Plan, Result


def result() -> Result:
    found = Result(Plan(seed=1, seconds=60, directory=Path(), kind="kdist"))
    found.outcomes = Counter({"sent": 3, "ok": 2})
    return found


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
