"""`kdist configs`: settings of topics and brokers as a running cluster has them."""

from __future__ import annotations

import json

import pytest

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


def test_a_change_can_be_validated_only(cluster: CliCluster) -> None:
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
    assert "is not a broker id" in cluster.refused("configs", "describe", "broker", "one")


def test_settings_that_topics_override_are_listed(cluster: CliCluster) -> None:
    cluster.done("topics", "create", "owning", "--config", "retention.ms=1000000")
    rows = [json.loads(line) for line in cluster.done("configs", "list", "--json").splitlines()]
    assert [(row["setting"], row["value"]) for row in rows if row["of"] == "owning"] == [
        ("retention.ms", "1000000")
    ]
    table = cluster.done("configs", "list").splitlines()
    assert table[0].split() == ["KIND", "NAME", "SETTING", "VALUE", "SOURCE"]


def test_contradictory_flags_exit_with_2(cluster: CliCluster) -> None:
    cluster.done("topics", "create", "senseless")
    for words in ([], ["--set", "a"], ["--set", "a=1", "--unset", "a"]):
        assert cluster.run("configs", "alter", "topic", "senseless", *words).exit_code == 2
    assert cluster.refused("configs", "describe", "topic", "senseles") == (
        "there is no topic senseles: did you mean senseless?"
    )


def test_settings_of_brokers_are_changed_while_they_run(cluster: CliCluster) -> None:
    cluster.done("topics", "create", "governed")
    words = ("configs", "alter", "broker")
    assert cluster.done(*words, "all", "--set", "log.roll.ms=9000000") == (
        "Changed all brokers: log.roll.ms=9000000.\n"
    )
    cluster.done(*words, 2, "--set", "log.roll.ms=8000000")
    assert settings(cluster, "broker", "all")["log.roll.ms"]["value"] == "9000000"
    own = settings(cluster, "broker", "2", "--own")["log.roll.ms"]
    assert (own["value"], own["source"], own["is_read_only"]) == ("8000000", "broker", False)
    found = settings(cluster, "broker", "2", "broker.id")
    assert found["broker.id"]["is_read_only"]
    rows = [line.split() for line in cluster.done("configs", "list").splitlines()]
    assert [row for row in rows if row[0] == "broker"] == [
        ["broker", "all", "log.roll.ms", "9000000", "all", "brokers"],
        ["broker", "2", "log.roll.ms", "8000000", "broker"],
    ]
    cluster.done(*words, "all", "--unset", "log.roll.ms")
    cluster.done(*words, 2, "--unset", "log.roll.ms")
    assert cluster.done("configs", "describe", "broker", "all") == (
        "All brokers together have no settings of their own.\n"
    )
    assert cluster.done("configs", "describe", "broker", "2", "--own") == (
        "Broker 2 has no settings of its own.\n"
    )


def test_an_impossible_change_of_brokers_is_refused_in_a_sentence(cluster: CliCluster) -> None:
    for broker in ("1", "all"):
        words = ("configs", "alter", "broker", broker)
        for change, sentence in {
            "--set log.segment.byte=1": "did you mean log.segment.bytes?",
            "--set log.segment.bytes=x": "log.segment.bytes is 'x', but must be an integer from",
            "--set num.partitions=2": "num.partitions cannot be changed while a broker runs",
            "--unset log.segment.byte": "did you mean log.segment.bytes?",
        }.items():
            assert sentence in cluster.refused(*words, *change.split())
    assert "there is no broker 7" in cluster.refused(
        *("configs", "alter", "broker", "7", "--set", "log.roll.ms=1")
    )


def test_a_clients_quotas_are_set_shown_and_unset(cluster: CliCluster) -> None:
    words = ("configs", "alter", "client")
    assert cluster.done(*words, "all", "--set", "producer_byte_rate=1048576") == (
        "Changed all clients: producer_byte_rate=1048576.\n"
    )
    cluster.done(*words, "etl", "--set", "request_percentage=12.5")
    found = settings(cluster, "client", "etl")
    assert {name: (each["value"], each["source"]) for name, each in found.items()} == {
        "producer_byte_rate": ("1048576", "all clients"),
        "request_percentage": ("12.5", "client"),
    }
    assert set(settings(cluster, "client", "etl", "--own")) == {"request_percentage"}
    rows = [json.loads(line) for line in cluster.done("configs", "list", "--json").splitlines()]
    assert [(row["of"], row["setting"]) for row in rows if row["kind"] == "client"] == [
        ("all", "producer_byte_rate"),
        ("etl", "request_percentage"),
    ]
    cluster.done(*words, "all", "--unset", "producer_byte_rate")
    cluster.done(*words, "etl", "--unset", "request_percentage")
    shown = [cluster.done("configs", "describe", "client", each) for each in ("etl", "all")]
    assert shown == ["Client etl has no quotas.\n", "All clients together have no quotas.\n"]


