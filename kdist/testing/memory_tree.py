"""The tree of znodes as a ZooKeeper server keeps it, in memory: no sessions, watches or time.

A write returns its outcome and the events it causes, for the owner of the watches. A refused
`multi` is rolled back: every change records the node's previous value. A follower's tree is a copy
of the leader's that repeats its transactions (`changes`, `apply`). Versions, transaction ids
and the digits of sequential znodes are counted as in ZooKeeper 3.9.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import chain
from typing import NamedTuple

from kdist.zk.client import (
    ANY_VERSION,
    Check,
    Create,
    Delete,
    Operation,
    Outcome,
    Set,
    Stat,
    WatchEvent,
    WatchKind,
    Znode,
)
from kdist.zk.errors import (
    BadVersion,
    InvalidAcl,
    MultiFailed,
    NoAuth,
    NoChildrenForEphemerals,
    NodeExists,
    NoNode,
    NotEmpty,
    Refused,
)
from kdist.zk.session import SetAcl
from kdist.zk.znode_acls import OPEN, WORLD, AclEntry, Permission, ZnodeAcl


class Node(NamedTuple):
    """A znode. `children_created` only grows; deleted children count too."""

    data: bytes
    version: int
    czxid: int
    mzxid: int
    owner: int
    created_ms: int
    modified_ms: int
    children_created: int = 0
    acl: ZnodeAcl = OPEN


Ids = frozenset[tuple[str, str]]  # of a session: schemes and ids

Changes = Mapping[str, Node | None]  # what a transaction left at each path that it wrote


class Tree:
    """All znodes by path. Every write is one transaction, with one transaction id."""

    def __init__(self) -> None:
        self._ids: Ids | None = None  # whose transaction is under way; None: the servers' own
        self._nodes: dict[str, Node] = {"/": Node(b"", 0, 0, 0, 0, 0, 0)}
        self._children: dict[str, set[str]] = {"/": set()}
        self.zxid = 0  # of the last transaction
        self._before: list[tuple[str, Node | None]] = []  # of the transaction under way
        self._events: list[WatchEvent] = []

    # -- reads

    def require(self, path: str, permission: Permission, ids: Ids | None) -> None:
        """`NoNode`; `NoAuth` if the znode's ACL does not allow it to any of the ids."""
        acl = self._node(path).acl
        if acl is OPEN or ids is None:
            return
        if not any(each.permissions & permission and each[:2] in (WORLD, *ids) for each in acl):
            raise NoAuth(path)

    def acl(self, path: str) -> ZnodeAcl:
        """`NoNode`."""
        return self._node(path).acl

    def get(self, path: str) -> Znode:
        """`NoNode`."""
        return Znode(self._node(path).data, self.stat(path))

    def stat(self, path: str) -> Stat:
        """`NoNode`."""
        node, count = self._node(path), len(self._children[path])
        return Stat(
            version=node.version,
            # Creations plus deletions, as ZooKeeper reports it, though it counts only creations.
            children_version=2 * node.children_created - count,
            czxid=node.czxid,
            mzxid=node.mzxid,
            ephemeral_owner=node.owner,
            created_ms=node.created_ms,
            modified_ms=node.modified_ms,
            children_count=count,
        )

    def exists(self, path: str) -> Stat | None:
        """The stat, or None."""
        return self.stat(path) if path in self._nodes else None

    def children(self, path: str) -> list[str]:
        """Names; `NoNode`."""
        self._node(path)
        return sorted(self._children[path])

    def owned_by(self, session_id: int) -> list[str]:
        """The paths of a session's ephemerals."""
        return sorted(path for path, node in self._nodes.items() if node.owner == session_id)

    # -- copies

    def copy(self) -> Tree:
        """Another tree with the same content."""
        copy = Tree()
        copy._nodes = dict(self._nodes)
        copy._children = {path: set(names) for path, names in self._children.items()}
        copy.zxid = self.zxid
        return copy

    def changes(self) -> Changes:
        """Those of the last transaction."""
        return {path: self._nodes.get(path) for path, _ in self._before}

    def apply(self, zxid: int, changes: Changes) -> None:
        """Repeat a transaction of the tree that this one is a copy of."""
        self.zxid = zxid
        for path, node in changes.items():
            if node is not None or path in self._nodes:
                self._replace(path, node)

    # -- writes

    def write(
        self,
        operations: tuple[Operation | SetAcl, ...],
        session_id: int,
        now_ms: int,
        ids: Ids | None = None,
    ) -> tuple[list[Outcome], list[WatchEvent]]:
        """Carry out all operations or none; `MultiFailed` says which was refused.

        `ids` are the session's, that must be allowed to; None: the servers write.
        """
        self.zxid += 1
        self._ids = ids
        self._before, self._events = [], []
        outcomes: list[Outcome] = []
        for index, operation in enumerate(operations):
            try:
                outcomes.append(self._apply(operation, session_id, now_ms))
            except Refused as error:
                self._roll_back()
                raise MultiFailed(index, error) from None
        return outcomes, self._events

    def _roll_back(self) -> None:
        for path, node in reversed(self._before):
            self._replace(path, node)
        self._before, self._events = [], []

    def _apply(self, operation: Operation | SetAcl, session_id: int, now_ms: int) -> Outcome:
        match operation:
            case Check(path, version):
                self._checked(path, version)
                return None
            case Create():
                return self._create(operation, session_id, now_ms)
            case Set(path, data, version):
                self.require(path, Permission.WRITE, self._ids)
                node = self._checked(path, version)
                changed = node._replace(
                    data=data, version=node.version + 1, mzxid=self.zxid, modified_ms=now_ms
                )
                self._put(path, changed)
                self._events.append(WatchEvent(WatchKind.CHANGED, path))
                return self.stat(path)
            case Delete(path, version):
                self._delete(path, version)
                return None
            case SetAcl(path, acl):
                self.require(path, Permission.ADMIN, self._ids)
                self._put(path, self._node(path)._replace(acl=self._expanded(path, acl)))
                return None

    def _expanded(self, path: str, acl: ZnodeAcl) -> ZnodeAcl:
        """With the session's ids in the place of `auth`."""
        ids = sorted(self._ids or ())
        entries = [
            [AclEntry(*each, entry.permissions) for each in ids]
            if entry.scheme == "auth"
            else [entry]
            for entry in acl
        ]
        if not all(entries):
            raise InvalidAcl(path)
        return acl if acl is OPEN else tuple(chain.from_iterable(entries))

    def _create(self, operation: Create, session_id: int, now_ms: int) -> str:
        parent_path = _parent(operation.path)
        parent = self._nodes.get(parent_path)
        if parent is None:
            raise NoNode(operation.path)
        path = operation.path
        self.require(parent_path, Permission.CREATE, self._ids)
        if operation.sequential:
            path = f"{path}{parent.children_created:010}"
        if path in self._nodes:
            raise NodeExists(path)
        if parent.owner:
            raise NoChildrenForEphemerals(path)
        owner = session_id if operation.ephemeral else 0
        acl = self._expanded(path, operation.acl)
        node = Node(operation.data, 0, self.zxid, self.zxid, owner, now_ms, now_ms, acl=acl)
        self._put(path, node)
        self._put(parent_path, parent._replace(children_created=parent.children_created + 1))
        self._events.append(WatchEvent(WatchKind.CREATED, path))
        self._events.append(WatchEvent(WatchKind.CHILDREN, parent_path))
        return path

    def _delete(self, path: str, version: int) -> None:
        self._checked(path, version)
        self.require(_parent(path), Permission.DELETE, self._ids)
        if self._children[path]:
            raise NotEmpty(path)
        self._put(path, None)
        self._events.append(WatchEvent(WatchKind.DELETED, path))
        self._events.append(WatchEvent(WatchKind.CHILDREN, _parent(path)))

    def _node(self, path: str) -> Node:
        node = self._nodes.get(path)
        if node is None:
            raise NoNode(path)
        return node

    def _checked(self, path: str, version: int) -> Node:
        node = self._node(path)
        if version not in (ANY_VERSION, node.version):
            raise BadVersion(path)
        return node

    def _put(self, path: str, node: Node | None) -> None:
        self._before.append((path, self._nodes.get(path)))
        self._replace(path, node)

    def _replace(self, path: str, node: Node | None) -> None:
        siblings = self._children[_parent(path)]
        name = path.rpartition("/")[2]
        if node is None:
            del self._nodes[path], self._children[path]
            siblings.discard(name)
            return
        self._nodes[path] = node
        self._children.setdefault(path, set())
        if name:  # the root is no child of its own
            siblings.add(name)


def _parent(path: str) -> str:
    return path.rpartition("/")[0] or "/"
