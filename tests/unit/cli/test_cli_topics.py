"""`kdist topics` as people and scripts meet it, and `apply`, whose plan is shown and done once."""

from __future__ import annotations

import json
import socket
import threading
from pathlib import Path

import pytest

from kdist.client.admin import topics as admin_topics
from kdist.errors import UserError
from tests.unit.cli.cli_cluster import CliCluster


def rows(output: str) -> list[list[str]]:
    """A table's cells, its titles left out."""
    return [line.split() for line in output.splitlines()[1:] if line.strip()]


def described(cluster: CliCluster, topic: str) -> dict[str, object]:
    found: dict[str, object] = json.loads(cluster.done("topics", "describe", topic, "--json"))
    return found


def write(path: Path, *topics: dict[str, object]) -> Path:
    file = path / "topics.json"
    file.write_text(json.dumps(topics))
    return file


def test_a_topic_is_created_listed_described_and_deleted(cluster: CliCluster) -> None:
    assert cluster.done("topics", "create", "life", "--partitions", 4) == (
        "Created topic life with 4 partitions.\n"
    )
    listed = {row[0]: row[1:3] for row in rows(cluster.done("topics", "list"))}
    assert listed["life"] == ["4", "1"]
    table = rows(cluster.done("topics", "describe", "life"))[1:]
    assert [row[0] for row in table] == ["0", "1", "2", "3"]
    assert {row[1] for row in table} == {"1", "2"}
    assert all(row[1] == row[2] == row[3] and row[4:] == ["0", "0", "0"] for row in table)
    assert cluster.done("topics", "delete", "--yes", "life") == "Deleted topic life.\n"
    assert "life" not in cluster.done("topics", "list")


def test_json_has_a_line_for_each_topic(cluster: CliCluster) -> None:
    made = json.loads(cluster.done("topics", "create", "raw", "--partitions", 2, "--json"))
    assert (made["topic"], made["created"], made["partitions"]) == ("raw", True, 2)
    listed = [json.loads(line) for line in cluster.done("topics", "list", "--json").splitlines()]
    (mine,) = [topic for topic in listed if topic["topic"] == "raw"]
    assert mine == {
        "topic": "raw",
        "id": made["id"],
        "partitions": 2,
        "replication_factor": 1,
        "moving": 0,
        "internal": False,
    }
    cluster.done("produce", "raw", "--partition", 1, text="a\nb\n")
    partitions = described(cluster, "raw")["partitions"]
    assert isinstance(partitions, list)
    assert [(p["start_offset"], p["end_offset"]) for p in partitions] == [(0, 0), (0, 2)]
    assert json.loads(cluster.done("topics", "delete", "--yes", "raw", "--json")) == {
        "topic": "raw",
        "deleted": True,
    }


def test_replicas_are_shown_with_how_far_they_are_behind(cluster: CliCluster) -> None:
    cluster.done("topics", "create", "copied", "--replication-factor", 2)
    cluster.done("produce", "copied", text="a\nb\n")
    (partition,) = json.loads(cluster.done("topics", "describe", "copied", "--json"))["partitions"]
    leader, follower = partition["replicas"]
    assert partition["leader"] == leader
    level = {"end_offset": 2, "lag_records": 0, "lag_bytes": 0, "lag_ms": 0}
    found = json.loads(cluster.done("topics", "describe", "copied", "--replicas", "--json"))
    assert found["partitions"][0]["replica_states"] == [
        {"broker": leader, "state": "leader", **level},
        {"broker": follower, "state": "in sync", **level},
    ]
    shown = rows(cluster.done("topics", "describe", "copied", "--replicas"))
    at = shown.index(["PARTITION", "REPLICA", "STATE", "END", "BEHIND", "BYTES", "AGE"])
    assert shown[at + 1] == ["0", str(leader), "leader", "2", "0", "0", "B", "0.0", "s"]


def test_several_topics_are_created_at_once(cluster: CliCluster) -> None:
    output = cluster.done("topics", "create", "one", "two")
    assert output.splitlines() == [
        "Created topic one with 1 partition.",
        "Created topic two with 1 partition.",
    ]


def test_an_existing_topic_is_an_error_unless_if_not_exists_is_given(cluster: CliCluster) -> None:
    cluster.done("topics", "create", "twice")
    assert "twice" in cluster.refused("topics", "create", "twice")
    assert "exists" in cluster.refused("topics", "create", "twice")
    assert cluster.done("topics", "create", "twice", "--if-not-exists") == (
        "Topic twice exists already.\n"
    )


