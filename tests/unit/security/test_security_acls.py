"""Decisions by ACLs, also against a scan of the list of them."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kdist.model import ANONYMOUS, Principal
from kdist.security.acls import (
    CLUSTER_NAME,
    IMPLIED_BY,
    Acl,
    AclTable,
    Operation,
    Pattern,
    PatternType,
    Permission,
    ResourceType,
)
from kdist.security.principals import format_principal

ALICE, BOB = Principal("User", "alice"), Principal("User", "bob")
HOST = "10.0.0.1"
TOPIC, GROUP = ResourceType.TOPIC, ResourceType.GROUP
ALLOW, DENY = Permission.ALLOW, Permission.DENY
LITERAL, PREFIXED = PatternType.LITERAL, PatternType.PREFIXED

Binding = tuple[Pattern, Acl]


def literal(name: str, of: ResourceType = TOPIC) -> Pattern:
    return Pattern(of, name, LITERAL)


def prefix(name: str, of: ResourceType = TOPIC) -> Pattern:
    return Pattern(of, name, PREFIXED)


def acl(
    permission: Permission,
    operation: Operation,
    principal: Principal | str = ALICE,
    host: str = "*",
) -> Acl:
    text = principal if isinstance(principal, str) else format_principal(principal)
    return Acl(text, host, operation, permission)


def table_of(*bindings: Binding, super_users: Sequence[Principal] = (), **rest: bool) -> AclTable:
    table = AclTable(super_users, **rest)
    by_pattern: dict[Pattern, list[Acl]] = {}
    for pattern, entry in bindings:
        by_pattern.setdefault(pattern, []).append(entry)
    for pattern, entries in by_pattern.items():
        table.set(pattern, entries)
    return table


def may(table: AclTable, operation: Operation, name: str, who: Principal = ALICE) -> bool:
    return table.permits(who, HOST, operation, TOPIC, name)


def test_without_an_acl_nothing_is_allowed_unless_the_setting_says_so() -> None:
    assert not may(AclTable(), Operation.READ, "a")
    assert may(AclTable(allow_if_none=True), Operation.READ, "a")


@pytest.mark.parametrize("pattern", [literal("ab"), prefix("a"), prefix("ab"), literal("*")])
def test_an_acl_for_anybody_else_ends_what_is_allowed_where_there_is_none(
    pattern: Pattern,
) -> None:
    table = table_of((pattern, acl(ALLOW, Operation.READ, BOB)), allow_if_none=True)
    assert not may(table, Operation.WRITE, "ab")
    assert table.permits(ALICE, HOST, Operation.WRITE, GROUP, "ab")


def test_an_entry_of_an_unknown_operation_allows_nothing_but_exists() -> None:
    """KAFKA-7216: a newer broker's word must not stop an older one."""
    table = table_of((literal("a"), acl(ALLOW, Operation.UNKNOWN)), allow_if_none=True)
    assert not may(table, Operation.READ, "a")


def test_a_super_user_may_do_what_is_denied_to_everybody() -> None:
    """KAFKA-6591, KAFKA-7028."""
    name = Principal("User", "CN=b1,O=x")
    denied = (literal("*"), acl(DENY, Operation.ALL, "User:*"))
    table = table_of(denied, super_users=[name])
    assert may(table, Operation.WRITE, "a", name)
    assert table.permits_any(name, HOST, Operation.WRITE, TOPIC)
    assert not may(table, Operation.WRITE, "a", BOB)


def test_prefixes_of_one_character_and_nested_ones_all_count() -> None:
    """KAFKA-7702, KAFKA-14265."""
    table = table_of(
        (prefix("a"), acl(ALLOW, Operation.READ)),
        (prefix("abc"), acl(ALLOW, Operation.WRITE)),
        (prefix("abd"), acl(ALLOW, Operation.DELETE)),
    )
    assert may(table, Operation.READ, "abcd")
    assert may(table, Operation.WRITE, "abcd")
    assert not may(table, Operation.DELETE, "abcd")
    assert not may(table, Operation.WRITE, "ab")


