"""`kdist groups`: groups of kdist's own and of a foreign client, their members and their lag."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from kafka import KafkaConsumer

from kdist.client.admin import groups
from kdist.client.admin.groups import ListedGroup
from kdist.client.cluster import Cluster
from tests.unit.cli.cli_cluster import CliCluster


@pytest.fixture(scope="module")
def topic(cluster: CliCluster) -> str:
    """Three partitions with ten records each."""
    cluster.done("topics", "create", "watched", "--partitions", 3)
    for partition in range(3):
        cluster.done("produce", "watched", "--partition", partition, text="x\n" * 10)
    return "watched"


@pytest.fixture(scope="module")
def busy(cluster: CliCluster, topic: str) -> Iterator[str]:
    """A group with one member, which has read and committed everything."""
    consumer = KafkaConsumer(
        topic,
        bootstrap_servers=cluster.address,
        group_id="busy",
        client_id="foreigner",
        auto_offset_reset="earliest",
        enable_auto_commit=False,
    )
    seen = 0
    while seen < 30:
        seen += sum(map(len, consumer.poll(timeout_ms=1000).values()))
    consumer.commit()
    yield "busy"
    consumer.close()


def described(cluster: CliCluster, group: str) -> dict[str, object]:
    found: dict[str, object] = json.loads(cluster.done("groups", "describe", group, "--json"))
    return found


def test_a_group_without_members_has_offsets_and_lag(cluster: CliCluster, topic: str) -> None:
    cluster.done("groups", "reset", "--yes", "slow", "--topic", f"{topic}:1", "--to-offset", 4)
    group = described(cluster, "slow")
    assert (group["state"], group["members"]) == ("Empty", [])
    assert group["offsets"] == [
        {
            "topic": topic,
            "partition": 1,
            "committed": 4,
            "start": 0,
            "end": 10,
            "lag": 6,
            "member": None,
        }
    ]
    text = cluster.done("groups", "describe", "slow")
    assert text.splitlines()[0].startswith("slow  Empty, coordinated by ")
    assert "no members" in text
    assert text.split()[-7:] == [topic, "1", "4", "0", "10", "6", "-"]


def test_a_foreign_clients_member_is_shown_with_its_partitions(
    cluster: CliCluster, topic: str, busy: str
) -> None:
    group = described(cluster, busy)
    assert (group["state"], group["type"]) == ("Stable", "consumer")
    members = group["members"]
    offsets = group["offsets"]
    assert isinstance(members, list)
    assert isinstance(offsets, list)
    (member,) = members
    assert (member["client"], member["host"]) == ("foreigner", "127.0.0.1")
    assert sorted(member["partitions"]) == [[topic, number] for number in range(3)]
    assert [(each["partition"], each["committed"], each["lag"]) for each in offsets] == [
        (number, 10, 0) for number in range(3)
    ]
    assert {each["member"] for each in offsets} == {member["member"]}
    text = cluster.done("groups", "describe", busy)
    assert f"{topic}-0, {topic}-1, {topic}-2" in text


def test_the_groups_of_all_brokers_are_listed(cluster: CliCluster, topic: str, busy: str) -> None:
    names = [f"listed-{number}" for number in range(8)]
    for name in names:
        cluster.done("consume", topic, "--group", name, "--until-end")
    listed = [json.loads(line) for line in cluster.done("groups", "list", "--json").splitlines()]
    by_name = {group["group"]: group for group in listed}
    assert list(by_name) == sorted(by_name)
    assert {*names, busy} <= by_name.keys()
    assert {by_name[name]["coordinator"] for name in names} == {1, 2}
    assert by_name[busy]["state"] == "Stable"
    table = cluster.done("groups", "list").splitlines()
    assert table[0].split() == ["GROUP", "STATE", "TYPE", "COORDINATOR"]
    assert len(table) == len(listed) + 1


def test_no_offset_is_committed_for_a_group_with_members(
    cluster: CliCluster, topic: str, busy: str
) -> None:
    sentence = cluster.refused("groups", "reset", "--yes", busy, "--to-latest", "--topic", topic)
    assert sentence == "group busy has 1 member: stop all members to change its offsets"


def test_a_misspelt_group_gets_the_nearest(cluster: CliCluster, topic: str, busy: str) -> None:
    assert cluster.refused("groups", "describe", "bsuy") == (
        "there is no group bsuy: did you mean busy?"
    )


def test_a_group_that_is_only_listed_is_told_apart_and_the_others_are_shown(
    cluster: CliCluster, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster.done("consume", topic, "--group", "classic", "--from-beginning", "--max", 1)

    async def with_one_more(asked: Cluster) -> list[ListedGroup]:
        return [*await list_groups(asked), ListedGroup("modern", "Stable", "consumer", 1)]

    list_groups = groups.list_groups
    monkeypatch.setattr(groups, "list_groups", with_one_more)
    sentence = "group modern uses Kafka 4's new protocol (KIP-848), and can only be listed here"
    assert cluster.refused("groups", "describe", "modern") == sentence
    result = cluster.run("groups", "describe", "classic", "modern")
    assert result.exit_code == 1
    assert result.stdout.startswith("classic  Empty, coordinated by ")
    assert result.stderr == f"kdist: {sentence}\n"


def test_a_topic_that_was_deleted_leaves_the_rest_to_be_shown(cluster: CliCluster) -> None:
    for name in ("mourned", "doomed"):
        cluster.done("topics", "create", name)
        cluster.done("produce", name, text="x\n")
        cluster.done("consume", name, "--group", "mourner", "--from-beginning", "--until-end")
    cluster.done("topics", "delete", "--yes", "doomed")
    offsets = described(cluster, "mourner")["offsets"]
    assert isinstance(offsets, list)
    assert {
        "topic": "mourned",
        "partition": 0,
        "committed": 1,
        "start": 0,
        "end": 1,
        "lag": 0,
        "member": None,
    } in offsets
    assert all(each["end"] is None for each in offsets if each["topic"] == "doomed")


def test_control_characters_in_a_name_are_escaped(cluster: CliCluster, topic: str) -> None:
    name, shown = "\x1b[2J\u202eevil\nü", "\\x1b[2J\\u202eevil\\nü"
    cluster.done("groups", "reset", "--yes", name, "--to-latest", "--topic", topic)
    listed = cluster.done("groups", "list")
    assert any(line.startswith(f"{shown}  Empty") for line in listed.splitlines())
    assert cluster.done("groups", "describe", name).startswith(f"{shown}  Empty")
    assert described(cluster, name)["group"] == name
    assert cluster.done("groups", "delete", "--yes", name) == f"Deleted group {shown}.\n"
    assert cluster.refused("groups", "delete", "--yes", "\x1b[2J") == "there is no group \\x1b[2J"
