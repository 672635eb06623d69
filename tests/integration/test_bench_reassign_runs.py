"""The benchmark of moves runs: its shape is looked at, not its speed."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

PROGRAM = Path(__file__).parents[2] / "benchmarks" / "bench_reassign.py"


def test_a_quick_run_plans_every_case() -> None:
    done = subprocess.run(
        [sys.executable, str(PROGRAM), "--quick", "--json"],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    plans = json.loads(done.stdout)["plans"]
    assert len(plans) == 6
    assert all(each["moves"] > 0 and each["moved_share"] > 0 for each in plans)
