"""`kdist cluster`, deleted records, elections, moves: what an operator sees of a cluster."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kdist.broker.broker import Broker
from kdist.client.admin.reassignments import alter_partition_reassignments
from kdist.client.cluster import Cluster, cluster_at, parse_addresses
from kdist.model import TopicPartition
from kdist.network.client import Client
from kdist.replication.partition import Partition
from tests.unit.cli.cli_cluster import CliCluster, cli_cluster


def rows(cluster: CliCluster, *words: object) -> list[dict[str, object]]:
    return [
        json.loads(line)
        for line in cluster.run("cluster", "elect", *words, "--json").stdout.splitlines()
    ]


def partitions(cluster: CliCluster, topic: str) -> list[dict[str, object]]:
    found: list[dict[str, object]] = json.loads(
        cluster.done("topics", "describe", topic, "--json")
    )["partitions"]
    return found


def hold_copies(cluster: CliCluster) -> None:
    """Have no broker fetch what it is only to get."""
    for broker in cluster.brokers:
        fetchers, id_ = broker.service.replicas._fetchers, broker.id
        update = fetchers.update

        def mine(partition: Partition, id_: int = id_, update: Any = update) -> None:
            if id_ not in partition.adding:
                update(partition)

        fetchers.update = mine  # type: ignore[method-assign]


def know_of(broker: Broker, targets: dict[TopicPartition, list[int]]) -> bool:
    """Whether a broker has been told of the replicas that are to be added."""
    topics = broker.service.cache.topics
    return all(
        {*wanted} <= {*topics[key.topic].partitions[key.partition].replicas}
        for key, wanted in targets.items()
    )


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
        cluster.until(lambda: all(know_of(broker, targets) for broker in cluster.brokers))
        yield cluster


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


def told_of_disks(cluster: CliCluster, broker: int) -> tuple[str, str, str]:
    """What the table, JSON and the list of replicas say of a broker whose disk is not known."""
    table, by_json, replicas = (
        cluster.run("cluster", "disks", *words) for words in ((), ("--json",), ("--replicas",))
    )
    assert (table.exit_code, by_json.exit_code, replicas.exit_code) == (1, 1, 1)
    rows = [json.loads(line) for line in by_json.stdout.splitlines()]
    [row] = [row for row in rows if row["broker"] == broker]
    assert (row["directory"], row["logs_bytes"], row["replicas"]) == (None, None, [])
    [words] = [each.split() for each in table.stdout.splitlines() if each.split()[0] == f"{broker}"]
    assert [words[1], *words[3:]] == ["-"] * 5
    last = replicas.stdout.splitlines()[-1].partition(":")[0]
    return words[2], row["error"], last.removeprefix(f"Broker {broker} ")


def test_a_broker_that_does_not_answer_is_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ask = Cluster.client

    async def client(cluster: Cluster, broker: int) -> Client:
        if broker == 2:
            raise TimeoutError  # as after 5 s of silence
        return await ask(cluster, broker)

    monkeypatch.setattr(Cluster, "client", client)
    with cli_cluster(tmp_path) as running:
        assert told_of_disks(running, 2) == ("silent", "REQUEST_TIMED_OUT", "is silent")
        shown = running.run("cluster", "describe")
        assert (shown.exit_code, shown.stdout.splitlines()[-1]) == (
            1,
            "Broker 2 does not answer.",
        )


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
        described = running.run("cluster", "describe", "--json")
        found = json.loads(described.stdout)
        assert ([each["broker"] for each in found["brokers"]], found["down"]) == ([1], [2])
        shown = running.run("cluster", "describe")
        assert "Broker 2 is down, and has 1 replica." in shown.stdout
        assert (described.exit_code, shown.exit_code) == (1, 1)
        assert told_of_disks(running, 2) == ("down", "BROKER_NOT_AVAILABLE", "is down")
        assert running.run("cluster", "disks", 2).exit_code == 1
        running.done("cluster", "disks", 1)
        listed = running.run("configs", "list", "--json")
        told = "kdist: broker 2 is down: its settings are not listed\n"
        assert (listed.exit_code, listed.stderr) == (1, told)
        text = running.run("cluster", "health").stdout
        assert "Partitions have no leader." in text
        assert "broker 2" in text


def test_records_of_a_compacted_topic_are_not_deleted_nor_said_to_be(cluster: CliCluster) -> None:
    cluster.done("topics", "create", "kept", "--config", "cleanup.policy=compact")
    cluster.done("produce", "kept", "--key", "k", text="x\n" * 3)
    for words in ((), ("--dry-run",)):
        told = cluster.refused("topics", "delete-records", "--yes", "kept", "--all", *words)
        assert "cleanup.policy=compact" in told
    cluster.done("topics", "alter", "kept", "--config", "cleanup.policy=compact,delete")
    told = cluster.done("topics", "delete-records", "--yes", "kept", "--all")
    assert told.endswith("Deleted up to 3 records.\n")


def test_offsets_of_a_compacted_topic_are_not_called_records(cluster: CliCluster) -> None:
    cluster.done("topics", "create", "states", "--config", "cleanup.policy=compact,delete")
    table = cluster.done("topics", "describe", "states")
    trim = cluster.done("topics", "delete-records", "states", "--all", "--dry-run")
    for shown in (table, trim):
        assert "OFFSETS" in shown
        assert "RECORDS" not in shown
    assert "Up to 0 records would be deleted." in trim


def test_the_oldest_records_are_deleted(cluster: CliCluster) -> None:
    cluster.done("topics", "create", "cut", "--partitions", 2)
    for partition in range(2):
        cluster.done("produce", "cut", "--partition", partition, text="x\n" * 10)
    words = ("topics", "delete-records", "--yes", "cut", "--before-offset", 4)
    assert cluster.done(*words, "--dry-run").endswith("8 records would be deleted.\n")
    assert cluster.done(*words).endswith("Deleted 8 records.\n")
    output = cluster.done("topics", "delete-records", "--yes", "cut:1", "--all", "--json")
    assert json.loads(output) == {
        "topic": "cut",
        "partition": 1,
        "start_offset": 10,
        "end_offset": 10,
        "deleted": 6,
        "carried_out": True,
    }
    assert cluster.done("consume", "cut", "--from-beginning", "--until-end") == "x\n" * 6
    kept = cluster.done("topics", "delete-records", "--yes", "cut:0", "--before-time", "2000-01-01")
    assert kept.endswith("Deleted 0 records.\n")
    assert cluster.run("topics", "delete-records", "--yes", "cut").exit_code == 2
    assert "no partition 2" in cluster.refused(
        "topics", "delete-records", "--yes", "cut:2", "--all"
    )
    beyond = cluster.refused("topics", "delete-records", "--yes", "cut", "--before-offset", 99)
    assert "cut-0 ends at offset" in beyond


def test_preferred_replicas_lead_again_once_they_are_in_sync(tmp_path: Path) -> None:
    with cli_cluster(tmp_path) as cluster:
        cluster.done("topics", "create", "clicks", "--partitions", 2, "--replication-factor", 2)
        assert cluster.done("cluster", "elect") == "No partition needs an election.\n"
        assert [each["elected"] for each in rows(cluster, "clicks")] == [False, False]
        cluster.stop_broker(2)
        [moved] = [each["partition"] for each in rows(cluster, "--dry-run")]
        assert [each["partition"] for each in rows(cluster, "clicks", "--dry-run")] == [moved]
        failed = cluster.run("cluster", "elect", f"clicks:{moved}")
        assert failed.exit_code == 1
        assert "Broker 2 is not in the ISR, or not alive." in failed.stdout
        cluster.start_broker(2)
        cluster.until(lambda: all(len(each["isr"]) == 2 for each in partitions(cluster, "clicks")))
        table = cluster.done("cluster", "elect", "clicks").splitlines()
        assert table[0].split() == ["TOPIC", "PARTITION", "PREFERRED", "LEADER", "OUTCOME"]
        assert sorted(line.split()[4] for line in table[1:3]) == ["elected", "not"]
        assert table[3] == "Elected leaders of 1 partition."
        assert rows(cluster) == []


def test_what_only_a_replaced_disk_had_is_led_by_an_order(tmp_path: Path) -> None:
    with cli_cluster(tmp_path) as cluster:
        cluster.done("topics", "create", "clicks", "--partitions", 4)
        cluster.stop_broker(2)
        cluster.until(lambda: len(rows(cluster, "--unclean", "--dry-run")) == 2)
        gone = [each["partition"] for each in rows(cluster, "--unclean", "--dry-run")]
        cluster.start_broker(2, is_disk_new=True)
        assert [each["partition"] for each in rows(cluster, "--unclean", "--dry-run")] == gone
        assert rows(cluster, "--unclean", "--yes", "--replaced", 1) == []
        elected = rows(cluster, "--unclean", "--yes", "--replaced", 2)
        assert [(each["partition"], each["elected"]) for each in elected] == [
            (number, True) for number in gone
        ]
        assert [each["leader"] for each in elected] == [2] * len(gone)
        assert cluster.done("produce", "clicks", "--partition", gone[0], text="x\n")


def test_replaced_goes_with_unclean_alone(cluster: CliCluster) -> None:
    result = cluster.run("cluster", "elect", "--replaced", 1)
    assert result.exit_code == 2
    assert "--replaced needs --unclean." in result.stderr


def test_a_partition_that_does_not_exist_is_named(cluster: CliCluster) -> None:
    cluster.done("topics", "create", "short")
    assert "topic short has no partition 3" in cluster.refused("cluster", "elect", "short:3")


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
