"""ACLs, and the decision that follows from them (pure).

An `Acl` allows or denies a principal one operation from one host; it stands for a `Pattern`: a
resource's name, a prefix of names, or `*`. `AclTable` holds all of them, and answers as Kafka's
`AclAuthorizer` does (ZooKeeper mode, 2.0 to 3.9):

1. A super user may do anything.
2. The ACLs that count are those of the name, of `*`, and of each prefix of the name. If there is
   none, for anybody, `allow.everyone.if.no.acl.found` decides.
3. One that denies the operation or `All` decides, whichever pattern it stands for.
4. One that allows the operation, `All`, or what implies it (`IMPLIED_BY`), decides. Else: no.

A pattern of which the ACLs cannot be read is closed to all but super users.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, MutableSet
from enum import IntEnum
from functools import cache, lru_cache
from itertools import product
from typing import NamedTuple, Self

from kdist.model import Principal
from kdist.security.principals import format_principal, host_text

CLUSTER_NAME = "kafka-cluster"  # the only resource of the type CLUSTER
WILDCARD = "*"  # as a literal name: any name; as a host: any host
EVERYBODY = "User:*"

_WANTED_REMEMBERED = 4096


class _Code(IntEnum):
    """Codes with Kafka's texts, such as `DescribeConfigs`; each has one that is UNKNOWN."""

    __hash__ = int.__hash__  # an Enum's own is a function in Python

    @property
    def text(self) -> str:
        return "".join(word.capitalize() for word in self.name.split("_"))

    @classmethod
    def _missing_(cls, _value: object) -> Self:
        return cls(0)

    @classmethod
    def parse(cls, text: str) -> Self:
        """The code of a text in any case, without underscores; UNKNOWN for any other."""
        return cls(_codes(cls).get(text.lower(), 0))


@cache
def _codes(kind: type[_Code]) -> dict[str, int]:
    return {code.text.lower(): code.value for code in kind}


class Operation(_Code):
    """What is done to a resource."""

    UNKNOWN = 0
    ANY = 1  # in filters only
    ALL = 2
    READ = 3
    WRITE = 4
    CREATE = 5
    DELETE = 6
    ALTER = 7
    DESCRIBE = 8
    CLUSTER_ACTION = 9
    DESCRIBE_CONFIGS = 10
    ALTER_CONFIGS = 11
    IDEMPOTENT_WRITE = 12
    CREATE_TOKENS = 13
    DESCRIBE_TOKENS = 14


class ResourceType(_Code):
    """What it is done to."""

    UNKNOWN = 0
    ANY = 1  # in filters only
    TOPIC = 2
    GROUP = 3
    CLUSTER = 4
    TRANSACTIONAL_ID = 5
    DELEGATION_TOKEN = 6
    USER = 7


class PatternType(_Code):
    """How a pattern names resources."""

    UNKNOWN = 0
    ANY = 1  # in filters only
    MATCH = 2  # in filters only: whatever counts for the name
    LITERAL = 3
    PREFIXED = 4


class Permission(_Code):
    """What an ACL says of it."""

    UNKNOWN = 0
    ANY = 1  # in filters only
    DENY = 2
    ALLOW = 3


IMPLIED_BY = {
    Operation.DESCRIBE: (Operation.READ, Operation.WRITE, Operation.DELETE, Operation.ALTER),
    Operation.DESCRIBE_CONFIGS: (Operation.ALTER_CONFIGS,),
}


class Pattern(NamedTuple):
    """Which resources an ACL is about."""

    type: ResourceType
    name: str
    kind: PatternType


class Acl(NamedTuple):
    """An entry. An UNKNOWN operation or permission decides nothing, but is one that exists."""

    principal: str  # "User:alice", "User:*"
    host: str
    operation: Operation
    permission: Permission


_CLOSED = frozenset((Acl(EVERYBODY, WILDCARD, Operation.ALL, Permission.DENY),))


