"""The benchmark of replicated clusters runs: its shape is looked at, not its speed."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = Path(__file__).parents[2] / "benchmarks" / "bench_cluster.py"


@pytest.mark.stress
@pytest.mark.peer
@pytest.mark.timeout(600)
def test_a_quick_run_measures_both_clusters_at_every_task() -> None:
    done = subprocess.run(
        [sys.executable, str(PROGRAM), "--quick", "--json"],
        capture_output=True,
        text=True,
        timeout=580,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    rows = json.loads(done.stdout)
    assert len({row["task"] + row["unit"] for row in rows}) == 15
    assert all(row["peer"] > 0 and row["kdist"] > 0 for row in rows)