def test_a_misspelt_setting_is_refused_with_the_nearest_and_creates_nothing(
    cluster: CliCluster,
) -> None:
    sentence = cluster.refused("topics", "create", "odd", "--config", "retention.sm=1")
    assert "did you mean retention.ms" in sentence
    assert "there is no topic odd" in cluster.refused("topics", "describe", "odd")


def test_an_invalid_topic_name_is_a_one_sentence_error(cluster: CliCluster) -> None:
    assert "character" in cluster.refused("topics", "create", "a b")


def test_more_replicas_than_brokers_are_a_one_sentence_error(cluster: CliCluster) -> None:
    sentence = cluster.refused("topics", "create", "many", "--replication-factor", 3)
    assert "replica" in sentence


def test_a_misspelt_topic_gets_the_nearest(cluster: CliCluster) -> None:
    cluster.done("topics", "create", "orders")
    expected = "there is no topic ordesr: did you mean orders?"
    assert cluster.refused("topics", "describe", "ordesr") == expected
    assert cluster.refused("topics", "delete", "--yes", "ordesr") == expected
    assert cluster.refused("topics", "alter", "ordesr", "--partitions", 2) == expected


def test_a_missing_topic_fails_the_whole_deletion_unless_if_exists_is_given(
    cluster: CliCluster,
) -> None:
    cluster.done("topics", "create", "stays")
    cluster.refused("topics", "delete", "--yes", "stays", "never-was")
    assert "stays" in cluster.done("topics", "list")
    output = cluster.done("topics", "delete", "--yes", "never-was", "stays", "--if-exists")
    assert output == "There is no topic never-was.\nDeleted topic stays.\n"


def test_partitions_are_added_and_never_taken_away(cluster: CliCluster) -> None:
    cluster.done("topics", "create", "grows", "--partitions", 2)
    assert cluster.done("topics", "alter", "grows", "--partitions", 3) == (
        "Topic grows has 3 partitions now.\n"
    )
    partitions = described(cluster, "grows")["partitions"]
    assert isinstance(partitions, list)
    assert len(partitions) == 3
    assert "3 partitions" in cluster.refused("topics", "alter", "grows", "--partitions", 2)


def test_an_alteration_is_reported_as_json(cluster: CliCluster) -> None:
    cluster.done("topics", "create", "alters")
    words = ("topics", "alter", "alters", "--partitions", 2, "--config", "retention.ms=1000000")
    told = [json.loads(line) for line in cluster.done(*words, "--json").splitlines()]
    assert told == [
        {"topic": "alters", "partitions": 2},
        {"topic": "alters", "settings": {"retention.ms": "1000000"}},
    ]


def test_internal_topics_are_listed_when_asked_for(cluster: CliCluster) -> None:
    cluster.done("topics", "create", "plain")
    cluster.done("consume", "plain", "--group", "maker", "--from-beginning", "--until-end")
    assert "__consumer_offsets" not in cluster.done("topics", "list")
    assert "__consumer_offsets" in cluster.done("topics", "list", "--internal")
    assert "__consumer_offsets" not in cluster.done("topics", "describe")


def test_settings_are_changed_shown_and_unset(cluster: CliCluster) -> None:
    cluster.done("topics", "create", "tuned", "--config", "retention.ms=1000000")
    words = ("topics", "alter", "tuned")
    output = cluster.done(*words, "--config", "segment.bytes=2000000")
    assert output.startswith("Topic tuned has ")
    assert described(cluster, "tuned")["settings"] == {
        "retention.ms": "1000000",
        "segment.bytes": "2000000",
    }
    assert "  segment.bytes=2000000\n" in cluster.done("topics", "describe", "tuned")
    cluster.done(*words, "--unset", "segment.bytes", "--unset", "retention.ms")
    assert described(cluster, "tuned")["settings"] == {}


def test_a_wrong_change_is_refused_in_a_sentence(cluster: CliCluster) -> None:
    cluster.done("topics", "create", "mistuned")
    assert cluster.run("topics", "alter", "mistuned").exit_code == 2
    words = ("alter", "mistuned", "--config", "retention.ms=1", "--unset", "retention.ms")
    result = cluster.run("topics", *words)
    assert result.exit_code == 2
    assert "retention.ms is both set and unset." in result.stderr
    assert "a number is out of range for CreatePartitions" in cluster.refused(
        "topics", "alter", "mistuned", "--partitions", 1 << 31
    )
    assert "did you mean retention.ms?" in cluster.refused(
        "topics", "alter", "mistuned", "--config", "retntion.ms=1"
    )


