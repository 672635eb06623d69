"""`kdist standalone` for real: a ZooKeeper of Java, brokers as processes, signals, restarts."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
from pathlib import Path

import pytest
from broker_processes import settled
from standalone_process import KDIST, ROOT, TIMEOUT_S, Standalone, free_ports, standalone

from kdist.runtime.disk import Disk

COUNT = 300


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return tmp_path / "dätä 数据 \N{GRINNING FACE}"


def offsets(run: Standalone, group: str) -> list[tuple[int, int, int]]:
    described = json.loads(run.run("groups", "describe", group, "--json"))
    return [(each["partition"], each["committed"], each["lag"]) for each in described["offsets"]]


def test_what_was_written_and_committed_is_there_after_a_restart(data: Path) -> None:
    lines = [f"line {number}" for number in range(COUNT)]
    text = "".join(f"{number}={line}\n" for number, line in enumerate(lines))
    with standalone(data, "--brokers", 3) as run:
        run.run("topics", "create", "clicks", "--partitions", 3)
        run.run("produce", "clicks", "--key-separator", "=", text=text)
        seen = run.run("consume", "clicks", "--group", "audit", "--from-beginning", "--max", 100)
        before = offsets(run, "audit")
        assert len(seen.splitlines()) == 100
        assert sum(lag for _, _, lag in before) == COUNT - 100
        assert "audit" in run.run("groups", "list")
        described = run.run("topics", "describe", "clicks", "--json")
        assert run.stop() == (0, "", "")
        assert run.living() == []
    # No count is given: it has the three brokers that have data there. On other ports, too.
    with standalone(data) as run:
        assert len(run.pids) == 4
        assert _places_and_offsets(run.run("topics", "describe", "clicks", "--json")) == (
            _places_and_offsets(described)
        )
        assert offsets(run, "audit") == before
        rest = run.run("consume", "clicks", "--group", "audit", "--until-end")
        assert sorted(seen.splitlines() + rest.splitlines()) == sorted(lines)
        run.run("produce", "clicks", text="one more\n")
        everything = run.run("consume", "clicks", "--from-beginning", "--until-end")
        assert sorted(everything.splitlines()) == sorted([*lines, "one more"])
        assert run.stop(signal.SIGTERM) == (0, "", "")
        assert run.living() == []


def _places_and_offsets(described: str) -> list[dict[str, object]]:
    partitions: list[dict[str, object]] = json.loads(described)["partitions"]
    kept = ("partition", "replicas", "start_offset", "end_offset")
    return [{name: each[name] for name in kept} for each in partitions]


@pytest.mark.stress
def test_brokers_may_be_added_and_get_partitions(data: Path) -> None:
    with standalone(data) as run:
        run.run("topics", "create", "early")
        run.run("produce", "early", text="kept\n")
    with standalone(data, "--brokers", 2) as run:
        assert run.run("consume", "early", "--from-beginning", "--until-end") == "kept\n"
        run.run("topics", "create", "late", "--partitions", 2)
        late = json.loads(run.run("topics", "describe", "late", "--json"))
        assert {each["leader"] for each in late["partitions"]} == {0, 1}


@pytest.mark.stress
def test_a_topics_changed_settings_are_there_after_a_restart(data: Path) -> None:
    with standalone(data) as run:
        run.run("topics", "create", "tuned", "--config", "retention.ms=1000000")
        run.run("topics", "alter", "tuned", "--config", "segment.bytes=2000000")
    with standalone(data) as run:
        found = json.loads(run.run("topics", "describe", "tuned", "--json"))
        assert found["settings"] == {"retention.ms": "1000000", "segment.bytes": "2000000"}
        run.run("topics", "alter", "tuned", "--unset", "retention.ms")
        found = json.loads(run.run("topics", "describe", "tuned", "--json"))
        assert found["settings"] == {"segment.bytes": "2000000"}


@pytest.mark.stress
def test_the_table_names_addresses_processes_and_places(data: Path) -> None:
    run = Standalone(data)
    assert run.process.stdout is not None
    lines = []
    while not lines or not lines[-1].startswith("Ctrl-C"):
        line = run.process.stdout.readline()
        assert line, run.end()
        lines.append(line.rstrip("\n"))
    status, output, errors = run.stop()
    assert (status, output, errors) == (0, "Stopping.\nStopped.\n", "")
    ready = re.fullmatch(
        rf"ZooKeeper and 1 broker are ready, after (\S+) s, with their data in {data}", lines[0]
    )
    assert ready is not None
    assert float(ready[1]) < 20  # 2.5 s on a machine that does nothing else
    rows = [line.split(maxsplit=3) for line in lines[2:5]]
    assert rows[0] == ["NAME", "ADDRESS", "PID", "DATA"]
    assert [(row[0], row[1], row[3]) for row in rows[1:]] == [
        ("zookeeper", f"127.0.0.1:{run.port - 1}", f"{data}/zookeeper"),
        ("d01", f"127.0.0.1:{run.port}", f"{data}/d01"),
    ]
    assert f"  export KDIST_BROKER=127.0.0.1:{run.port}" in lines


def test_a_broker_that_is_killed_is_told_and_started_again_and_the_others_go_on(
    data: Path,
) -> None:
    with standalone(data, "--brokers", 2) as run:
        run.run("topics", "create", "clicks", "--partitions", 2)
        run.run("produce", "clicks", text="kept\n")
        first = run.pids["d02"]
        os.kill(first, signal.SIGKILL)
        assert run.process.stderr is not None
        assert run.process.stderr.readline() == (
            f"kdist: broker d02 was ended by SIGKILL (log: {data}/logs/d02.log.1); it starts again"
            " in 1 s\n"
        )
        log = data / "logs/d02.log"
        settled(lambda: log.exists() and ": ready: " in log.read_text())
        # Its session was ended, so there was nothing to take away from it.
        assert "removing what the last run" not in log.read_text()
        run.pids = json.loads((data / "standalone.json").read_text())["pids"]
        assert run.pids["d02"] != first
        assert run.run("consume", "clicks", "--from-beginning", "--until-end") == "kept\n"
        assert run.stop() == (0, "", "")
        assert run.living() == []


def test_of_three_brokers_one_may_die_and_nothing_stops(data: Path) -> None:
    with standalone(data, "--brokers", 3) as run:
        run.run("topics", "create", "clicks", "--partitions", 3)
        os.kill(run.pids["d03"], signal.SIGKILL)
        lines = [f"line {number}" for number in range(COUNT)]
        run.run("produce", "clicks", text="".join(f"{line}\n" for line in lines))
        seen = run.run("consume", "clicks", "--from-beginning", "--group", "audit", "--until-end")
        assert sorted(seen.splitlines()) == sorted(lines)
        all_well = ["in sync, 0 behind"] * 6 + ["leader, 0 behind"] * 3
        settled(lambda: replicas(run, "clicks") == all_well)
        assert run.stop()[0] == 0


def replicas(run: Standalone, topic: str) -> list[str]:
    """The state of each replica, and how many records it is behind, sorted."""
    described = json.loads(run.run("topics", "describe", topic, "--replicas", "--json"))
    found = [each for part in described["partitions"] for each in part["replica_states"]]
    return sorted(f"{each['state']}, {each['lag_records']} behind" for each in found)


@pytest.mark.stress
def test_a_broker_that_cannot_start_again_ends_all(data: Path) -> None:
    with standalone(data, "--brokers", 2) as run:
        (data / "d02/meta.properties").write_text("version=0\nbroker.id=7\ncluster.id=other\n")
        os.kill(run.pids["d02"], signal.SIGKILL)
        status, _, errors = run.end()
        assert status == 1
        told, why = errors.splitlines()
        assert told.startswith("kdist: broker d02 was ended by SIGKILL (log: ")
        log = f"{data}/logs/d02.log"
        assert why.startswith(f"kdist: broker d02 ended with status 1 (log: {log}): ")
        assert f"{data}/d02/meta.properties belongs to cluster 'other'" in why
        assert run.living() == []


@pytest.mark.stress
def test_a_broker_that_dies_again_starts_again_later(data: Path) -> None:
    with standalone(data) as run:
        assert run.process.stderr is not None
        pid = run.pids["d01"]
        for pause_s in (1, 2):
            os.kill(pid, signal.SIGKILL)
            line = run.process.stderr.readline()
            assert line.endswith(f"; it starts again in {pause_s} s\n")
            pid = settled(
                lambda dead=pid: _pid_but(dead, json.loads((data / "standalone.json").read_text()))
            )
        os.kill(pid, signal.SIGKILL)
        assert run.process.stderr.readline().endswith("in 4 s\n")
        assert run.stop() == (0, "", "")  # while it waits


def _pid_but(dead: int, marker: dict[str, dict[str, int]]) -> int | None:
    """The broker's process id, if it is another than that."""
    pid = marker["pids"].get("d01")
    return pid if pid != dead else None


