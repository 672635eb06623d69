"""Benchmarks beside Apache Kafka, run quickly: for tests that look at their shape alone."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
LIMIT_S = 580


def quick_run(program: str) -> Any:
    """What a quick run of a program of `benchmarks` prints as JSON."""
    done = subprocess.run(
        [sys.executable, str(BENCHMARKS / program), "--quick", "--json"],
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)
