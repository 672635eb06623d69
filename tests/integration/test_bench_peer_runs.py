"""The benchmark beside Apache Kafka runs: its shape is looked at, not its speed."""

from __future__ import annotations

import pytest

from tests.integration.quick_benchmark import LIMIT_S, quick_run


@pytest.mark.stress
@pytest.mark.peer
@pytest.mark.timeout(LIMIT_S + 20)
def test_a_quick_run_measures_both_brokers_at_every_task() -> None:
    report = quick_run("bench_peer.py")
    assert len(report["tasks"]) == 10
    assert all(task["peer"] > 0 and task["kdist"] > 0 for task in report["tasks"])
    assert set(report["resident_mib"]) == {"Apache Kafka", "kdist"}
