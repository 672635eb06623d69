"""Filters of ACLs, as DescribeAcls and DeleteAcls have them, and what an ACL may be (pure)."""

from __future__ import annotations

import re
from typing import NamedTuple

from kdist.security.acls import (
    CLUSTER_NAME,
    WILDCARD,
    Acl,
    Operation,
    Pattern,
    PatternType,
    Permission,
    ResourceType,
)
from kdist.security.principals import host_text, parse_principal

# What ZooKeeper has in no path, and the separator. It sees a character beyond U+FFFF as two of the
# surrogates. Source: its `PathUtils.validatePath`.
_NOT_IN_PATHS = re.compile("[/\0-\x1f\x7f-\x9f\ud800-\uf8ff\ufff0-\U0010ffff]")
_LONGEST_NAME = 300  # in a log line


class AclFilter(NamedTuple):
    """Which ACLs are meant; without a name, principal or host: any."""

    type: ResourceType = ResourceType.ANY
    name: str | None = None
    kind: PatternType = PatternType.ANY
    principal: str | None = None
    host: str | None = None
    operation: Operation = Operation.ANY
    permission: Permission = Permission.ANY

    def matches_pattern(self, pattern: Pattern) -> bool:
        """Whether the ACLs of this pattern are meant. MATCH: those that count for the name."""
        if self.type not in (ResourceType.ANY, pattern.type):
            return False
        if self.kind not in (PatternType.ANY, PatternType.MATCH, pattern.kind):
            return False
        if self.name is None or self.name == pattern.name:
            return True
        if self.kind is not PatternType.MATCH:
            return False
        is_prefix = pattern.kind is PatternType.PREFIXED and self.name.startswith(pattern.name)
        return is_prefix or pattern == (pattern.type, WILDCARD, PatternType.LITERAL)

    def matches(self, acl: Acl) -> bool:
        """Whether this ACL is meant, if those of its pattern are."""
        return (
            self.principal in (None, acl.principal)
            and (self.host is None or host_text(self.host) == host_text(acl.host))
            and self.operation in (Operation.ANY, acl.operation)
            and self.permission in (Permission.ANY, acl.permission)
        )

    def pattern(self) -> Pattern | None:
        """The only pattern that it can match; None if there may be more."""
        is_one = self.kind in (PatternType.LITERAL, PatternType.PREFIXED)
        if not is_one or self.name is None or self.type is ResourceType.ANY:
            return None
        return Pattern(self.type, self.name, self.kind)

    def fault(self) -> str | None:
        """Why nothing can be meant by it, as a sentence; None if something can."""
        words = (self.type, self.kind, self.operation, self.permission)
        unknown = [type(word).__name__ for word in words if not word]
        return f"the filter has an unknown {unknown[0]}" if unknown else None


def fault_of(pattern: Pattern, acl: Acl) -> str | None:
    """Why there can be no such ACL, as a sentence; None if there can.

    As in Kafka, a type of resources may have an ACL of an operation that there is not for it.
    """
    words = (pattern.type, acl.operation, acl.permission)
    if not all(word > type(word)(1) for word in words):  # UNKNOWN, ANY
        return "an ACL has one type of resource, one operation and one permission"
    if pattern.kind not in (PatternType.LITERAL, PatternType.PREFIXED):
        return "an ACL's pattern is literal or prefixed"
    if not acl.host:
        return "an ACL has a host, or * for any"
    try:
        parse_principal(acl.principal)
    except ValueError as error:
        return str(error)
    return fault_of_name(pattern)


def fault_of_name(pattern: Pattern) -> str | None:
    """Why no ACL can be of this name, as a sentence; None if one can."""
    if pattern.type is ResourceType.CLUSTER and pattern.name != CLUSTER_NAME:
        return f"the cluster's only name is {CLUSTER_NAME}"
    if pattern.name in ("", ".", ".."):
        return f"there is no resource whose name is {pattern.name!r}"
    if (found := _NOT_IN_PATHS.search(pattern.name)) is not None:
        return f"an ACL's name cannot have {found.group()!r}: name the prefix before it, or *"
    return None


def show_acl(pattern: Pattern, acl: Acl) -> str:
    """One line, in which no name can begin another."""
    resource = f"{pattern.type.text}:{pattern.kind.name}:{pattern.name!r:.{_LONGEST_NAME}}"
    who = f"{acl.principal!r:.{_LONGEST_NAME}} from {acl.host!r:.{_LONGEST_NAME}}"
    return f"{resource}: {acl.permission.text} {who} {acl.operation.text}"
