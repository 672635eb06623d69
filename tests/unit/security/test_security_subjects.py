"""What a subject remembers is what the ACLs say, now."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from itertools import product
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from kdist.model import Principal
from kdist.security import subjects
from kdist.security.acls import (
    Acl,
    AclTable,
    Operation,
    Pattern,
    PatternType,
    Permission,
    ResourceType,
)
from kdist.security.subjects import LimitedSubject, Question, Subject

ALICE, BOB = Principal("User", "alice"), Principal("User", "bob")
TOPIC = ResourceType.TOPIC
OPERATIONS = (Operation.READ, Operation.DESCRIBE, Operation.ALL)
HOSTS = ("10.0.0.1", "10.0.0.2")
NAMES = ("a", "ab", "b")

ACLS = st.builds(
    Acl,
    st.sampled_from(("User:alice", "User:bob", "User:*")),
    st.sampled_from((*HOSTS, "*")),
    st.sampled_from(OPERATIONS),
    st.sampled_from((Permission.ALLOW, Permission.DENY)),
)
PATTERNS = st.builds(
    Pattern,
    st.just(TOPIC),
    st.sampled_from((*NAMES, "*")),
    st.sampled_from((PatternType.LITERAL, PatternType.PREFIXED)),
)
CHANGES = st.lists(st.tuples(PATTERNS, st.none() | st.sets(ACLS, max_size=3)), max_size=6)


class Judge:
    """Notes denials."""

    def __init__(self, *, is_dry_run: bool = False) -> None:
        self.table = AclTable()
        self.is_dry_run = is_dry_run
        self.denied: list[tuple[Subject, Question]] = []
        self.topic_of: Callable[[uuid.UUID], str | None] = lambda _: None

    def note_denial(self, subject: Subject, question: Question) -> None:
        self.denied.append((subject, question))


def allow(judge: Judge, name: str, *operations: Operation) -> None:
    acls = {Acl("User:alice", "*", each, Permission.ALLOW) for each in operations}
    judge.table.set(Pattern(TOPIC, name, PatternType.LITERAL), acls)


@given(changes=CHANGES)
def test_after_any_change_subjects_answer_as_the_table_does(changes: Any) -> None:
    judge = Judge()
    everybody = [LimitedSubject(*each, judge) for each in product((ALICE, BOB), HOSTS)]
    for pattern, acls in [(None, None), *changes]:
        if pattern is not None:
            judge.table.set(pattern, acls)
        for subject, operation, name in product(everybody, OPERATIONS, NAMES):
            question = operation, TOPIC, name
            slowly = judge.table.permits(subject.principal, subject.host, *question)
            assert subject.could(*question) == subject.may(*question) == slowly


def test_a_denial_is_noted_each_time_and_a_probe_is_not() -> None:
    judge = Judge()
    alice = LimitedSubject(ALICE, HOSTS[0], judge)
    question = Operation.READ, TOPIC, "a"
    assert not alice.could(*question)
    assert not alice.may_any(Operation.READ, TOPIC)
    assert not judge.denied
    assert not alice.may(*question)
    assert not alice.may(*question)
    assert judge.denied == [(alice, question)] * 2


def test_in_a_dry_run_everything_is_allowed_and_denials_are_noted() -> None:
    judge = Judge(is_dry_run=True)
    allow(judge, "a", Operation.READ)
    alice = LimitedSubject(ALICE, HOSTS[0], judge)
    assert alice.may(Operation.READ, TOPIC, "a")
    assert not judge.denied
    assert alice.may(Operation.WRITE, TOPIC, "a")
    assert alice.could(Operation.WRITE, TOPIC, "b")
    assert not alice.may_any(Operation.WRITE, TOPIC)  # whoever asks this notes the denial
    assert [question for _, question in judge.denied] == [(Operation.WRITE, TOPIC, "a")]


def test_the_names_that_are_remembered_are_few_and_short() -> None:
    judge = Judge()
    alice = LimitedSubject(ALICE, HOSTS[0], judge)
    for number in range(subjects._REMEMBERED_MAX + 10):
        alice.could(Operation.READ, TOPIC, str(number))
        alice.could(Operation.READ, TOPIC, "x" * 256 + str(number))
        assert len(alice._known) <= subjects._REMEMBERED_MAX
    assert max(len(name) for _, _, name in alice._known) < 256
