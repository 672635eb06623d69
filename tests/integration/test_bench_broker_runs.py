"""The broker's benchmark runs: its shape is looked at, not its speed."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.stress

PROGRAM = Path(__file__).parents[2] / "benchmarks" / "bench_broker.py"
BY_CPU = {
    "produce 1 record, 1 connections, CPU",
    "produce 1 record, 10 connections, CPU",
    "produce 1 record, 50 connections, CPU",
    "produce 64 KiB, 2 connections, CPU",
    "produce 256 KiB, 2 connections, CPU",
    "produce 1024 KiB, 2 connections, CPU",
    "fetch 1 MiB, 1 consumers, CPU",
    "fetch 1 MiB, 2 consumers, CPU",
    "fetch 1 MiB, 4 consumers, CPU",
}

Row = dict[str, object]


def command(directory: Path, *options: str) -> list[str]:
    return [sys.executable, str(PROGRAM), "--quick", "--directory", str(directory), *options]


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> list[Row]:
    """What a quick run of all of it says, which leaves nothing behind."""
    directory = tmp_path_factory.mktemp("bench")
    done = subprocess.run(
        command(directory, "--json"), capture_output=True, text=True, timeout=110, check=False
    )
    assert done.returncode == 0, done.stderr
    assert list(directory.iterdir()) == []
    found: list[Row] = json.loads(done.stdout)
    return found


def judged(rows: list[Row]) -> set[str]:
    return {str(row["task"]) for row in rows if row["verdict"] in ("met", "MISSED")}


def test_a_quick_run_judges_every_budget(rows: list[Row]) -> None:
    others = judged(rows) - BY_CPU
    assert judged(rows) >= BY_CPU
    assert "1000 idle connections, memory" in others
    assert sum(task.endswith("above C") for task in others) == 6
    assert sum(task.endswith("at half load, p99") for task in others) == 4


def test_processor_time_judges_and_the_clock_is_shown_beside_it(rows: list[Row]) -> None:
    by_clock = {task.removesuffix("CPU") + "wall" for task in BY_CPU}
    assert by_clock <= {str(row["task"]) for row in rows if row["ratios"]}
    assert not by_clock & judged(rows)


def test_one_task_can_be_asked_for_and_is_printed_as_a_table(tmp_path: Path) -> None:
    done = subprocess.run(
        command(tmp_path, "--only", "idle"), capture_output=True, text=True, timeout=60, check=True
    )
    assert "1000 idle connections" in done.stdout
    assert "produce" not in done.stdout


def test_a_task_that_does_not_exist_is_refused_by_name(tmp_path: Path) -> None:
    done = subprocess.run(
        command(tmp_path, "--only", "nothing"),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 2
    assert "bulk-produces" in done.stderr
