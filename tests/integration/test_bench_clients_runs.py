"""The clients' benchmark runs: its shape is looked at, not its speed."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.integration.standalone_process import free_ports

PROGRAM = Path(__file__).parents[2] / "benchmarks" / "bench_clients.py"


@pytest.mark.parametrize(
    ("task", "contenders"),
    [
        ("send 100 B, acks=all, lz4", {"kdist send_many", "confluent produce", "aiokafka send"}),
        ("read 1024 B, lz4", {"kdist batches", "kdist iteration", "kafka-python"}),
        ("latency", {"kdist", "confluent-kafka", "aiokafka", "kafka-python"}),
    ],
)
def test_a_quick_run_tells_every_client_and_leaves_nothing(
    tmp_path: Path, task: str, contenders: set[str]
) -> None:
    words = ["--quick", "--json", "--task", task, "--port", str(free_ports(3))]
    done = subprocess.run(
        [sys.executable, str(PROGRAM), *words, "--directory", str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    rows = json.loads(done.stdout)
    assert {row["contender"] for row in rows} >= contenders
    assert all(row["per_second"] > 0 for row in rows)
    assert list(tmp_path.iterdir()) == []
