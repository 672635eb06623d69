"""The mirror's benchmark runs: its shape is looked at, not its speed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.integration.zookeeper_server import free_port

PROGRAM = Path(__file__).parents[2] / "benchmarks" / "bench_mirror.py"


def test_a_small_run_tells_every_way_to_copy() -> None:
    words = ["--mb", "120", "--rounds", "1", "--codec", "lz4", "--port", str(free_port())]
    done = subprocess.run(
        [sys.executable, str(PROGRAM), *words], capture_output=True, text=True, timeout=110
    )
    assert done.returncode == 0, done.stderr
    head, *rows = done.stdout.splitlines()
    assert head.startswith("lz4: 600000 records of 200 B")
    assert [row.split("  ")[1] for row in rows] == [
        "kdist mirror",
        "kdist mirror, decoding and encoding each record",
        "confluent-kafka, record by record",
    ]
    assert all("MB/s" in row and "CPU s/GB" in row for row in rows)
