"""Filters of ACLs, and which ACLs there can be."""

from __future__ import annotations

import pytest

from kdist.security.acl_filters import AclFilter, fault_of, show_acl
from kdist.security.acls import (
    CLUSTER_NAME,
    Acl,
    Operation,
    Pattern,
    PatternType,
    Permission,
    ResourceType,
)

TOPIC, CLUSTER = ResourceType.TOPIC, ResourceType.CLUSTER
LITERAL, PREFIXED = PatternType.LITERAL, PatternType.PREFIXED
READS = Acl("User:alice", "*", Operation.READ, Permission.ALLOW)
ANY_AB, AB, A, B = (
    Pattern(TOPIC, *each)
    for each in (("*", LITERAL), ("ab", LITERAL), ("a", PREFIXED), ("b", PREFIXED))
)


@pytest.mark.parametrize(
    ("filter_", "expected"),
    [
        (AclFilter(), {ANY_AB, AB, A, B}),
        (AclFilter(ResourceType.GROUP), set()),
        (AclFilter(name="ab"), {AB}),
        (AclFilter(name="a"), {A}),
        (AclFilter(kind=PREFIXED), {A, B}),
        (AclFilter(name="a", kind=LITERAL), set()),
        (AclFilter(TOPIC, "ab", PatternType.MATCH), {ANY_AB, AB, A}),
        (AclFilter(name="*", kind=PatternType.MATCH), {ANY_AB}),
        (AclFilter(kind=PatternType.MATCH), {ANY_AB, AB, A, B}),
    ],
)
def test_a_filter_matches_patterns_as_kafkas_does(
    filter_: AclFilter, expected: set[Pattern]
) -> None:
    assert {each for each in (ANY_AB, AB, A, B) if filter_.matches_pattern(each)} == expected


@pytest.mark.parametrize(
    ("filter_", "is_meant"),
    [
        (AclFilter(), True),
        (AclFilter(principal="User:alice", operation=Operation.READ), True),
        (AclFilter(principal="User:*"), False),
        (AclFilter(host="10.0.0.1"), False),
        (AclFilter(operation=Operation.ALL), False),
        (AclFilter(permission=Permission.DENY), False),
    ],
)
def test_a_filter_matches_entries_by_equal_words(filter_: AclFilter, is_meant: bool) -> None:
    assert filter_.matches(READS) == is_meant


def test_a_filter_finds_an_address_in_any_spelling() -> None:
    local = READS._replace(host="0:0:0:0:0:0:0:1")
    assert AclFilter(host="::1").matches(local)


@pytest.mark.parametrize("word", ["type", "kind", "operation", "permission"])
def test_nothing_is_meant_by_an_unknown_word(word: str) -> None:
    unknown = {"type": ResourceType, "kind": PatternType, "operation": Operation}
    code = unknown.get(word, Permission)(99)
    assert AclFilter()._replace(**{word: code}).fault()
    assert not AclFilter().fault()


@pytest.mark.parametrize(
    ("pattern", "acl"),
    [
        (Pattern(ResourceType.ANY, "a", LITERAL), READS),
        (Pattern(ResourceType(99), "a", LITERAL), READS),
        (Pattern(TOPIC, "a", PatternType.MATCH), READS),
        (Pattern(TOPIC, "a", PatternType.ANY), READS),
        (Pattern(CLUSTER, "another", LITERAL), READS),
        (Pattern(CLUSTER, "kafka", PREFIXED), READS),
        (AB, READS._replace(operation=Operation.ANY)),
        (AB, READS._replace(permission=Permission.UNKNOWN)),
        (AB, READS._replace(principal="alice")),
        (AB, READS._replace(host="")),
    ],
)
def test_there_is_no_acl_with_a_word_that_means_many_or_nothing(pattern: Pattern, acl: Acl) -> None:
    assert fault_of(pattern, acl)


@pytest.mark.parametrize(
    "name", ["", ".", "..", "a/b", "/", "a\0", "\x1f", "\x85", "\ue000", "\uffff", "\U0001f4dc"]
)
def test_there_is_no_acl_of_a_name_that_zookeeper_cannot_have_in_a_path(name: str) -> None:
    """KAFKA-13983."""
    assert fault_of(Pattern(ResourceType.GROUP, name, LITERAL), READS)


@pytest.mark.parametrize("name", ["*", "a b", "é世", "%2F", "...", "a" * 32_000])
def test_there_is_an_acl_of_any_other_name(name: str) -> None:
    assert fault_of(Pattern(ResourceType.GROUP, name, LITERAL), READS) is None


def test_there_is_an_acl_of_an_operation_that_its_type_does_not_have() -> None:
    assert fault_of(Pattern(CLUSTER, CLUSTER_NAME, LITERAL), READS) is None


def test_an_acl_is_shown_in_one_line_whatever_its_names_are() -> None:
    odd = READS._replace(principal="User:a\nb" + "x" * 1000, host="h\r")
    line = show_acl(Pattern(TOPIC, "t\n" + "y" * 1000, LITERAL), odd)
    assert line.isprintable()
    assert len(line) < 1000
