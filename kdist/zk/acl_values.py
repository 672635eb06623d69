"""What the znodes of ACLs hold; source: Kafka's `ZkData.scala`, `AclEntry.scala` (2.0 to 3.9).

/kafka-acl/<Type>/<name>, /kafka-acl-extended/prefixed/<Type>/<name>
    version 1               acls: [{"principal": "User:alice", "permissionType": "Allow",
                            "host": "*", "operation": "Read"}, ...]
/kafka-acl-changes/acl_changes_<digits>
                            TOPIC:name, no JSON: a literal pattern
/kafka-acl-extended-changes/acl_changes_<digits>
    version 1               resourceType: "TOPIC", name, patternType: "PREFIXED"

A word that is not known is read as UNKNOWN: such an entry decides nothing, but there is one.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from kdist.security.acls import Acl, Operation, Pattern, PatternType, Permission, ResourceType
from kdist.security.principals import parse_principal
from kdist.zk.errors import CorruptZnode
from kdist.zk.fields import Fields, to_json


class StoredAclEntries(NamedTuple):
    """The ACLs of one pattern."""

    acls: frozenset[Acl]

    def encode(self) -> bytes:
        acls = [
            {
                "principal": acl.principal,
                "permissionType": acl.permission.text,
                "host": acl.host,
                "operation": acl.operation.text,
            }
            for acl in sorted(self.acls)
        ]
        return to_json({"acls": acls, "version": 1})

    @classmethod
    def decode(cls, path: str, data: bytes) -> StoredAclEntries:
        """An empty znode has none. A newer version may mean something else, and is corrupt."""
        if not data:
            return cls(frozenset())
        fields = Fields(path, data)
        if fields.required("version", int) != 1:
            fields.fail("the version is not 1")
        return cls(frozenset(_acl(fields, each) for each in fields.required("acls", list)))


def _acl(fields: Fields, entry: object) -> Acl:
    words: dict[str, Any] = entry if isinstance(entry, dict) else {}
    texts: list[Any] = [
        words.get(name) for name in ("principal", "host", "operation", "permissionType")
    ]
    if not all(isinstance(text, str) for text in texts):
        fields.fail(f"'acls' has {entry!r}")
    principal, host, operation, permission = texts
    try:
        parse_principal(principal)
    except ValueError as error:
        fields.fail(str(error))
    return Acl(principal, host, Operation.parse(operation), Permission.parse(permission))


class AclChange(NamedTuple):
    """A notification: the ACLs of this literal pattern have changed."""

    pattern: Pattern

    def encode(self) -> bytes:
        return f"{self.pattern.type.name}:{self.pattern.name}".encode()

    @classmethod
    def decode(cls, path: str, data: bytes) -> AclChange:
        resource_type, colon, name = data.decode(errors="replace").partition(":")
        if not colon:
            raise CorruptZnode(path, f"{data[:40]!r} names no resource")
        return cls(Pattern(_type_of(resource_type), name, PatternType.LITERAL))


class ExtendedAclChange(NamedTuple):
    """The same, of a pattern of any other type."""

    pattern: Pattern

    def encode(self) -> bytes:
        resource_type, name, kind = self.pattern
        named = {"resourceType": resource_type.name, "name": name, "patternType": kind.name}
        return to_json({"version": 1, **named})

    @classmethod
    def decode(cls, path: str, data: bytes) -> ExtendedAclChange:
        fields = Fields(path, data)
        resource_type, name, kind = (
            fields.required(key, str) for key in ("resourceType", "name", "patternType")
        )
        return cls(Pattern(_type_of(resource_type), name, PatternType.parse(kind)))


def _type_of(word: str) -> ResourceType:
    """Of `TRANSACTIONAL_ID`, as Java writes it, or `TransactionalId`, as Kafka 1 did."""
    return ResourceType.parse(word.replace("_", ""))
