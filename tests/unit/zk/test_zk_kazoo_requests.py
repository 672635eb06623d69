"""The bytes of many reads in one request, and of transactions beside kazoo's own."""

from __future__ import annotations

import struct

from kazoo.client import KazooClient
from kazoo.exceptions import (
    NoAuthError,
    NodeExistsError,
    RolledBackError,
    RuntimeInconsistency,
)
from kazoo.protocol.serialization import Transaction
from kazoo.protocol.states import ZnodeStat

from kdist.zk.client import Check, Create, Delete, Set
from kdist.zk.kazoo_requests import MultiRead, MultiWrite

END = b"\xff\xff\xff\xff" + b"\1" + b"\xff\xff\xff\xff"
STAT = (1, 2, 3, 4, 5, 6, 7, 0, 2, 0, 1)


def answered(kind: int, error: int, body: bytes) -> bytes:
    return struct.pack("!ibi", kind, 0, error) + body


def refused(code: int) -> bytes:
    return answered(-1, code, struct.pack("!i", code))


def read(data: bytes | None) -> bytes:
    size = -1 if data is None else len(data)
    return answered(
        4, 0, struct.pack("!i", size) + (data or b"") + struct.pack("!qqqqiiiqiiq", *STAT)
    )


def test_each_read_of_the_request_has_its_path_and_no_watch() -> None:
    begin = b"\0\0\0\4" + b"\0" + b"\xff\xff\xff\xff"
    assert MultiRead(["/a", "/é"]).serialize() == (
        begin + b"\0\0\0\2/a\0" + begin + b"\0\0\0\3/\xc3\xa9\0" + END
    )


def test_existing_missing_and_refused_znodes_are_distinguished() -> None:
    answer = b"head" + read(b"xyz") + refused(-101) + read(None) + refused(-102) + read(b"") + END
    first, missing, empty, secret, last = MultiRead.deserialize(answer, 4)
    assert (first[0], tuple(first[1])) == (b"xyz", STAT)
    assert missing is None
    assert empty[0] == last[0] == b""
    assert isinstance(secret, NoAuthError)


def test_a_transaction_has_the_bytes_that_kazoo_gives_it() -> None:
    theirs = KazooClient().transaction()
    theirs.check("/a", 3)
    theirs.create("/a/b", b"x")
    theirs.create("/e", ephemeral=True)
    theirs.create("/s_", b"", sequence=True)
    theirs.create("/es_", b"", ephemeral=True, sequence=True)
    theirs.set_data("/a", b"y", 4)
    theirs.delete("/c", -1)
    theirs.set_data("/é", "ü".encode())
    theirs.delete("/é", 7)
    ours = MultiWrite(
        [
            Check("/a", 3),
            Create("/a/b", b"x"),
            Create("/e", ephemeral=True),
            Create("/s_", sequential=True),
            Create("/es_", ephemeral=True, sequential=True),
            Set("/a", b"y", 4),
            Delete("/c"),
            Set("/é", "ü".encode()),
            Delete("/é", 7),
        ]
    )
    assert ours.serialize() == Transaction(theirs.operations).serialize()
    assert ours.type == Transaction.type


def test_a_transactions_results_are_read_as_kazoo_reads_them() -> None:
    path = "/é".encode()
    done = (
        b"head"
        + answered(13, 0, b"")
        + answered(1, 0, struct.pack("!i", len(path)) + path)
        + answered(5, 0, struct.pack("!qqqqiiiqiiq", *STAT))
        + answered(2, 0, b"")
        + END
    )
    assert MultiWrite.deserialize(done, 4) == Transaction.deserialize(done, 4)
    assert MultiWrite.deserialize(done, 4) == [True, "/é", ZnodeStat(*STAT), True]
    not_done = b"head" + refused(0) + refused(-110) + refused(-2) + END
    assert [type(each) for each in MultiWrite.deserialize(not_done, 4)] == [
        RolledBackError,
        NodeExistsError,
        RuntimeInconsistency,
    ]
