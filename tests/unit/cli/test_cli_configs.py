"""`kdist configs`: settings of topics and brokers as a running cluster has them."""

from __future__ import annotations

import json

from tests.unit.cli.cli_cluster import CliCluster


def settings(cluster: CliCluster, *words: str) -> dict[str, dict[str, object]]:
    lines = cluster.done("configs", "describe", *words, "--json").splitlines()
    return {row["setting"]: row for row in map(json.loads, lines)}


def test_a_topics_settings_are_changed_and_their_source_is_shown(cluster: CliCluster) -> None:
    cluster.done("topics", "create", "shaped", "--config", "retention.ms=1000000")
    output = cluster.done("configs", "alter", "topic", "shaped", "--set", "segment.bytes=2000000")
    assert output == "Changed topic shaped: segment.bytes=2000000.\n"
    found = settings(cluster, "topic", "shaped")
    assert found["segment.bytes"]["value"] == "2000000"
    assert found["segment.bytes"]["source"] == "topic"
    assert found["cleanup.policy"]["is_default"]
    assert found["cleanup.policy"]["doc"]
    assert set(settings(cluster, "topic", "shaped", "--own")) == {"retention.ms", "segment.bytes"}
    cluster.done(
        *("configs", "alter", "topic", "shaped", "--unset", "segment.bytes"),
        *("--unset", "retention.ms", "--json"),
    )
    assert cluster.done("configs", "describe", "topic", "shaped", "--own") == (
        "Topic shaped has no settings of its own.\n"
    )


def test_settings_are_picked_by_name_and_pattern(cluster: CliCluster) -> None:
    cluster.done("topics", "create", "picked")
    assert set(settings(cluster, "topic", "picked", "retention.*")) == {
        "retention.bytes",
        "retention.ms",
    }
    assert cluster.refused("configs", "describe", "topic", "picked", "retntion.ms") == (
        "there is no setting retntion.ms: did you mean retention.ms?"
    )


def test_a_change_can_be_tried(cluster: CliCluster) -> None:
    cluster.done("topics", "create", "tested")
    words = ("configs", "alter", "topic", "tested", "--dry-run", "--set")
    assert cluster.done(*words, "segment.bytes=2000000") == (
        "Would change topic tested: segment.bytes=2000000.\n"
    )
    assert settings(cluster, "topic", "tested", "--own") == {}
    assert "segment.bytes is 'x'" in cluster.refused(*words, "segment.bytes=x")


def test_a_brokers_settings_are_shown(cluster: CliCluster) -> None:
    found = settings(cluster, "broker", "1")
    assert found["broker.id"]["value"] == "1"
    assert found["log.dir"]["source"] == "file"
    assert cluster.refused("configs", "describe", "broker", "7") == (
        "there is no broker 7: the cluster has 1, 2"
    )
    assert "is no broker's id" in cluster.refused("configs", "describe", "broker", "one")


def test_what_topics_have_of_their_own_is_listed(cluster: CliCluster) -> None:
    cluster.done("topics", "create", "owning", "--config", "retention.ms=1000000")
    rows = [json.loads(line) for line in cluster.done("configs", "list", "--json").splitlines()]
    assert [(row["setting"], row["value"]) for row in rows if row["of"] == "owning"] == [
        ("retention.ms", "1000000")
    ]
    table = cluster.done("configs", "list").splitlines()
    assert table[0].split() == ["KIND", "NAME", "SETTING", "VALUE", "SOURCE"]


def test_what_makes_no_sense_is_a_wrong_flag(cluster: CliCluster) -> None:
    cluster.done("topics", "create", "senseless")
    for words in ([], ["--set", "a"], ["--set", "a=1", "--unset", "a"]):
        assert cluster.run("configs", "alter", "topic", "senseless", *words).exit_code == 2
    assert cluster.refused("configs", "describe", "topic", "senseles") == (
        "there is no topic senseles: did you mean senseless?"
    )