@pytest.mark.stress
def test_a_zookeeper_that_is_killed_is_told_and_ends_all(data: Path) -> None:
    with standalone(data) as run:
        os.kill(run.pids["zookeeper"], signal.SIGKILL)
        status, _, errors = run.end()
        assert status == 137
        log = f"{data}/logs/zookeeper.log"
        assert errors == f"kdist: ZooKeeper was ended by SIGKILL (log: {log})\n"
        assert run.living() == []


@pytest.mark.stress
def test_after_a_kill_of_all_it_starts_again_with_what_was_acknowledged(data: Path) -> None:
    with standalone(data, "--brokers", 2) as run:
        run.run("topics", "create", "clicks", "--partitions", 2)
        run.run("produce", "clicks", text="kept\n")
        for pid in (run.process.pid, *run.pids.values()):
            os.kill(pid, signal.SIGKILL)
        run.end()
    with standalone(data) as run:
        assert run.run("consume", "clicks", "--from-beginning", "--until-end") == "kept\n"


@pytest.mark.stress
def test_children_that_outlived_a_kill_are_named_with_their_pids(data: Path) -> None:
    with standalone(data, "--brokers", 2) as run:
        run.process.send_signal(signal.SIGKILL)
        run.process.wait(TIMEOUT_S)
        pids = " ".join(map(str, run.pids.values()))
        assert Standalone(data, port=run.port).end() == (
            1,
            "",
            f"kdist: zookeeper, d01, d02 of a run that was killed still run on {data}: end them"
            f" first with `kill {pids}`\n",
        )