class AclTable:
    """All ACLs of a cluster. Whoever loads them calls `set`; one thread."""

    def __init__(self, super_users: Iterable[Principal] = (), allow_if_none: bool = False) -> None:
        self.version = 0  # ascends with each change
        self.unreadable: MutableSet[Pattern] = set()
        self._super_users = frozenset(super_users)
        self._allow_if_none = allow_if_none
        self._stored: dict[Pattern, frozenset[Acl]] = {}
        self._in_force: dict[Pattern, frozenset[Acl]] = {}  # by hosts as Java writes them
        self._names: defaultdict[tuple[ResourceType, PatternType, Acl], MutableSet[str]]
        self._names = defaultdict(set)
        self._prefix_lengths: defaultdict[ResourceType, Counter[int]] = defaultdict(Counter)

    def set(self, pattern: Pattern, acls: Collection[Acl] | None) -> None:
        """What a pattern's ACLs are from now on; None if they cannot be read."""
        assert pattern.kind in (PatternType.LITERAL, PatternType.PREFIXED), pattern
        stored = frozenset(acls or ())
        is_readable = acls is not None
        former = self.stored(pattern), pattern not in self.unreadable
        if former == (stored, is_readable):
            return
        self.version += 1
        _put(self._stored, pattern, stored)
        (self.unreadable.discard if is_readable else self.unreadable.add)(pattern)
        by_java = frozenset(acl._replace(host=host_text(acl.host)) for acl in stored)
        self._enforce(pattern, by_java if is_readable else _CLOSED)

    def bindings(self) -> Iterator[tuple[Pattern, Acl]]:
        """Each ACL that could be read, as it was given."""
        for pattern, acls in self._stored.items():
            for acl in acls:
                yield pattern, acl

    def stored(self, pattern: Pattern) -> frozenset[Acl]:
        """The ACLs of a pattern, as they were given; none if they could not be read."""
        return self._stored.get(pattern, frozenset())

    def patterns(self) -> Collection[Pattern]:
        """Each pattern that has ACLs, or has some that cannot be read."""
        return self._in_force.keys()

    def permits(
        self,
        principal: Principal,
        host: str,
        operation: Operation,
        resource_type: ResourceType,
        name: str,
    ) -> bool:
        """Whether a principal, from a host, may do this to the resource of that name."""
        if principal in self._super_users:
            return True
        denials, grants = _wanted(principal, host, operation)
        found = [
            acls
            for pattern in self._patterns(resource_type, name)
            if (acls := self._in_force.get(pattern))
        ]
        if not found:
            return self._allow_if_none
        if not all(acls.isdisjoint(denials) for acls in found):
            return False
        return not all(acls.isdisjoint(grants) for acls in found)

    def permits_any(
        self, principal: Principal, host: str, operation: Operation, resource_type: ResourceType
    ) -> bool:
        """Whether there is a name of the type for which the operation itself is allowed.

        Source: `authorizeByResourceType`, KIP-679. What implies the operation does not count, and
        `allow.everyone.if.no.acl.found` does wherever `*` is not denied.
        """
        if principal in self._super_users:
            return True
        literals, prefixes = self._named(principal, host, operation, resource_type, Permission.DENY)
        if WILDCARD in literals or self._allow_if_none:
            return WILDCARD not in literals
        lengths = {len(prefix) for prefix in prefixes}

        def is_covered(name: str) -> bool:
            return any(name[:length] in prefixes for length in lengths)

        names, starts = self._named(principal, host, operation, resource_type, Permission.ALLOW)
        return (
            WILDCARD in names
            or any(name not in literals and not is_covered(name) for name in names)
            or not all(map(is_covered, starts))
        )

    def _patterns(self, resource_type: ResourceType, name: str) -> Iterator[Pattern]:
        yield Pattern(resource_type, WILDCARD, PatternType.LITERAL)
        yield Pattern(resource_type, name, PatternType.LITERAL)
        for length in self._prefix_lengths[resource_type]:
            if length <= len(name):
                yield Pattern(resource_type, name[:length], PatternType.PREFIXED)

    def _named(
        self,
        principal: Principal,
        host: str,
        operation: Operation,
        resource_type: ResourceType,
        permission: Permission,
    ) -> tuple[frozenset[str], frozenset[str]]:
        """The literal names and the prefixes with such an ACL."""
        wanted = _entries(principal, host, (operation,), permission)
        literals, prefixes = (
            frozenset[str]().union(
                *(self._names.get((resource_type, kind, acl), ()) for acl in wanted)
            )
            for kind in (PatternType.LITERAL, PatternType.PREFIXED)
        )
        return literals, prefixes

    def _enforce(self, pattern: Pattern, acls: frozenset[Acl]) -> None:
        resource_type, name, kind = pattern
        former = self._in_force.get(pattern, frozenset())
        _put(self._in_force, pattern, acls)
        for acl in acls - former:
            self._names[resource_type, kind, acl].add(name)
        for acl in former - acls:
            names = self._names[resource_type, kind, acl]
            names.discard(name)
            if not names:
                del self._names[resource_type, kind, acl]
        if kind is PatternType.PREFIXED:
            lengths = self._prefix_lengths[resource_type]
            lengths[len(name)] += bool(acls) - bool(former)
            if not lengths[len(name)]:
                del lengths[len(name)]


def _put(
    acls_by_pattern: dict[Pattern, frozenset[Acl]], pattern: Pattern, acls: frozenset[Acl]
) -> None:
    if acls:
        acls_by_pattern[pattern] = acls
    else:
        acls_by_pattern.pop(pattern, None)


@lru_cache(_WANTED_REMEMBERED)
def _wanted(
    principal: Principal, host: str, operation: Operation
) -> tuple[frozenset[Acl], frozenset[Acl]]:
    """The ACLs that deny this, and those that allow it."""
    sufficient = (operation, *IMPLIED_BY.get(operation, ()))
    return (
        _entries(principal, host, (operation,), Permission.DENY),
        _entries(principal, host, sufficient, Permission.ALLOW),
    )


def _entries(
    principal: Principal, host: str, operations: Iterable[Operation], permission: Permission
) -> frozenset[Acl]:
    whos = (format_principal(principal), EVERYBODY)
    hosts = (host_text(host), WILDCARD)
    return frozenset(
        Acl(*entry, permission) for entry in product(whos, hosts, (*operations, Operation.ALL))
    )
