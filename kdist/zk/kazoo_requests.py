"""Requests with many operations for kazoo: transactions, and multi-reads, which it lacks.

kazoo's own transaction took 10 µs to add an operation, as it completes paths, which are full
already here, and 2.5 µs to encode it and decode its result; `MultiWrite` has only the second step,
and needs half the time for it. Many reads are ZooKeeper's request 22, `multiRead`, of ZooKeeper
3.6 and later (ZOOKEEPER-1416); an older server answers that it is unimplemented. Their bytes:

    for each read    4 type: 4   1 done: 0   4 error: -1   4 length and path   1 watch: 0
    for each write   4 type      1 done: 0   4 error: -1   4 length and path   what the type has:
        1 create       4 length and data   the ACL   4 flags
        5 set          4 length and data   4 version
        2 delete, 13 check                 4 version
    the end          4 type: -1  1 done: 1   4 error: -1

    for each answer  4 type      1 done: 0   4 error: 0    what the type has:
        4 read         4 length and data   68 stat
        1 create       4 length and path
        5 set          68 stat
    or an error      4 type: -1  1 done: 0   4 error       4 error
    the end          4 type: -1  1 done: 1   4 error: -1
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from functools import cache
from typing import Any

from kazoo.exceptions import EXCEPTIONS, NoNodeError  # type: ignore[import-untyped]
from kazoo.protocol.states import ZnodeStat  # type: ignore[import-untyped]
from kazoo.security import ACL, Id  # type: ignore[import-untyped]

from kdist.zk.client import Check, Create, Delete, Operation, Set
from kdist.zk.znode_acls import AclEntry, ZnodeAcl

_HEADER = struct.Struct("!ibi")  # type, whether it is the end, error
_NUMBER = struct.Struct("!i")
_STAT = struct.Struct("!qqqqiiiqiiq")
_CREATE, _DELETE, _GET_DATA, _SET_DATA, _CHECK, _ERROR = 1, 2, 4, 5, 13, -1
_READ_BEGIN = _HEADER.pack(_GET_DATA, 0, -1)
_NO_WATCH = b"\0"
_END = _HEADER.pack(-1, 1, -1)
_BEGINS: dict[type[Operation], bytes] = {
    kind: _HEADER.pack(number, 0, -1)
    for kind, number in ((Create, _CREATE), (Delete, _DELETE), (Set, _SET_DATA), (Check, _CHECK))
}


@cache
def _packed(acl: ZnodeAcl) -> bytes:
    """The number of entries; of each its permissions, and the scheme and the id with lengths."""
    parts = [_NUMBER.pack(len(acl))]
    for scheme, name, permissions in acl:
        parts.append(_NUMBER.pack(permissions))
        for text in (scheme.encode(), name.encode()):
            parts += [_NUMBER.pack(len(text)), text]
    return b"".join(parts)


def to_kazoo(acl: ZnodeAcl) -> list[ACL]:
    """The ACL as kazoo's own requests take it."""
    return [ACL(int(permissions), Id(scheme, name)) for scheme, name, permissions in acl]


def from_kazoo(acl: Sequence[ACL]) -> ZnodeAcl:
    """The ACL of an answer."""
    return tuple(AclEntry(each.id.scheme, each.id.id, each.perms) for each in acl)


class MultiWrite:
    """A transaction, with the interface of kazoo's requests."""

    type = 14

    def __init__(self, operations: Sequence[Operation]) -> None:
        self._operations = operations

    def serialize(self) -> bytes:
        """The request after its header."""
        parts = []
        number = _NUMBER.pack
        for each in self._operations:
            path = each.path.encode()
            parts += [_BEGINS[type(each)], number(len(path)), path]
            match each:
                case Create(_, data, ephemeral, sequential, acl):
                    flags = int(ephemeral) | int(sequential) << 1
                    parts += [number(len(data)), data, _packed(acl), number(flags)]
                case Set(_, data, version):
                    parts += [number(len(data)), data, number(version)]
                case Delete(_, version) | Check(_, version):
                    parts.append(number(version))
        return b"".join([*parts, _END])

    @staticmethod
    def deserialize(answer: bytes, offset: int) -> list[Any]:
        """For each operation its path, stat or True; or an exception, which is not raised."""
        found: list[Any] = []
        while True:
            kind, is_end, _ = _HEADER.unpack_from(answer, offset)
            offset += _HEADER.size
            if is_end:
                return found
            if kind == _SET_DATA:
                found.append(ZnodeStat._make(_STAT.unpack_from(answer, offset)))
                offset += _STAT.size
            elif kind in (_CREATE, _ERROR):
                (number,) = _NUMBER.unpack_from(answer, offset)
                offset += _NUMBER.size
                if kind == _ERROR:
                    found.append(EXCEPTIONS[number]())
                else:
                    found.append(str(answer[offset : offset + number], "utf-8"))
                    offset += number
            else:
                found.append(True)


class MultiRead:
    """Data and stat of many znodes, with the interface of kazoo's requests."""

    type = 22

    def __init__(self, paths: Sequence[str]) -> None:
        self._paths = paths

    def serialize(self) -> bytes:
        """The request after its header."""
        parts = []
        for path in self._paths:
            encoded = path.encode()
            parts += [_READ_BEGIN, _NUMBER.pack(len(encoded)), encoded, _NO_WATCH]
        return b"".join([*parts, _END])

    @staticmethod
    def deserialize(answer: bytes, offset: int) -> list[Any]:
        """For each path data and stat; None if there is no znode; or an exception.

        Exceptions are returned, as kazoo would log one that is raised.
        """
        found: list[Any] = []
        while True:
            kind, is_end, _ = _HEADER.unpack_from(answer, offset)
            offset += _HEADER.size
            if is_end:
                return found
            (number,) = _NUMBER.unpack_from(answer, offset)
            offset += _NUMBER.size
            if kind == _ERROR:
                found.append(None if number == NoNodeError.code else EXCEPTIONS[number]())
                continue
            size = max(number, 0)  # -1: no data
            data = bytes(answer[offset : offset + size])
            offset += size
            found.append((data, ZnodeStat._make(_STAT.unpack_from(answer, offset))))
            offset += _STAT.size
