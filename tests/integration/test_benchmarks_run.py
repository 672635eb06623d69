"""The benchmarks run: their shape is looked at, not their speed."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = Path(__file__).parents[2] / "benchmarks" / "bench_log.py"
JUDGED = {
    "append, 1 log, CPU",
    "append, 8 logs, CPU",
    "encode",
    "decode",
    "header",
    "scan, 64 KiB batches, CPU",
    "open, wall",
    "open, memory",
    "find, wall, median",
    "find, wall, p99",
}


def command(directory: Path, *options: str) -> list[str]:
    return [sys.executable, str(PROGRAM), "--quick", "--directory", str(directory), *options]


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> dict[str, object]:
    """What a quick run says, which leaves nothing behind."""
    directory = tmp_path_factory.mktemp("bench")
    done = subprocess.run(
        command(directory, "--json"), capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    assert list(directory.iterdir()) == []
    found: dict[str, object] = json.loads(done.stdout)
    return found


def rows(report: dict[str, object]) -> list[dict[str, object]]:
    found = report["rows"]
    assert isinstance(found, list)
    return found


def test_a_quick_run_judges_every_budget(report: dict[str, object]) -> None:
    judged = {row["task"] for row in rows(report) if row["verdict"] in ("met", "MISSED")}
    assert judged == JUDGED


def test_what_the_log_does_is_compared_with_bare_system_calls(report: dict[str, object]) -> None:
    compared = {str(row["task"]) for row in rows(report) if row["ratios"]}
    of_the_log = [t for t in compared if t.startswith(("append", "scan", "open", "find", "flush"))]
    assert len(of_the_log) == 18


def test_a_run_names_its_filesystem(report: dict[str, object]) -> None:
    assert " on " in str(report["machine"])


def test_one_task_can_be_asked_for_and_is_printed_as_a_table(tmp_path: Path) -> None:
    done = subprocess.run(
        command(tmp_path, "--only", "flush"), capture_output=True, text=True, timeout=60, check=True
    )
    assert "flush 4 logs" in done.stdout
    assert "append" not in done.stdout


def test_an_interrupted_run_leaves_nothing_behind(tmp_path: Path) -> None:
    program = subprocess.Popen(command(tmp_path), stderr=subprocess.PIPE, text=True)
    assert program.stderr is not None
    with program, program.stderr:
        while "append" not in program.stderr.readline():
            assert program.poll() is None
        program.send_signal(signal.SIGINT)
        program.stderr.read()
    assert program.returncode == 130
    assert list(tmp_path.iterdir()) == []