def test_of_several_topics_all_are_created_or_none(cluster: CliCluster) -> None:
    cluster.done("topics", "create", "taken")
    assert cluster.refused("topics", "create", "fresh", "taken") == "topic taken exists already"
    assert "there is no topic fresh" in cluster.refused("topics", "describe", "fresh")
    assert cluster.done("topics", "create", "fresh", "taken", "--if-not-exists") == (
        "Created topic fresh with 1 partition.\nTopic taken exists already.\n"
    )


def test_a_setting_that_no_topic_has_cannot_be_unset(cluster: CliCluster) -> None:
    cluster.done("topics", "create", "untuned")
    for words in (("topics", "alter", "untuned"), ("configs", "alter", "topic", "untuned")):
        assert cluster.refused(*words, "--unset", "retntion.ms") == (
            "there is no setting retntion.ms: did you mean retention.ms?"
        )


def test_a_topic_is_altered_completely_or_not_at_all(cluster: CliCluster) -> None:
    cluster.done("topics", "create", "undivided", "--partitions", 2)
    for setting, count in (("segment.bytes=2000000", 1), ("segment.bytes=x", 3)):
        cluster.refused("topics", "alter", "undivided", "--config", setting, "--partitions", count)
        found = described(cluster, "undivided")
        assert (len(found["partitions"]), found["settings"]) == (2, {})


def test_a_setting_without_a_value_is_a_wrong_flag(cluster: CliCluster) -> None:
    for given in (["--config", "retention.ms"], ["--config", "a=1", "--config", "a=2"]):
        result = cluster.run("topics", "create", "unset", *given)
        assert result.exit_code == 2
        assert "--config" in result.stderr


def test_a_misspelt_subcommand_gets_the_nearest(cluster: CliCluster) -> None:
    result = cluster.run("topics", "lst")
    assert result.exit_code == 2
    assert "list" in result.stderr


def test_an_unreachable_address_is_a_one_sentence_error(cluster: CliCluster) -> None:
    sentence = cluster.refused("topics", "list", "--broker", "127.0.0.1:1")
    assert sentence == (
        "no broker answers at 127.0.0.1:1 (connection refused): start one with `kdist standalone`,"
        " or name another with --broker"
    )


def test_a_server_with_another_protocol_is_reported_as_such(cluster: CliCluster) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(1000)
                connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

        thread = threading.Thread(target=serve)
        thread.start()
        address = f"127.0.0.1:{server.getsockname()[1]}"
        sentence = cluster.refused("topics", "list", "--broker", address)
        thread.join()
    assert f"{address} (it does not speak Kafka's protocol: a frame of 1213486160 bytes" in sentence


def test_the_second_of_two_addresses_serves_when_the_first_is_dead(cluster: CliCluster) -> None:
    cluster.done("topics", "list", "--broker", f"127.0.0.1:1,{cluster.address}")


def test_an_invalid_address_is_a_one_sentence_error(cluster: CliCluster) -> None:
    for address in ("localhost", "localhost:", ":9092", "localhost:0", "::1:9092", "h:99999"):
        result = cluster.run("topics", "list", "--broker", address)
        assert result.exit_code == 2
        assert result.stderr.endswith(f"{address!r} is not a broker's address: give host:port.\n")


def test_topics_are_created_once_and_grow(cluster: CliCluster, tmp_path: Path) -> None:
    file = write(tmp_path, {"name": "coded", "partitions": 2})
    words = ("topics", "apply", file)
    assert cluster.done(*words, "--plan") == "plan  create topic coded\n"
    assert "coded" not in cluster.done("topics", "list")
    assert cluster.done(*words) == "do    create topic coded\n"
    assert cluster.done(*words) == "Nothing to change: every topic is as the file says.\n"
    write(tmp_path, {"name": "coded", "partitions": 3})
    assert json.loads(cluster.done(*words, "--json")) == {
        "steps": ["grow topic coded to 3 partitions"],
        "refusals": [],
        "carried_out": True,
    }
    write(tmp_path, {"name": "coded", "state": "absent"})
    assert cluster.run(*words).exit_code == 1
    listed = Path(file).read_text()
    confirmed = cluster.done("topics", "apply", "-", "--delete", "coded", text=listed)
    assert confirmed == "do    delete topic coded with all its records\n"
    assert "coded" not in cluster.done("topics", "list")


