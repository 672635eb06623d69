"""`kdist topics apply`: the plan is shown, carried out once, and refused as a whole."""

from __future__ import annotations

import json
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from kdist.client import topic_settings
from kdist.runtime.clock import SystemClock
from kdist.zk.client import ZooKeeper
from kdist.zk.memory import MemoryEnsemble
from tests.unit.cli.cli_cluster import CliCluster


@asynccontextmanager
async def empty_zookeeper(_address: str) -> AsyncIterator[ZooKeeper]:
    """Where no topic has settings of its own."""
    client = MemoryEnsemble(SystemClock(), random.Random(1)).client()
    await client.connect()
    try:
        yield client
    finally:
        await client.close()


@pytest.fixture(autouse=True)
def zookeeper(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topic_settings, "zookeeper_at", empty_zookeeper)


def write(path: Path, *topics: dict[str, object]) -> Path:
    file = path / "topics.json"
    file.write_text(json.dumps(topics))
    return file


def test_topics_are_created_once_and_grow(cluster: CliCluster, tmp_path: Path) -> None:
    file = write(tmp_path, {"name": "coded", "partitions": 2})
    words = ("topics", "apply", file, "--zookeeper", "zk")
    assert cluster.done(*words, "--plan") == "plan  create topic coded\n"
    assert "coded" not in cluster.done("topics", "list")
    assert cluster.done(*words) == "do    create topic coded\n"
    assert cluster.done(*words) == "Every topic is as it shall be.\n"
    write(tmp_path, {"name": "coded", "partitions": 3})
    assert json.loads(cluster.done(*words, "--json")) == {
        "steps": ["grow topic coded to 3 partitions"],
        "refusals": [],
        "carried_out": True,
    }
    write(tmp_path, {"name": "coded", "state": "absent"})
    assert cluster.run(*words).exit_code == 1
    confirmed = cluster.done(*words, "--delete", "coded")
    assert confirmed == "do    delete topic coded with all its records\n"
    assert "coded" not in cluster.done("topics", "list")


def test_with_one_wish_refused_nothing_is_done(cluster: CliCluster, tmp_path: Path) -> None:
    cluster.done("topics", "create", "fixed", "--partitions", 2)
    file = write(tmp_path, {"name": "other"}, {"name": "fixed", "partitions": 1})
    result = cluster.run("topics", "apply", file, "--zookeeper", "zk")
    assert result.exit_code == 1
    assert result.stdout.splitlines() == [
        "no    topic fixed has 2 partitions, and they only become more: not 1",
        "plan  create topic other",
    ]
    assert "other" not in cluster.done("topics", "list")


def test_a_file_that_cannot_be_read_is_named(cluster: CliCluster, tmp_path: Path) -> None:
    file = tmp_path / "topics.json"
    words = ("topics", "apply", file, "--zookeeper", "zk")
    assert cluster.refused(*words) == f"{file} is not there"
    file.write_text("[")
    assert cluster.refused(*words).startswith(f"{file} is not JSON: ")
