"""What commands say of a topic while its partitions move: what is wanted, and that they move."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kdist.client.admin.reassignments import alter_partition_reassignments
from kdist.client.cluster import cluster_at, parse_addresses
from kdist.model import TopicPartition
from kdist.replication.partition import Partition
from tests.unit.cli.cli_cluster import CliCluster, cli_cluster


def hold_copies(cluster: CliCluster) -> None:
    """Have no broker fetch what it is only to get."""
    for broker in cluster.brokers:
        fetchers, id_ = broker.service.replicas._fetchers, broker.id
        see_to = fetchers.see_to

        def mine(partition: Partition, id_: int = id_, see_to: Any = see_to) -> None:
            if id_ not in partition.adding:
                see_to(partition)

        fetchers.see_to = mine  # type: ignore[method-assign]


@pytest.fixture(scope="module")
def moving(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CliCluster]:
    """Two replicas each: of `swapped` all are to be others, `grown` is to have three."""
    with cli_cluster(tmp_path_factory.mktemp("moving"), brokers=4) as cluster:
        words = ("--partitions", 2, "--replication-factor", 2)
        targets: dict[TopicPartition, list[int]] = {}
        for topic in ("swapped", "grown"):
            cluster.done("topics", "create", topic, *words)
            told = json.loads(cluster.done("topics", "describe", topic, "--json"))
            for each in told["partitions"]:
                others = [broker for broker in (1, 2, 3, 4) if broker not in each["replicas"]]
                wanted = others if topic == "swapped" else [others[0], *each["replicas"]]
                targets[TopicPartition(topic, each["partition"])] = wanted
        hold_copies(cluster)

        async def begin() -> None:
            with cluster_at(parse_addresses(cluster.address), "tests") as client:
                await alter_partition_reassignments(client, targets)

        asyncio.run(begin())
        yield cluster


def test_topics_have_as_many_replicas_as_are_wanted(moving: CliCluster) -> None:
    rows = map(json.loads, moving.done("topics", "list", "--json").splitlines())
    assert {each["topic"]: (each["replication_factor"], each["moving"]) for each in rows} == {
        "swapped": (2, 2),
        "grown": (3, 2),
    }
    assert "MOVING" in moving.done("topics", "list")
    described = moving.done("topics", "describe", "swapped")
    assert described.startswith("swapped  2 partitions, replication factor 2, 2 moving\n")
    assert "ADDING" in described
    told = json.loads(moving.done("topics", "describe", "swapped", "--replicas", "--json"))
    for each in told["partitions"]:
        states = {one["broker"]: one["state"] for one in each["replica_states"]}
        assert {states[broker] for broker in each["adding"]} <= {"adding", "silent"}
        assert {*each["adding"]} | {*each["removing"]} == {*each["replicas"]} == {1, 2, 3, 4}


def test_a_file_of_topics_is_applied_by_what_is_wanted(moving: CliCluster, tmp_path: Path) -> None:
    file = tmp_path / "topics.json"
    wanted = [{"name": "swapped", "replication_factor": 2, "config": {"retention.ms": 1000000}}]
    file.write_text(json.dumps([*wanted, {"name": "grown", "replication_factor": 3}]))
    applied = moving.done("topics", "apply", file)
    assert applied == "do    set retention.ms=1000000 of topic swapped\n"
    file.write_text(json.dumps([{"name": "grown", "replication_factor": 2}]))
    assert "has 3 replicas of each partition" in moving.run("topics", "apply", file).stdout


def test_replicas_on_their_way_are_no_fault(moving: CliCluster) -> None:
    told = json.loads(moving.done("cluster", "health", "--json"))
    names = {each["name"]: len(each["items"]) for each in told["findings"]}
    assert names.pop("Reassigning") == 4
    assert not names.keys() & {"UnderReplicatedPartitions", "LeadersNotPreferred"}
    assert moving.done("cluster", "elect") == "No partition needs an election.\n"
