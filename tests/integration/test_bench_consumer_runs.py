"""The consumers' benchmark runs: its shape is looked at, not its speed."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from tests.integration.standalone_process import free_ports

PROGRAM = Path(__file__).parents[2] / "benchmarks" / "bench_consumer.py"


def test_a_quick_run_tells_every_consumer_and_leaves_nothing(tmp_path: Path) -> None:
    words = ["--quick", "--json", "--only", "1024 B, lz4", "--port", str(free_ports(3))]
    done = subprocess.run(
        [sys.executable, str(PROGRAM), *words, "--directory", str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    rows = json.loads(done.stdout)
    assert {row["contender"] for row in rows} >= {
        "kdist batches",
        "kdist iteration",
        "kafka-python",
    }
    assert all(row["per_second"] > 0 for row in rows)
    assert list(tmp_path.iterdir()) == []
