"""Decisions by random ACLs are Apache Kafka's, and so are the bytes that hold ACLs."""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import product
from typing import NamedTuple

import pytest
from peer.acl_judge import ask_judge

from kdist.broker.stored_security import store_of
from kdist.security.acls import (
    Acl,
    AclTable,
    Operation,
    Pattern,
    PatternType,
    Permission,
    ResourceType,
)
from kdist.security.principals import parse_principal, parse_super_users
from kdist.zk import znodes
from kdist.zk.acl_values import StoredAclEntries

pytestmark = [pytest.mark.peer, pytest.mark.timeout(1800)]

TYPES = (ResourceType.TOPIC, ResourceType.GROUP)
NAMES = ("*", "a", "ab", "abc", "b")
ASKED_NAMES = (*NAMES, "abcd", "ac", "c")
WHO = ("User:alice", "User:CN=b,O=x", "Group:alice", "User:boss")
HOSTS = ("10.0.0.1", "0:0:0:0:0:0:0:1")
OPERATIONS = [each for each in Operation if each is not Operation.ANY]
ASKED_OPERATIONS = [each for each in OPERATIONS if each is not Operation.UNKNOWN]
SUPER_USERS = ("", "User:boss", " User:CN=b,O=x ;User:boss")


class Case(NamedTuple):
    """ACLs, and the settings beside them."""

    super_users: str
    allow_if_none: bool
    acls: dict[Pattern, frozenset[Acl]]

    @classmethod
    def drawn(cls, rng: random.Random) -> Case:
        """Few or many ACLs, most of them of one type, user and operation, so that they meet."""
        operations = rng.sample(OPERATIONS, rng.choice((1, 2, len(OPERATIONS))))
        acls: dict[Pattern, frozenset[Acl]] = {}
        for _ in range(rng.choice((0, 1, 2, 4, 8))):
            kind = rng.choice((PatternType.LITERAL, PatternType.PREFIXED))
            pattern = Pattern(rng.choice((*TYPES, TYPES[0])), rng.choice(NAMES), kind)
            acls[pattern] = frozenset(
                Acl(
                    rng.choice((*WHO, WHO[0], "User:*")),
                    rng.choice((*HOSTS, "*", "*")),
                    rng.choice(operations),
                    rng.choice((Permission.ALLOW, Permission.ALLOW, Permission.DENY)),
                )
                for _ in range(rng.randint(1, 3))
            )
        return cls(rng.choice(SUPER_USERS), rng.random() < 0.3, acls)

    def lines(self) -> Iterator[str]:
        """As the judge is told it: the ACLs as kdist stores them."""
        yield f"new\t{self.super_users}\t{str(self.allow_if_none).lower()}"
        for (resource_type, name, kind), acls in self.acls.items():
            stored = StoredAclEntries(acls).encode().decode()
            yield f"acls\t{resource_type.name}\t{kind.name}\t{name}\t{stored}"

    def table(self) -> AclTable:
        table = AclTable(parse_super_users(self.super_users), self.allow_if_none)
        for pattern, acls in self.acls.items():
            table.set(pattern, acls)
        return table


def decided(cases: list[Case]) -> Iterator[tuple[str, bool]]:
    """Each question of each case, as the judge is asked it, with kdist's decision."""
    for case in cases:
        yield from ((line, False) for line in case.lines())
        table = case.table()
        for who, host, operation, type_ in product(WHO, HOSTS, ASKED_OPERATIONS, TYPES):
            asked = (parse_principal(who), host, operation, type_)
            words = f"{who}\t{host}\t{operation.name}\t{type_.name}"
            yield f"any\t{words}", table.permits_any(*asked)
            for name in ASKED_NAMES:
                yield f"may\t{words}\t{name}", table.permits(*asked, name)


@pytest.mark.parametrize(
    ("seed", "count"), [(1, 150), pytest.param(2, 10_000, marks=pytest.mark.stress)]
)
def test_decisions_by_random_acls_are_those_of_kafkas_authorizer(seed: int, count: int) -> None:
    rng = random.Random(seed)
    while count > 0:
        cases = [Case.drawn(rng) for _ in range(min(count, 500))]
        count -= len(cases)
        lines = list(decided(cases))
        questions = [each for each in lines if each[0][:3] in ("any", "may")]
        answers = ask_judge(line for line, _ in lines)
        assert len(answers) == len(questions)
        wrong = [q for q, answer in zip(questions, answers, strict=True) if q[1] != (answer == "1")]
        assert not wrong, wrong[:10]
        assert 0.05 < sum(answer == "1" for answer in answers) / len(answers) < 0.95


def test_an_acl_is_stored_in_the_bytes_that_kafka_writes() -> None:
    operations = [each for each in Operation if each not in (Operation.UNKNOWN, Operation.ANY)]
    stored = [
        StoredAclEntries(frozenset((Acl(who, host, operation, permission),))).encode().decode()
        for who, host, operation, permission in product(
            (*WHO, "User:*", 'User:\u00e9"\\'),
            (*HOSTS, "*"),
            operations,
            (Permission.ALLOW, Permission.DENY),
        )
    ]
    assert ask_judge(f"json\t{each}" for each in stored) == stored


def test_acls_are_where_kafka_has_them_and_told_of_as_it_does() -> None:
    patterns = [
        Pattern(type_, name, kind)
        for type_ in znodes.ACL_TYPES
        for name in ("a", "*", "a:b", "é 世%")
        for kind in (PatternType.LITERAL, PatternType.PREFIXED)
    ]
    asked = [f"{each.type.name}\t{each.kind.name}\t{each.name}" for each in patterns]
    paths = ask_judge(f"path\t{each}" for each in asked)
    assert paths == [store_of(each).acls.path(each.type.text, each.name) for each in patterns]
    notices = [store_of(each).notification(each) for each in patterns]
    expected = [f"{each.path}\t{each.data.decode()}" for each in notices]
    assert ask_judge(f"notice\t{each}" for each in asked) == expected