@pytest.mark.stress
def test_a_broker_that_does_not_stop_is_ended_by_a_second_interrupt(data: Path) -> None:
    run = Standalone(data)
    assert run.process.stdout is not None
    lines = iter(run.process.stdout.readline, "")
    pid = next(int(line.split()[2]) for line in lines if line.startswith("  d01"))
    next(line for line in lines if line.startswith("Ctrl-C"))
    os.kill(pid, signal.SIGSTOP)
    run.process.send_signal(signal.SIGINT)
    assert next(lines) == "Stopping.\n"
    status, _, errors = run.stop()
    assert status == 137
    assert errors.startswith("kdist: as it stopped, broker d01 was ended by SIGKILL")


@pytest.mark.stress
def test_an_interrupt_while_it_starts_leaves_nothing_running(data: Path) -> None:
    run = Standalone(data, "--brokers", 2)
    run.wait_for(data / "logs/d01.log")
    assert run.stop() == (0, "Stopping.\nStopped.\n", "")
    assert not _processes_on(data)


@pytest.mark.stress
def test_when_nobody_reads_what_it_says_it_stops_and_leaves_nothing_running(data: Path) -> None:
    run = Standalone(data)
    assert run.process.stdout is not None
    assert run.process.stderr is not None
    run.process.stdout.close()
    assert run.process.stderr.read() == ""
    assert run.process.wait(TIMEOUT_S) != 0
    assert not _processes_on(data)


@pytest.mark.stress
def test_a_terminal_that_goes_away_stops_it(data: Path) -> None:
    with standalone(data) as run:
        assert run.stop(signal.SIGHUP) == (0, "", "")
        assert run.living() == []


def _processes_on(data: Path) -> list[str]:
    """Command lines that name the directory."""
    found = []
    for each in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            command = each.read_bytes().decode(errors="replace")
        except OSError:
            continue  # it ended meanwhile
        if str(data) in command:
            found.append(command)
    return found


@pytest.mark.stress
def test_a_log_directory_that_another_broker_has_is_one_sentence(data: Path) -> None:
    (data / "d01").mkdir(parents=True)
    (data / "standalone.json").write_text('{"version": 1, "brokers": 1}')
    lock = Disk().lock(str(data / "d01/.lock"))
    status, _, errors = Standalone(data).end()
    lock.release()
    assert status == 1
    log = f"{data}/logs/d01.log"
    assert errors.startswith(f"kdist: broker d01 ended with status 1 (log: {log}): ")
    assert str(data / "d01") in errors.partition(": broker")[2]
    assert errors.count("\n") == 1


@pytest.mark.stress
def test_a_second_run_on_the_same_directory_is_one_sentence(data: Path) -> None:
    with standalone(data) as run:
        other = Standalone(data)
        sentence = f"kdist: {data} is in use by another `kdist standalone`\n"
        assert other.end() == (1, "", sentence)
        again = Standalone(data.parent / "other", port=run.port)
        status, _, errors = again.end()
        assert status == 1
        assert errors == (
            f"kdist: cannot listen on 127.0.0.1, port {run.port}: another process does already;"
            " choose another with --port\n"
        )


def test_a_java_that_does_not_serve_is_one_sentence(data: Path, tmp_path: Path) -> None:
    java = tmp_path / "bin/java"
    java.parent.mkdir()
    java.write_text("#!/bin/sh\necho this Java is too old >&2\nexit 3\n")
    java.chmod(0o755)
    done = subprocess.run(
        [*KDIST, "standalone", "--data", str(data), "--port", str(free_ports(1))],
        cwd=ROOT,
        env={**os.environ, "JAVA_HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
    )
    assert done.returncode == 1
    assert done.stderr == (
        f"kdist: ZooKeeper ended with status 3; {data}/logs/zookeeper.log says: "
        "this Java is too old\n"
    )
