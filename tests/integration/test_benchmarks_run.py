"""The benchmarks run: their shape is looked at, not their speed."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.integration.standalone_process import free_ports
from tests.integration.zookeeper_server import free_port

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
BESIDE_KAFKA_S = 580
OF_THE_LOG = {
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
OF_THE_BROKER = {
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

Row = dict[str, Any]


def command(program: str, *options: object) -> list[str]:
    return [sys.executable, str(BENCHMARKS / program), *map(str, options)]


def printed(program: str, *options: object, timeout_s: float = 110) -> str:
    """What a benchmark prints that runs to its end."""
    done = subprocess.run(
        command(program, *options), capture_output=True, text=True, timeout=timeout_s, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def quick_run(program: str, *options: object, timeout_s: float = 110) -> Any:
    """What a quick run prints as JSON."""
    return json.loads(printed(program, "--quick", "--json", *options, timeout_s=timeout_s))


def judged(rows: list[Row]) -> set[str]:
    return {row["task"] for row in rows if row["verdict"] in ("met", "MISSED")}


@pytest.fixture(scope="module")
def log_report(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What a quick run of the log's benchmark says, which leaves nothing behind."""
    directory = tmp_path_factory.mktemp("bench")
    found: dict[str, Any] = quick_run("bench_log.py", "--directory", directory)
    assert list(directory.iterdir()) == []
    return found


def test_a_quick_run_of_the_log_judges_every_budget(log_report: dict[str, Any]) -> None:
    assert judged(log_report["rows"]) == OF_THE_LOG


def test_what_the_log_does_is_compared_with_bare_system_calls(log_report: dict[str, Any]) -> None:
    compared = {row["task"] for row in log_report["rows"] if row["ratios"]}
    of_the_log = [t for t in compared if t.startswith(("append", "scan", "open", "find", "flush"))]
    assert len(of_the_log) == 18


def test_a_run_names_its_filesystem(log_report: dict[str, Any]) -> None:
    assert " on " in log_report["machine"]


def test_an_interrupted_run_leaves_nothing_behind(tmp_path: Path) -> None:
    words = command("bench_log.py", "--quick", "--directory", tmp_path)
    program = subprocess.Popen(words, stderr=subprocess.PIPE, text=True)
    assert program.stderr is not None
    with program, program.stderr:
        while "append" not in program.stderr.readline():
            assert program.poll() is None
        program.send_signal(signal.SIGINT)
        program.stderr.read()
    assert program.returncode == 130
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("program", "only", "shown", "other"),
    [
        ("bench_log.py", "flush", "flush 4 logs", "append"),
        pytest.param(
            "bench_broker.py",
            "idle",
            "1000 idle connections",
            "produce",
            marks=pytest.mark.stress,
        ),
    ],
)
def test_one_task_can_be_asked_for_and_is_printed_as_a_table(
    tmp_path: Path, program: str, only: str, shown: str, other: str
) -> None:
    table = printed(program, "--quick", "--directory", tmp_path, "--only", only)
    assert shown in table
    assert other not in table


@pytest.fixture(scope="module")
def broker_rows(tmp_path_factory: pytest.TempPathFactory) -> list[Row]:
    """What a quick run of all of the broker's benchmark says, which leaves nothing behind."""
    directory = tmp_path_factory.mktemp("bench")
    found: list[Row] = quick_run("bench_broker.py", "--directory", directory)
    assert list(directory.iterdir()) == []
    return found


@pytest.mark.stress
def test_a_quick_run_of_the_broker_judges_every_budget(broker_rows: list[Row]) -> None:
    others = judged(broker_rows) - OF_THE_BROKER
    assert judged(broker_rows) >= OF_THE_BROKER
    assert "1000 idle connections, memory" in others
    assert sum(task.endswith("above C") for task in others) == 6
    assert sum(task.endswith("at half load, p99") for task in others) == 4


@pytest.mark.stress
def test_processor_time_judges_and_the_clock_is_shown_beside_it(broker_rows: list[Row]) -> None:
    by_clock = {task.removesuffix("CPU") + "wall" for task in OF_THE_BROKER}
    assert by_clock <= {row["task"] for row in broker_rows if row["ratios"]}
    assert not by_clock & judged(broker_rows)


@pytest.mark.stress
def test_a_task_that_does_not_exist_is_refused_by_name(tmp_path: Path) -> None:
    words = command("bench_broker.py", "--quick", "--directory", tmp_path, "--only", "nothing")
    done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert "bulk-produces" in done.stderr


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
    words = ("--task", task, "--port", free_ports(3), "--directory", tmp_path)
    rows = quick_run("bench_clients.py", *words)
    assert {row["contender"] for row in rows} >= contenders
    assert all(row["per_second"] > 0 for row in rows)
    assert list(tmp_path.iterdir()) == []


def test_a_small_run_tells_every_way_to_copy() -> None:
    words = ("--mb", 120, "--rounds", 1, "--codec", "lz4", "--port", free_port())
    head, *rows = printed("bench_mirror.py", *words).splitlines()
    assert head.startswith("lz4: 600000 records of 200 B")
    assert [row.split("  ")[1] for row in rows] == [
        "kdist mirror",
        "kdist mirror, decoding and encoding each record",
        "confluent-kafka, record by record",
    ]
    assert all("MB/s" in row and "CPU s/GB" in row for row in rows)


def test_a_quick_run_plans_every_case() -> None:
    plans = quick_run("bench_reassign.py")["plans"]
    assert len(plans) == 6
    assert all(each["moves"] > 0 and each["moved_share"] > 0 for each in plans)


@pytest.mark.stress
@pytest.mark.peer
@pytest.mark.timeout(BESIDE_KAFKA_S + 20)
def test_a_quick_run_measures_both_clusters_at_every_task() -> None:
    rows = quick_run("bench_cluster.py", timeout_s=BESIDE_KAFKA_S)
    assert len({row["task"] + row["unit"] for row in rows}) == 15
    assert all(row["peer"] > 0 and row["kdist"] > 0 for row in rows)


@pytest.mark.stress
@pytest.mark.peer
@pytest.mark.timeout(BESIDE_KAFKA_S + 20)
def test_a_quick_run_measures_both_brokers_at_every_task() -> None:
    report = quick_run("bench_peer.py", timeout_s=BESIDE_KAFKA_S)
    assert len(report["tasks"]) == 10
    assert all(task["peer"] > 0 and task["kdist"] > 0 for task in report["tasks"])
    assert set(report["resident_mib"]) == {"Apache Kafka", "kdist"}
