"""`kdist acls`: by brokers that have an authorizer, and straight in ZooKeeper."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from tests.unit.broker.broker_acls import AUTHORIZER
from tests.unit.cli.cli_cluster import ZOOKEEPER, CliCluster, cli_cluster


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CliCluster]:
    with cli_cluster(tmp_path_factory.mktemp("secured"), 1, AUTHORIZER) as running:
        yield running


def rows(cluster: CliCluster, *words: str) -> list[str]:
    """What `list` shows, each ACL as its words."""
    lines = cluster.done("acls", "list", *words, "--json").splitlines()
    return [" ".join(json.loads(line).values()) for line in lines]


def test_acls_are_added_listed_and_removed(secured: CliCluster) -> None:
    add = ("acls", "add", "--principal", "User:etl", "--operation", "read")
    topic = "Topic:LITERAL:'clicks': Allow 'User:etl' from '*' Read"
    group = "Group:LITERAL:'etl': Allow 'User:etl' from '*' Read"
    wanted = (*add, "--topic", "clicks", "--group", "etl")
    assert secured.done(*wanted, "--dry-run") == f"Would add {topic}.\nWould add {group}.\n"
    assert rows(secured) == []
    assert secured.done(*wanted) == f"Added {topic}.\nAdded {group}.\n"
    assert secured.done(*add, "--topic", "clicks") == f"There is already {topic}.\n"
    assert rows(secured, "--principal", "User:etl") == [
        "Topic clicks Literal User:etl * Read Allow",
        "Group etl Literal User:etl * Read Allow",
    ]
    remove = ("acls", "remove", "--principal", "User:etl", "--topic", "clicks")
    assert secured.done(*remove, "--dry-run") == f"Would remove {topic}.\n"
    assert "ACL will be removed" in secured.run(*remove).stderr
    assert len(rows(secured, "--principal", "User:etl")) == 2
    assert secured.done(*remove, "--yes") == f"Removed {topic}.\n"
    assert secured.refused(*remove, "--yes") == "there are no such ACLs"
    assert secured.done("acls", "remove", "--group", "etl", "--yes") == f"Removed {group}.\n"


def test_all_acls_that_count_for_a_resource_are_listed_and_only_its_own_removed(
    secured: CliCluster,
) -> None:
    add = ("acls", "add", "--principal", "User:*", "--operation", "Describe", "--topic")
    secured.done(*add, "ab")
    secured.done(*add, "a", "--prefixed", "--host", "::1", "--deny")
    secured.done(*add, "*")
    secured.done(*add, "b", "--prefixed")
    own = "Topic ab Literal User:* * Describe Allow"
    others = [
        "Topic * Literal User:* * Describe Allow",
        "Topic a Prefixed User:* 0:0:0:0:0:0:0:1 Describe Deny",
    ]
    assert rows(secured, "--topic", "ab") == [*others, own]
    assert rows(secured, "--topic", "ab", "--allow") == [others[0], own]
    assert rows(secured, "--host", "::1") == [others[1]]
    secured.done("acls", "remove", "--topic", "ab", "--yes")
    assert rows(secured, "--topic", "ab") == others
    secured.done("acls", "remove", "--topic", "a", "--prefixed", "--yes")
    assert rows(secured, "--topic", "ab") == others[:1]
    secured.done("acls", "remove", "--principal", "User:*", "--yes")
    assert secured.done("acls", "list") == "There are no such ACLs.\n"


def test_the_cluster_has_one_name_and_no_prefix(secured: CliCluster) -> None:
    words = ("--principal", "User:ops", "--operation", "alter", "--cluster")
    secured.done("acls", "add", *words, "--topic", "x", "--prefixed")
    assert rows(secured, "--cluster") == ["Cluster kafka-cluster Literal User:ops * Alter Allow"]
    assert rows(secured, "--topic", "xy") == ["Topic x Prefixed User:ops * Alter Allow"]
    secured.done("acls", "remove", "--principal", "User:ops", "--yes")


@pytest.mark.parametrize(
    "words",
    [
        (),
        ("--principal", "User:a", "--operation", "read"),
        ("--principal", "User:a", "--topic", "t"),
        ("--operation", "read", "--topic", "t"),
        ("--principal", "a", "--operation", "read", "--topic", "t"),
        ("--principal", "User:a", "--operation", "any", "--topic", "t"),
        ("--principal", "User:a", "--operation", "read", "--topic", "t", "--host", "h1"),
        ("--principal", "User:a", "--operation", "read", "--topic", "t", "--host", "10.0.0.0/8"),
        ("--principal", "User:a", "--operation", "read", "--topic", ""),
        ("--principal", "User:a", "--operation", "read", "--topic", "a/b"),
    ],
)
def test_what_makes_no_acl_is_wrong_usage(secured: CliCluster, words: tuple[str, ...]) -> None:
    assert secured.run("acls", "add", *words).exit_code == 2


def test_not_every_acl_is_removed_at_once_by_naming_none(secured: CliCluster) -> None:
    assert secured.run("acls", "remove", "--yes").exit_code == 2
    assert secured.run("acls", "remove", "--prefixed", "--yes").exit_code == 2


def test_a_broker_without_an_authorizer_refuses_and_zookeeper_does_not(
    cluster: CliCluster,
) -> None:
    words = ("--principal", "User:broker", "--operation", "ClusterAction", "--cluster")
    assert "authorizer.class.name" in cluster.refused("acls", "list")
    assert "authorizer.class.name" in cluster.refused("acls", "add", *words)
    straight = ("--zookeeper", ZOOKEEPER)
    acl = "Cluster:LITERAL:'kafka-cluster': Allow 'User:broker' from '*' ClusterAction"
    assert cluster.done("acls", "add", *words, *straight) == f"Added {acl}.\n"
    assert rows(cluster, *straight) == [
        "Cluster kafka-cluster Literal User:broker * ClusterAction Allow"
    ]
    assert cluster.done("acls", "remove", *words, *straight, "--yes") == f"Removed {acl}.\n"
    assert rows(cluster, *straight) == []
