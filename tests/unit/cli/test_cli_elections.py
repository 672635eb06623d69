"""`kdist cluster elect`: leaders back to preferred replicas, and to what is left of others."""

from __future__ import annotations

import json
from pathlib import Path

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
        assert rows(cluster, "--unclean", "--replaced", 1) == []
        elected = rows(cluster, "--unclean", "--replaced", 2)
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
