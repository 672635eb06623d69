"""Every call of an admin client refuses what is of the wrong type, and names the argument."""

from __future__ import annotations

import asyncio
import inspect
import re
from typing import Any

import pytest

from kdist import (
    Admin,
    NewTopic,
    QuotaOwner,
    ShiftBy,
    ToEarliest,
    TopicPartition,
    ToTime,
    aio,
)
from kdist.client.admin.acls import AclBinding
from kdist.client.admin.arguments import checked
from kdist.client.admin.clients import Operations
from kdist.client.operation import Operation as AdminOperation
from kdist.errors import WrongType
from kdist.security.acl_filters import AclFilter
from kdist.security.acls import Acl, Operation, Pattern, PatternType, Permission, ResourceType

BINDING = AclBinding(
    Pattern(ResourceType.TOPIC, "t", PatternType.LITERAL),
    Acl("User:a", "*", Operation.READ, Permission.ALLOW),
)
HERE = TopicPartition("t", 0)
NEITHER = (5, 1.5, object(), True)
NAME = ("t", (*NEITHER, b"t", None, ["t"], {"t": 1}, NewTopic("t")))
NAMES = (["t"], (*NEITHER, "t", b"t", None, [5], [b"t"], [None], {5: 1}, [NewTopic("t")]))
NUMBER = (3, ("3", b"3", 1.5, True, [3], {"t": 3}))
FLAG = (True, (1, "yes", None, "false", []))
SETTINGS = (
    {"retention.ms": "1"},
    (*NEITHER, "a=b", [("a", "b")], {"retention.ms": 1}, {"a": True}, {"a": b"b"}, {5: "a"}),
)
PARTITIONS = ([HERE], (*NEITHER, "t", HERE, ["t"], [("t",)], [("t", "0")], [(0, "t")], {"t": 1}))
OFFSETS = ({HERE: 3}, (*NEITHER, "t", None, [HERE], {"t": 3}, {HERE: "3"}, {HERE: None}))
BROKERS = ([1], (5, "1", ["1"], [1.5], [None], {"1": 2}))
TARGET = (ToEarliest(), ("earliest", None, 5, ToEarliest, ToTime("2026"), ShiftBy(1.5)))
NEW_TOPICS = (
    [NewTopic("t"), "u"],
    (
        *(*NEITHER, "t", NewTopic("t"), {"t": 3}, [5], [("t", 3)], [{"name": "t"}]),
        *([NewTopic(5)], [NewTopic("t", "3")], [NewTopic("t", 1, "3")]),
        *([NewTopic("t", settings={"retention.ms": 1})], [NewTopic("t", settings="a=b")]),
        *([NewTopic("t", replicas=[1, 2])], [NewTopic("t", replicas="12")]),
    ),
)
MOVES = ({HERE: [1, 2], ("u", 1): None}, (*NEITHER, [HERE], {"t": [1]}, {HERE: 1}, {HERE: "12"}))
QUOTAS = ({"producer_byte_rate": 5, "b": "7"}, (5, "a", ["a"], {"a": None}, {5: 5}, {"a": [5]}))
PATIENCE = (5, ("5", True, [5]))