def test_a_client_that_is_called_all_is_told_from_all_clients(cluster: CliCluster) -> None:
    alter, describe = (
        ("configs", "alter", "client", "all"),
        ("configs", "describe", "client", "all"),
    )
    name = "consumer_byte_rate"
    cluster.done(*alter, "--set", f"{name}=2000000")
    told = cluster.done(*alter, "--named", "--set", f"{name}=1000000")
    assert told == f'Changed client "all": {name}=1000000.\n'
    rows = [json.loads(line) for line in cluster.done("configs", "list", "--json").splitlines()]
    assert {
        (row["of"], row["value"], row["source"]) for row in rows if row["kind"] == "client"
    } == {
        ("all", "2000000", "all clients"),
        ('"all"', "1000000", "client"),
    }
    # Which one is meant has to be said now.
    for words in (describe, (*alter, "--unset", name), (*alter, "--set", f"{name}=1")):
        assert "a client called 'all' has quotas" in cluster.refused(*words)
    assert settings(cluster, "client", "all", "--named")[name]["value"] == "1000000"
    assert settings(cluster, "client", "all", "--default")[name]["value"] == "2000000"
    cluster.done(*alter, "--named", "--unset", name)
    assert settings(cluster, "client", "all")[name]["value"] == "2000000"
    cluster.done(*alter, "--default", "--unset", name)
    assert cluster.done(*describe) == "All clients together have no quotas.\n"
    for kind in ("topic", "broker"):
        result = cluster.run("configs", "describe", kind, "all", "--named")
        assert result.exit_code == 2
        assert "are for the client" in result.stderr


def test_quotas_of_a_user_and_of_its_clients_are_set_shown_and_unset(cluster: CliCluster) -> None:
    name = "producer_byte_rate"
    changes = [
        (("user", "alice"), "user alice"),
        (("user", "all"), "all users"),
        (("client", "etl", "--user", "alice"), "client etl of user alice"),
        (("client", "all", "--user", "all"), "all clients of all users"),
    ]
    for value, (of, shown) in enumerate(changes, 1):
        told = cluster.done("configs", "alter", *of, "--set", f"{name}={value}")
        assert told == f"Changed {shown}: {name}={value}.\n"
    rows = [json.loads(line) for line in cluster.done("configs", "list", "--json").splitlines()]
    listed = {(r["kind"], r["of"], r["value"], r["source"]) for r in rows if r["setting"] == name}
    assert listed == {
        ("user", "alice", "1", "user"),
        ("user", "all", "2", "all users"),
        ("client", "etl of user alice", "3", "client of user"),
        ("client", "all of all users", "4", "all clients of all users"),
    }
    in_force = {
        ("user", "alice"): ("1", "user"),
        ("user", "bob"): ("2", "all users"),
        ("client", "etl", "--user", "alice"): ("3", "client of user"),
        ("client", "x", "--user", "alice"): ("1", "user"),
        ("client", "etl", "--user", "bob"): ("4", "all clients of all users"),
    }
    for of, (quota, source) in in_force.items():
        found = settings(cluster, *of)[name]
        assert (found["value"], found["source"]) == (quota, source), of
    assert not settings(cluster, "client", "x", "--user", "bob", "--own")
    for of, _ in changes:
        cluster.done("configs", "alter", *of, "--unset", name)
    assert cluster.done("configs", "describe", "user", "alice") == "User alice has no quotas.\n"
    refused = cluster.run("configs", "describe", "topic", "t", "--user", "alice")
    assert (refused.exit_code, "--user is for a client" in refused.stderr) == (2, True)


def test_a_setting_without_effect_is_told_to_have_none(cluster: CliCluster) -> None:
    for words, name in (
        (("broker", 1), "num.io.threads"),
        (("broker", "all"), "background.threads"),
        (("broker", 1), "log.cleaner.threads"),
    ):
        result = cluster.run("configs", "alter", *words, "--set", f"{name}=9")
        assert result.exit_code == 0
        assert result.stderr.startswith(f"{name} has no effect. Ignored: ")
        assert not cluster.run("configs", "alter", *words, "--unset", name).stderr
    told = cluster.run("configs", "alter", "broker", 1, "--set", "log.roll.ms=9000000")
    assert (told.exit_code, told.stderr) == (0, "")
    cluster.done("configs", "alter", "broker", 1, "--unset", "log.roll.ms")


def test_a_topic_that_is_called_all_is_one(cluster: CliCluster) -> None:
    cluster.done("topics", "create", "all")
    told = cluster.done("configs", "alter", "topic", "all", "--set", "retention.ms=5000")
    assert told == "Changed topic all: retention.ms=5000.\n"
    assert settings(cluster, "topic", "all")["retention.ms"]["value"] == "5000"
    cluster.done("topics", "delete", "--yes", "all")


@pytest.mark.parametrize("client", ["*", "-", "--", "default", "<others>", "all clients", "none"])
def test_a_clients_id_may_be_any_other_word(cluster: CliCluster, client: str) -> None:
    quota = "producer_byte_rate"
    cluster.done("configs", "alter", "client", "--set", f"{quota}=5", "--", client)
    rows = [json.loads(line) for line in cluster.done("configs", "list", "--json").splitlines()]
    assert [(row["of"], row["value"]) for row in rows if row["kind"] == "client"] == [(client, "5")]
    assert f"{quota}" in cluster.done("configs", "describe", "client", "--own", "--", client)
    cluster.done("configs", "alter", "client", "--unset", quota, "--", client)


def test_a_quota_that_cannot_be_is_refused_in_a_sentence(cluster: CliCluster) -> None:
    words = ("configs", "alter", "client", "etl")
    assert cluster.refused(*words, "--set", "producer_byte_rate=fast") == (
        "producer_byte_rate is 'fast', and must be a number"
    )
    assert "must be above 0" in cluster.refused(*words, "--set", "producer_byte_rate=0")
    assert "'speed' is not a quota" in cluster.refused(*words, "--unset", "speed")
    assert cluster.done(*words, "--dry-run", "--set", "consumer_byte_rate=5") == (
        "Would change client etl: consumer_byte_rate=5.\n"
    )
    assert cluster.done("configs", "describe", "client", "etl") == "Client etl has no quotas.\n"
