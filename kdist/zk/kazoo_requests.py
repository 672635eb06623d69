"""What kazoo is given for many operations at once: transactions, and many reads, which it lacks.

kazoo's own way to add to a transaction took 10 µs for an operation, as it makes paths whole that
are whole here. Many reads are ZooKeeper's request 22, `multiRead`, of ZooKeeper 3.6 and later
(ZOOKEEPER-1416); an older server says that it does not know it. Its bytes, as those of a `multi`:

    for each read    4 type: 4   1 done: 0   4 error: -1   4 length and path   1 watch: 0
    the end          4 type: -1  1 done: 1   4 error: -1

    for each answer  4 type: 4   1 done: 0   4 error: 0    4 length and data   68 stat
    or an error      4 type: -1  1 done: 0   4 error       4 error
    the end          4 type: -1  1 done: 1   4 error: -1
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

from kazoo.exceptions import EXCEPTIONS, NoNodeError  # type: ignore[import-untyped]
from kazoo.protocol import serialization  # type: ignore[import-untyped]
from kazoo.protocol.states import ZnodeStat  # type: ignore[import-untyped]
from kazoo.security import OPEN_ACL_UNSAFE  # type: ignore[import-untyped]

from kdist.zk.client import Check, Create, Delete, Operation, Set

_HEADER = struct.Struct("!ibi")  # type, whether it is the end, error
_NUMBER = struct.Struct("!i")
_STAT = struct.Struct("!qqqqiiiqiiq")
_GET_DATA, _ERROR = 4, -1
_READ_BEGIN = _HEADER.pack(_GET_DATA, 0, -1)
_NO_WATCH = b"\0"
_END = _HEADER.pack(-1, 1, -1)


def transaction(operations: Sequence[Operation]) -> Any:
    """kazoo's request for a multi."""
    return serialization.Transaction([_operation(each) for each in operations])


def _operation(operation: Operation) -> Any:
    match operation:
        case Check(path, version):
            return serialization.CheckVersion(path, version)
        case Create(path, data, ephemeral, sequential):
            flags = int(ephemeral) | int(sequential) << 1
            return serialization.Create(path, data, OPEN_ACL_UNSAFE, flags)
        case Set(path, data, version):
            return serialization.SetData(path, data, version)
        case Delete(path, version):
            return serialization.Delete(path, version)


class MultiRead:
    """Data and stat of many znodes, as kazoo's connection takes a request."""

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
        """For each path data and stat; None if there is no znode; else why it cannot be read.

        Such an exception is not raised, as kazoo would log it.
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