def test_a_denial_by_a_prefix_beats_what_the_name_itself_allows() -> None:
    table = table_of(
        (literal("ab"), acl(ALLOW, Operation.READ)), (prefix("a"), acl(DENY, Operation.READ))
    )
    assert not may(table, Operation.READ, "ab")


def test_to_deny_reading_leaves_describing_and_the_other_way_round() -> None:
    table = table_of(
        (literal("a"), acl(ALLOW, Operation.ALL)), (literal("a"), acl(DENY, Operation.READ))
    )
    assert may(table, Operation.DESCRIBE, "a")
    assert not may(table, Operation.READ, "a")
    table = table_of(
        (literal("a"), acl(ALLOW, Operation.ALL)), (literal("a"), acl(DENY, Operation.DESCRIBE))
    )
    assert may(table, Operation.READ, "a")
    assert not may(table, Operation.DESCRIBE, "a")


@pytest.mark.parametrize("host", ["::1", "0:0:0:0:0:0:0:1", "0000::0001"])
@pytest.mark.parametrize("peer", ["::1", "0:0:0:0:0:0:0:1"])
def test_an_address_means_the_same_in_every_spelling(host: str, peer: str) -> None:
    entry = acl(ALLOW, Operation.READ, host=host)
    table = table_of((literal("a"), entry))
    assert table.permits(ALICE, peer, Operation.READ, TOPIC, "a")
    assert table.permits_any(ALICE, peer, Operation.READ, TOPIC)
    assert list(table.bindings()) == [(literal("a"), entry)]


def test_an_ipv4_peer_on_a_socket_of_both_kinds_is_known_by_its_ipv4_address() -> None:
    table = table_of((literal("a"), acl(ALLOW, Operation.READ, host="10.0.0.1")))
    assert table.permits(ALICE, "::ffff:10.0.0.1", Operation.READ, TOPIC, "a")


def test_what_cannot_be_read_is_closed_until_it_can() -> None:
    table = table_of(
        (literal("a"), acl(ALLOW, Operation.ALL)), super_users=[BOB], allow_if_none=True
    )
    table.set(literal("a"), None)
    assert not may(table, Operation.READ, "a")
    assert may(table, Operation.READ, "a", BOB)
    assert may(table, Operation.READ, "b")
    assert table.unreadable == {literal("a")}
    assert list(table.bindings()) == []
    table.set(literal("a"), ())
    assert may(table, Operation.READ, "a")
    assert not table.unreadable


def test_a_prefix_that_cannot_be_read_closes_every_name_that_begins_with_it() -> None:
    table = AclTable(allow_if_none=True)
    table.set(prefix("a"), None)
    assert not may(table, Operation.READ, "ab")
    assert may(table, Operation.READ, "ba")


def test_the_version_ascends_with_a_change_and_with_nothing_else() -> None:
    table = AclTable()
    entry = acl(ALLOW, Operation.READ)
    versions = [table.version]
    for acls in ([entry], [entry], None, None, [entry], [], [], None, []):
        table.set(literal("a"), acls)
        versions.append(table.version)
    assert [later - former for former, later in itertools.pairwise(versions)] == [
        *(1, 0, 1, 0, 1, 1, 0, 1, 1)
    ]


def test_what_implies_an_operation_does_not_allow_it_on_any_resource() -> None:
    table = table_of((literal("a"), acl(ALLOW, Operation.WRITE)))
    assert may(table, Operation.DESCRIBE, "a")
    assert table.permits_any(ALICE, HOST, Operation.WRITE, TOPIC)
    assert not table.permits_any(ALICE, HOST, Operation.DESCRIBE, TOPIC)


def test_any_resource_is_allowed_where_there_may_be_no_acl_unless_all_are_denied() -> None:
    denied = acl(DENY, Operation.WRITE, "User:*")
    by_name = table_of((literal("a"), denied), (prefix("b"), denied), allow_if_none=True)
    assert by_name.permits_any(ALICE, HOST, Operation.WRITE, TOPIC)
    all_denied = table_of((literal("*"), denied), allow_if_none=True)
    assert not all_denied.permits_any(ALICE, HOST, Operation.WRITE, TOPIC)


