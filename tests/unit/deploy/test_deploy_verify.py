"""verify.yml passes a record of its own run through each broker, or fails."""

from __future__ import annotations

import subprocess
import threading
from pathlib import Path

import pytest
import yaml
from deploy_plays import play, script
from deploy_plugins import ROOT

pytestmark = pytest.mark.slow

# Notes each call; keeps what is produced in a file of the topic, and consumes it from there.
KDIST = """\
cd {directory}; echo "$*" >> calls
case "$1 $4" in
"gate "*) [ ! -e refused ] ;;
"produce $(cat deaf 2>/dev/null)") cat >/dev/null ;;
"produce "*) cat >> "$2"; echo >> "$2" ;;
"consume "*) cat "$2" ;;
esac
"""


def verify(directory: Path) -> subprocess.CompletedProcess[str]:
    """From the gate on, verify.yml's play over a cluster of two hosts with a broker each."""
    (found,) = [
        each
        for each in yaml.safe_load((ROOT / "playbooks/verify.yml").read_text())
        if each.get("hosts") == "broker"
    ]
    names = [task["name"] for task in found["tasks"]]
    (first,) = [n for n, name in enumerate(names) if name.startswith("Ask whether all are fully")]
    tasks = found["tasks"][first:]
    script(directory / "kdist", KDIST.format(directory=directory))
    hosts = {
        name: {
            "kdist_brokers": [{"instance": "d01", "id": number * 100 + 1, "port": 9090 + number}]
        }
        for name, number in (("a", 1), ("b", 2))
    }
    (directory / "hosts.yml").write_text(yaml.safe_dump({"all": {"hosts": hosts}}))
    return play(
        directory,
        {"hosts": "all", "gather_facts": False, "vars": found["vars"], "tasks": tasks},
        inventory=directory / "hosts.yml",
        kdist_members_broker=["a", "b"],
        kdist_current=str(directory / "kdist"),
        kdist_bootstrap_servers="all",
        kdist_zookeeper_connect="zk1:2181",
        kdist_address="host",
        kdist_roll_run_id="run-2",
    )


def calls(directory: Path, verb: str) -> list[list[str]]:
    lines = (directory / "calls").read_text().splitlines()
    return [line.split() for line in lines if line.startswith(verb)]


def test_a_verification_passes_a_record_through_each_broker(tmp_path: Path) -> None:
    done = verify(tmp_path)
    assert done.returncode == 0, done.stdout
    # However many hosts there are, the cluster is asked once.
    (asked,) = calls(tmp_path, "gate")
    assert asked == [
        *("gate", "--after", "--zookeeper", "zk1:2181"),
        *("--brokers", "101,201", "--expect", "101,201"),
    ]
    records = (tmp_path / "kdist-probe-verify-run-2").read_text().split("\n")
    assert sorted(filter(None, records)) == ["run-2 101", "run-2 201"]
    assert len(calls(tmp_path, "topics delete")) == 1


def test_a_verification_fails_where_a_broker_lets_no_record_through(tmp_path: Path) -> None:
    (tmp_path / "refused").touch()
    assert verify(tmp_path).returncode != 0


def test_records_of_an_earlier_run_are_not_taken_for_this_ones(tmp_path: Path) -> None:
    """Even if they are in the topic: they were written through both brokers."""
    for topic in ("kdist-probe-verify", "kdist-probe-verify-run-2"):
        stale = ["written through 101", "written through 201", "run-1 101", "run-1 201"]
        (tmp_path / topic).write_text("\n".join(stale) + "\n")
    (tmp_path / "deaf").write_text("host:9092")
    done = verify(tmp_path)
    assert done.returncode != 0
    assert "Read it all from the other end" in done.stdout
    # However it ends, it leaves no topic of its own behind.
    assert len(calls(tmp_path, "topics delete")) == 1


def look_at_canary(directory: Path, growing: tuple[int, ...]) -> subprocess.CompletedProcess[str]:
    """The role's tasks beside an agent whose canary gets records through the `growing` brokers."""
    counts = {101: 7, 201: 9}
    file, is_over = directory / "kdist.prom", threading.Event()

    def write() -> None:
        while not is_over.wait(0.05):
            counts.update((broker, counts[broker] + 1) for broker in growing)
            lines = (f'kdist_canary_seconds_count{{broker="{b}"}} {n}.0' for b, n in counts.items())
            (directory / "new").write_text("\n".join(lines) + "\n")
            (directory / "new").replace(file)

    writer = threading.Thread(target=write)
    writer.start()
    try:
        tasks = yaml.safe_load((ROOT / "roles/kdist_monitoring/tasks/canary.yml").read_text())
        hosts = {
            name: {"kdist_brokers": [{"id": number}]} for name, number in (("a", 101), ("b", 201))
        }
        (directory / "hosts.yml").write_text(yaml.safe_dump({"all": {"hosts": hosts}}))
        return play(
            directory,
            {"hosts": "a", "gather_facts": False, "tasks": tasks},
            inventory=directory / "hosts.yml",
            kdist_members_broker=["a", "b"],
            kdist_monitoring_metrics_file=str(file),
            kdist_monitoring_canary_topic="kdist.canary",
            kdist_monitoring_wait_s=4,
        )
    finally:
        is_over.set()
        writer.join()


def test_a_verification_waits_for_the_canary_of_every_broker(tmp_path: Path) -> None:
    done = look_at_canary(tmp_path, (101, 201))
    assert done.returncode == 0, done.stdout


def test_a_verification_fails_where_a_canary_has_counted_nothing_since(tmp_path: Path) -> None:
    assert look_at_canary(tmp_path, (101,)).returncode != 0
