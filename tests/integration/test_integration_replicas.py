"""What an operator sees of replicas: three brokers of which two die, asked about and gated."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.integration.broker_processes import (
    SETTLED_S,
    BrokerProcess,
    broker_processes,
    settled,
)

REPLICATED = {
    "default_replication_factor": "3",
    "offsets_topic_replication_factor": "3",
    "min_insync_replicas": "2",
}


@pytest.fixture
def brokers(tmp_path: Path, connect: str) -> Iterator[list[BrokerProcess]]:
    with broker_processes(3, tmp_path, connect, **REPLICATED) as brokers:
        yield brokers


def kdist(*words: object, text: str = "") -> tuple[int, str]:
    """The command's status, and what it printed."""
    done = subprocess.run(
        [sys.executable, "-m", "kdist.cli", *map(str, words)],
        input=text,
        capture_output=True,
        text=True,
        timeout=SETTLED_S,
    )
    return done.returncode, done.stdout + done.stderr


def kill(broker: BrokerProcess) -> None:
    """Kill a broker, and end its session as its supervisor would."""
    broker.stop(signal.SIGKILL)
    status, said = kdist("end-session", "--config", broker.file)
    assert status == 0, said


def described(broker: BrokerProcess) -> dict[str, Any]:
    """The one partition, with its replicas and with what ZooKeeper knows of it."""
    where = ("--broker", broker.address, "--zookeeper", broker.settings["zookeeper.connect"])
    status, said = kdist("topics", "describe", "clicks", "--replicas", "--json", *where)
    assert status == 0, said
    (partition,) = json.loads(said)["partitions"]
    found: dict[str, Any] = partition
    return found


def states(partition: dict[str, Any]) -> dict[int, str]:
    return {each["broker"]: each["state"] for each in partition["replica_states"]}


def test_replicas_that_die_are_seen_and_judged_by_the_gate(brokers: list[BrokerProcess]) -> None:
    first = brokers[0]

    def gate(*words: object) -> list[str]:
        """The reasons against."""
        zookeeper = first.settings["zookeeper.connect"]
        _, said = kdist("gate", *words, "--zookeeper", zookeeper, "--json")
        reasons: list[str] = json.loads(said)["reasons"]
        return reasons

    kdist("topics", "create", "clicks", "--partitions", 1, "--broker", first.address)
    settled(lambda: sorted(described(first)["isr"]) == [1, 2, 3])
    status, said = kdist("produce", "clicks", "--broker", first.address, text="a\nb\nc\n")
    assert status == 0, said
    settled(lambda: {each["end_offset"] for each in described(first)["replica_states"]} == {3})
    seen = described(first)
    leader = seen["leader"]
    assert states(seen) == {n: "leader" if n == leader else "in sync" for n in (1, 2, 3)}
    assert (seen["eligible"], seen["emptied"], seen["recovering"]) == ([], [], False)
    assert gate("--broker", 2) == []
    assert gate("--host", "machine-2") == []

    kill(brokers[2])
    seen = settled(lambda: _with_isr(described(first), [1, 2]))
    assert states(seen)[3] == "silent"
    assert seen["eligible"] == []  # the ISR has the two that it needs
    assert gate("--broker", 2) == ["clicks-0 would have 1 in-sync replica, and asks for 2"]

    kill(brokers[1])
    seen = settled(lambda: _with_isr(described(first), [1]))
    assert (seen["leader"], states(seen)[2]) == (1, "silent")
    assert seen["eligible"] == [2]

    brokers[1].start()
    brokers[2].start()
    seen = settled(lambda: _with_isr(described(first), [1, 2, 3]))
    assert seen["eligible"] == []
    assert sorted(states(seen).values()) == ["in sync", "in sync", "leader"]


def _with_isr(partition: dict[str, Any], isr: list[int]) -> dict[str, Any] | None:
    return partition if sorted(partition["isr"]) == isr else None