@pytest.mark.parametrize("kind", [Operation, ResourceType, PatternType, Permission])
def test_codes_are_read_in_any_case_and_what_is_no_code_is_unknown(
    kind: type[Operation],
) -> None:
    for code in kind:
        assert kind.parse(code.text) is code
        assert kind.parse(code.text.upper()) is code
    assert kind.parse("NoSuchWord") is kind.UNKNOWN
    assert Operation.parse("DESCRIBE_CONFIGS") is Operation.UNKNOWN  # as in Kafka
    assert Operation.DESCRIBE_CONFIGS.text == "DescribeConfigs"


# Against a scan of the list

NAMES = ["a", "ab", "abc", "b", "*"]
WHO = [ALICE, BOB, ANONYMOUS]
HOSTS = ["10.0.0.1", "0:0:0:0:0:0:0:1"]
OPERATIONS = [op for op in Operation if op is not Operation.ANY]

patterns = st.builds(
    Pattern,
    st.sampled_from([TOPIC, GROUP]),
    st.sampled_from(NAMES),
    st.sampled_from([LITERAL, PREFIXED]),
)
acls = st.builds(
    Acl,
    st.sampled_from([*map(format_principal, WHO), "User:*"]),
    st.sampled_from([*HOSTS, "*"]),
    st.sampled_from(OPERATIONS),
    st.sampled_from([ALLOW, DENY, Permission.UNKNOWN]),
)
changes = st.lists(st.tuples(patterns, st.lists(acls, max_size=3) | st.none()), max_size=12)


def scan(
    bindings: list[Binding],
    allow_if_none: bool,
    who: Principal,
    host: str,
    op: Operation,
    name: str,
) -> bool:
    """The decision by its definition."""
    found = [
        entry
        for pattern, entry in bindings
        if pattern.type is TOPIC
        and (
            name.startswith(pattern.name)
            if pattern.kind is PREFIXED
            else pattern.name in ("*", name)
        )
    ]
    if not found:
        return allow_if_none

    def has(permission: Permission, operations: tuple[Operation, ...]) -> bool:
        return any(
            entry.permission is permission
            and entry.principal in (format_principal(who), "User:*")
            and entry.host in (host, "*")
            and entry.operation in (*operations, Operation.ALL)
            for entry in found
        )

    return not has(DENY, (op,)) and has(ALLOW, (op, *IMPLIED_BY.get(op, ())))


@given(changes, st.booleans())
def test_decisions_are_those_of_a_scan_of_the_list(
    history: list[tuple[Pattern, list[Acl] | None]], allow_if_none: bool
) -> None:
    table = AclTable(allow_if_none=allow_if_none)
    held: dict[Pattern, list[Acl]] = {}
    for pattern, entries in history:
        table.set(pattern, entries)
        closed = [Acl("User:*", "*", Operation.ALL, DENY)]
        held[pattern] = closed if entries is None else entries
    bindings = [(pattern, entry) for pattern, entries in held.items() for entry in entries]
    questions = itertools.product(WHO, HOSTS, OPERATIONS[1:], [*NAMES, "abcd", "", "c"])
    for who, host, op, name in questions:
        expected = scan(bindings, allow_if_none, who, host, op, name)
        assert table.permits(who, host, op, TOPIC, name) == expected, (who, host, op, name)


@given(changes)
def test_any_resource_is_allowed_if_one_is_that_an_acl_names_or_begins(
    history: list[tuple[Pattern, list[Acl] | None]],
) -> None:
    table = AclTable()
    for pattern, entries in history:
        table.set(pattern, entries)
    exact = [op for op in OPERATIONS[1:] if op not in IMPLIED_BY]
    for who, host, op in itertools.product(WHO, HOSTS, exact):
        if not table.permits_any(who, host, op, TOPIC):
            allowed = {name for name in NAMES if table.permits(who, host, op, TOPIC, name)}
            assert not allowed, (who, host, op)


def test_the_cluster_has_one_name() -> None:
    table = table_of((literal(CLUSTER_NAME, ResourceType.CLUSTER), acl(ALLOW, Operation.ALTER)))
    assert table.permits(ALICE, HOST, Operation.ALTER, ResourceType.CLUSTER, CLUSTER_NAME)