TABLE: dict[str, dict[str, tuple[Any, tuple[Any, ...]]]] = {
    "list_topics": {},
    "describe_topics": {"names": NAMES},
    "create_topics": {"topics": NEW_TOPICS, "validate_only": FLAG},
    "create_topic": {
        "name": NAME,
        "partitions": NUMBER,
        "replication_factor": NUMBER,
        "settings": SETTINGS,
    },
    "delete_topics": {"names": NAMES},
    "create_partitions": {
        "partitions": ({"t": 3}, (*NEITHER, "t", ["t"], {"t": "3"}, {5: 3}, {"t": None})),
        "validate_only": FLAG,
    },
    "describe_topic_configs": {"topics": NAMES, "with_docs": FLAG},
    "incremental_alter_topic_configs": {
        "topic": NAME,
        "given": SETTINGS,
        "unset": NAMES,
        "validate_only": FLAG,
    },
    "describe_broker_configs": {"brokers": BROKERS, "with_docs": FLAG},
    "describe_default_broker_configs": {"with_docs": FLAG},
    "incremental_alter_broker_configs": {
        "broker": NUMBER,
        "given": SETTINGS,
        "unset": NAMES,
        "validate_only": FLAG,
    },
    "describe_quotas": {},
    "alter_quotas": {
        "owner": (QuotaOwner("t"), ("t", None, 5)),
        "given": QUOTAS,
        "unset": NAMES,
        "validate_only": FLAG,
    },
    "describe_client_quotas": {},
    "describe_user_scram_credentials": {"names": (["a"], (*NEITHER, "a", b"a", [5], [None]))},
    "upsert_user_scram_credentials": {
        "passwords": ({"alice": "secret"}, (5, "a", ["a"], {"a": None}, {5: "a"}, {"a": b"b"})),
        "mechanism": NAME,
        "iterations": (4096, ("3", b"3", 1.5, True, [3], {"t": 3})),
    },
    "delete_user_scram_credentials": {"names": NAMES, "mechanism": NAME},
    "alter_client_quotas": {
        "client_id": ("t", (*NEITHER, b"t", ["t"])),
        "given": QUOTAS,
        "unset": NAMES,
        "validate_only": FLAG,
    },
    "describe_acls": {"wanted": (AclFilter(), (*NEITHER, "t", [AclFilter()], AclFilter(5)))},
    "create_acls": {
        "acls": ([BINDING], (*NEITHER, "t", BINDING, ["t"], [("t", "t")], [BINDING.pattern])),
    },
    "delete_acls": {"filters": ([AclFilter()], (*NEITHER, "t", None, [5], [AclFilter(name=5)]))},
    "list_groups": {},
    "describe_groups": {"names": NAMES},
    "delete_groups": {"names": NAMES},
    "list_group_offsets": {"group": NAME},
    "alter_group_offsets": {"group": NAME, "offsets": OFFSETS, "metadata": NAME},
    "delete_group_offsets": {"group": NAME, "partitions": PARTITIONS},
    "plan_group_offsets_reset": {"group": NAME, "target": TARGET, "partitions": PARTITIONS},
    "reset_group_offsets": {"group": NAME, "target": TARGET, "partitions": PARTITIONS},
    "list_offsets": {"partitions": PARTITIONS, "timestamp_ms": NUMBER},
    "elect_leaders": {"partitions": PARTITIONS, "is_unclean": FLAG},
    "alter_partition_reassignments": {"targets": MOVES},
    "list_partition_reassignments": {"partitions": PARTITIONS},
    "delete_records": {"before": OFFSETS},
    "describe_log_dirs": {"brokers": BROKERS},
    "describe_cluster": {},
    "describe_versions": {"patience_s": PATIENCE},
}
WRONG = [
    pytest.param(name, argument, value, id=f"{name}-{argument}-{at}")
    for name, row in TABLE.items()
    for argument, (_, values) in row.items()
    for at, value in enumerate(values)
]


def function(name: str) -> Any:
    return vars(Operations)[name].function


def test_the_table_has_every_argument_of_every_call() -> None:
    found = {
        name: [*inspect.signature(each.function).parameters][1:]
        for name, each in vars(Operations).items()
        if isinstance(each, AdminOperation)
    }
    assert {name: [*row] for name, row in TABLE.items()} == found


@pytest.mark.parametrize("name", TABLE)
def test_arguments_of_the_right_types_are_passed_on(name: str) -> None:
    good = {argument: value for argument, (value, _) in TABLE[name].items()}
    args, keywords = checked(function(name), (), good)
    passed = inspect.signature(function(name)).bind(None, *args, **keywords).arguments
    assert {key: each for key, each in passed.items() if key != "cluster"} == good


@pytest.mark.parametrize(("name", "argument", "value"), WRONG)
def test_an_argument_of_a_wrong_type_is_named_with_what_is_wanted(
    name: str, argument: str, value: Any
) -> None:
    row = {**{key: good for key, (good, _) in TABLE[name].items()}, argument: value}
    with pytest.raises(WrongType) as refused:
        checked(function(name), (), row)
    assert re.match(rf"(a key of )?{argument}\b.* must be .*, not ", str(refused.value))


def test_both_clients_refuse_before_they_ask_a_broker() -> None:
    with Admin("localhost:1") as admin, pytest.raises(WrongType, match=r"^partitions must be an"):
        admin.create_topic("t", "3")  # type: ignore[arg-type]

    async def ask() -> None:
        async with aio.Admin("localhost:1") as admin:
            with pytest.raises(WrongType, match=r"^settings\['retention.ms'\] must be a str"):
                await admin.create_topic("t", settings={"retention.ms": 5})  # type: ignore[dict-item]

    asyncio.run(ask())


def test_an_iterable_that_can_be_read_once_is_passed_on_whole() -> None:
    (names,), _ = checked(function("delete_topics"), ((each for each in "ab"),), {})
    assert names == ["a", "b"]
