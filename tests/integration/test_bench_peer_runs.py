"""The benchmark beside Apache Kafka runs: its shape is looked at, not its speed."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = Path(__file__).parents[2] / "benchmarks" / "bench_peer.py"


@pytest.mark.stress
@pytest.mark.peer
@pytest.mark.timeout(600)
def test_a_quick_run_measures_both_brokers_at_every_task() -> None:
    done = subprocess.run(
        [sys.executable, str(PROGRAM), "--quick", "--json"],
        capture_output=True,
        text=True,
        timeout=580,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert len(report["tasks"]) == 10
    assert all(task["peer"] > 0 and task["kdist"] > 0 for task in report["tasks"])
    assert set(report["resident_mib"]) == {"Apache Kafka", "kdist"}