def test_settings_are_set_where_they_differ(cluster: CliCluster, tmp_path: Path) -> None:
    wish: dict[str, object] = {"retention.ms": 1000000, "cleanup.policy": "compact"}
    file = write(tmp_path, {"name": "coded-tuned", "config": wish})
    cluster.done("topics", "create", "coded-tuned", "--config", "retention.ms=1000000")
    assert cluster.done("topics", "apply", file) == (
        "do    set cleanup.policy=compact of topic coded-tuned\n"
    )
    assert (
        cluster.done("topics", "apply", file)
        == "Nothing to change: every topic is as the file says.\n"
    )


def test_the_zookeeper_option_of_earlier_playbooks_is_accepted(
    cluster: CliCluster, tmp_path: Path
) -> None:
    file = write(tmp_path)
    output = cluster.done("topics", "apply", file, "--zookeeper", "zk:2181/kdist")
    assert output == "Nothing to change: every topic is as the file says.\n"


def test_if_one_declaration_is_refused_nothing_is_done(cluster: CliCluster, tmp_path: Path) -> None:
    cluster.done("topics", "create", "fixed", "--partitions", 2)
    file = write(tmp_path, {"name": "other"}, {"name": "fixed", "partitions": 1})
    result = cluster.run("topics", "apply", file)
    assert result.exit_code == 1
    assert result.stdout.splitlines() == [
        "no    topic fixed has 2 partitions, and they only become more: not 1",
        "plan  create topic other",
    ]
    assert "other" not in cluster.done("topics", "list")


def test_if_the_cluster_refuses_one_step_nothing_is_done(
    cluster: CliCluster, tmp_path: Path
) -> None:
    cluster.done("topics", "create", "grown", "--partitions", 2)
    file = write(
        tmp_path,
        {"name": "grown", "partitions": 3},
        {"name": "spoilt", "config": {"retention.ms": "soon"}},
    )
    for more in ((), ("--json",), ("--plan",)):
        result = cluster.run("topics", "apply", file, *more)
        assert (result.exit_code, result.stdout) == (1, "")
        assert "topic spoilt: retention.ms is 'soon'" in result.stderr
    assert "grown       3" not in cluster.done("topics", "list")
    write(tmp_path, {"name": "spoilt"}, {"name": "grown", "partitions": 100_000})
    assert "100000 partitions" in cluster.refused("topics", "apply", file)
    assert "spoilt" not in cluster.done("topics", "list")


def test_steps_done_before_a_failure_are_reported(
    cluster: CliCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(*_: object) -> None:
        raise UserError("the cluster went away")

    monkeypatch.setattr(admin_topics, "delete_topic", fail)
    cluster.done("topics", "create", "leaving")
    wish = ({"name": "coming"}, {"name": "leaving", "state": "absent"}, {"name": "after"})
    file = write(tmp_path, *wish)
    result = cluster.run("topics", "apply", file, "--delete", "leaving", "--json")
    assert result.exit_code == 1
    assert json.loads(result.stdout)["steps"] == ["create topic coming"]
    result = cluster.run("topics", "apply", file, "--delete", "leaving")
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr == "kdist: the cluster went away\n"


def test_a_name_that_is_given_twice_is_refused(cluster: CliCluster, tmp_path: Path) -> None:
    file = tmp_path / "topics.json"
    file.write_text('[{"name": "twice", "partitions": 1, "partitions": 2}]')
    assert cluster.refused("topics", "apply", file) == (
        f"{file}: 'partitions' is given twice, so it would not be said which value counts"
    )
    file.write_text('[{"name": "t", "config": {"retention.ms": "1", "retention.ms": "2"}}]')
    assert "'retention.ms' is given twice" in cluster.refused("topics", "apply", file)


def test_a_file_that_cannot_be_read_is_named(cluster: CliCluster, tmp_path: Path) -> None:
    file = tmp_path / "topics.json"
    words = ("topics", "apply", file)
    assert cluster.refused(*words) == f"{file} does not exist"
    file.write_text("[")
    assert cluster.refused(*words).startswith(f"{file} is not JSON: ")
    file.write_text("[" * 100_000)
    assert cluster.refused(*words) == f"{file} is not a list of topics: it is nested too deeply"
