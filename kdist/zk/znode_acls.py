"""ZooKeeper's own ACLs: who may read and write each znode in a cluster that is secured (pure).

A znode has its ACL from the request that creates it, and does not inherit its parent's. With
`zookeeper.set.acl` each one that kdist creates gets what `acl_of` says: the creator may do
everything, and others may read, but for what holds secrets. Source: Kafka's `ZkData.defaultAcls`.
"""

from __future__ import annotations

import base64
import enum
import hashlib
from typing import NamedTuple


class Permission(enum.IntFlag):
    """ZooKeeper's bits. Creating and deleting children is asked of the parent."""

    READ = 1
    WRITE = 2
    CREATE = 4
    DELETE = 8
    ADMIN = 16
    ALL = 31


class AclEntry(NamedTuple):
    """What an identity may do: `digest` with `user:hash`, `x509` with a name, `sasl` with one."""

    scheme: str
    id: str
    permissions: int


ZnodeAcl = tuple[AclEntry, ...]

# A server puts the identities of the session that sets the ACL in the place of `auth`.
_CREATOR = AclEntry("auth", "", Permission.ALL)
WORLD = ("world", "anyone")
OPEN: ZnodeAcl = (AclEntry(*WORLD, Permission.ALL),)
READABLE: ZnodeAcl = (_CREATOR, AclEntry(*WORLD, Permission.READ))
SENSITIVE: ZnodeAcl = (_CREATOR,)

# Of the znode and all below it; all others are READABLE. Old consumers, which write below
# /consumers, have no credentials.
EXCEPTIONS: dict[str, ZnodeAcl] = {
    "/consumers": OPEN,
    "/config/brokers": SENSITIVE,
    "/config/users": SENSITIVE,
    "/delegation_token/tokens": SENSITIVE,
    "/kdist/secrets": SENSITIVE,
}


def acl_of(path: str) -> ZnodeAcl:
    """What the znode is created with, by its path below the chroot."""
    for root, acl in EXCEPTIONS.items():
        if path == root or path.startswith(f"{root}/"):
            return acl
    return READABLE


def digest_id(credentials: str) -> str:
    """How a server's `DigestAuthenticationProvider` knows `user:password`."""
    hashed = hashlib.sha1(credentials.encode()).digest()
    return f"{credentials.partition(':')[0]}:{base64.b64encode(hashed).decode()}"


def world_permissions(acl: ZnodeAcl) -> Permission:
    """What anybody may do."""
    found = Permission(0)
    for entry in acl:
        if entry[:2] == WORLD:
            found |= entry.permissions
    return found
