"""`kdist cluster` and `kdist topics delete-records`: what an operator sees of brokers and disks."""

from __future__ import annotations

import json
import time
from pathlib import Path

from tests.unit.cli.cli_cluster import CliCluster, cli_cluster


def test_the_cluster_is_described(cluster: CliCluster) -> None:
    found = json.loads(cluster.done("cluster", "describe", "--json"))
    assert found["controller"] in (1, 2)
    assert [each["broker"] for each in found["brokers"]] == [1, 2]
    assert found["brokers"][0]["versions"]["Metadata"] == [0, 12]
    for each in found["brokers"]:  # some partitions have replicas on both
        assert each["leads"] <= each["replicas"]
    lines = cluster.done("cluster", "describe").splitlines()
    assert lines[0].startswith(f"Cluster {found['cluster']}: 2 brokers, controller ")
    assert lines[1].split()[:4] == ["BROKER", "ADDRESS", "RACK", "ROLE"]
    assert len(lines) == 4


def test_disks_are_shown_with_what_is_on_them(cluster: CliCluster) -> None:
    cluster.done("topics", "create", "heavy", "--partitions", 2)
    cluster.done("produce", "heavy", "--partition", 0, text="x" * 5000 + "\n")
    table = cluster.done("cluster", "disks").splitlines()
    assert [line.split()[0] for line in table] == ["BROKER", "1", "2"]
    assert all("works" in line for line in table[1:])
    rows = [json.loads(line) for line in cluster.done("cluster", "disks", "--json").splitlines()]
    sizes = {
        (each["topic"], each["partition"]): each["size_bytes"]
        for row in rows
        for each in row["replicas"]
    }
    assert sizes[("heavy", 0)] > 5000 > sizes[("heavy", 1)]
    assert "heavy-0" in cluster.done("cluster", "disks", "--replicas")
    assert len(cluster.done("cluster", "disks", 2).splitlines()) == 2
    assert "there is no broker 7" in cluster.refused("cluster", "disks", 7)


def test_a_healthy_cluster_is_reported_as_such(cluster: CliCluster) -> None:
    found = json.loads(cluster.done("cluster", "health", "--json"))
    assert (found["is_well"], [f for f in found["findings"] if f["level"] == "bad"]) == (True, [])


def test_a_missing_broker_is_a_bad_finding(tmp_path: Path) -> None:
    with cli_cluster(tmp_path) as running:
        running.done("topics", "create", "spread", "--partitions", 2)
        running.stop_broker(2)
        end_s = time.monotonic() + 30
        bad: set[str] = set()
        while not bad >= {"BrokerDown", "OfflinePartitions"}:
            assert time.monotonic() < end_s, bad
            result = running.run("cluster", "health", "--json")
            bad = {each["name"] for each in json.loads(result.stdout)["findings"]}
        assert result.exit_code == 1
        described = json.loads(running.done("cluster", "describe", "--json"))
        assert ([each["broker"] for each in described["brokers"]], described["down"]) == ([1], [2])
        assert "Broker 2 is down, and has 1 replica." in running.done("cluster", "describe")
        for words in ((), ("--json",), ("--replicas",)):
            shown = running.run("cluster", "disks", *words)
            assert (shown.exit_code, "Broker 2 is down" in shown.stderr) == (1, True)
            assert shown.stdout
        running.done("cluster", "disks", 1)
        text = running.run("cluster", "health").stdout
        assert "Partitions have no leader." in text
        assert "broker 2" in text


def test_records_of_a_compacted_topic_are_not_deleted_nor_said_to_be(cluster: CliCluster) -> None:
    cluster.done("topics", "create", "kept", "--config", "cleanup.policy=compact")
    cluster.done("produce", "kept", "--key", "k", text="x\n" * 3)
    for words in ((), ("--dry-run",)):
        told = cluster.refused("topics", "delete-records", "kept", "--all", *words)
        assert "cleanup.policy=compact" in told
    cluster.done("topics", "alter", "kept", "--config", "cleanup.policy=compact,delete")
    cluster.done("topics", "delete-records", "kept", "--all")


def test_the_oldest_records_are_deleted(cluster: CliCluster) -> None:
    cluster.done("topics", "create", "cut", "--partitions", 2)
    for partition in range(2):
        cluster.done("produce", "cut", "--partition", partition, text="x\n" * 10)
    words = ("topics", "delete-records", "cut", "--before-offset", 4)
    assert cluster.done(*words, "--dry-run").endswith("8 records would be deleted.\n")
    assert cluster.done(*words).endswith("Deleted 8 records.\n")
    output = cluster.done("topics", "delete-records", "cut:1", "--all", "--json")
    assert json.loads(output) == {
        "topic": "cut",
        "partition": 1,
        "start_offset": 10,
        "end_offset": 10,
        "deleted": 6,
        "carried_out": True,
    }
    assert cluster.done("consume", "cut", "--from-beginning", "--until-end") == "x\n" * 6
    kept = cluster.done("topics", "delete-records", "cut:0", "--before-time", "2000-01-01")
    assert kept.endswith("Deleted 0 records.\n")
    assert cluster.run("topics", "delete-records", "cut").exit_code == 2
    assert "no partition 2" in cluster.refused("topics", "delete-records", "cut:2", "--all")
    beyond = cluster.refused("topics", "delete-records", "cut", "--before-offset", 99)
    assert "cut-0 ends at offset" in beyond
