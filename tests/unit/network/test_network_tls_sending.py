"""How answers leave over TLS: encrypted whatever they are made of, and in bounded memory."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
from network_files import CONTENT, File, Part
from network_world import Answering, RawPeer, Served, World, tls_world, until
from tls_pair import Pair

from kdist.network.connection import Connection
from kdist.network.socket_transport import FileTransport
from kdist.network.tls import PIECE_BYTES, TlsTransport

RECORD_OVERHEAD_BYTES = 22


@pytest.fixture
def world() -> Iterator[World]:
    yield from tls_world()


# Files


class Fetching(Answering):
    """Answers `position size tail` with that range between a byte and a tail of so many."""

    def __init__(self, file: File) -> None:
        super().__init__()
        self.file = file

    def on_frame(self, connection: Connection, frame: memoryview) -> None:
        position, size, tail = map(int, bytes(frame).split())
        head = (1 + size + tail).to_bytes(4, "big") + b"a"
        connection.reserve().send([head, Part(self.file, position, size), bytes(tail)])


class Tap:
    """Carries the bytes of connections to `port`, and keeps what comes back."""

    def __init__(self, port: int) -> None:
        self.wire = bytearray()
        self._port = port
        self._carrying: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Tap:
        self._server = await asyncio.start_server(self._begin, "127.0.0.1", 0)
        self.port: int = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        for each in self._carrying:
            each.cancel()
        await asyncio.gather(*self._carrying, return_exceptions=True)

    def _begin(self, near: asyncio.StreamReader, back: asyncio.StreamWriter) -> None:
        self._carrying.append(asyncio.create_task(self._carry(near, back)))

    async def _carry(self, near: asyncio.StreamReader, back: asyncio.StreamWriter) -> None:
        far, forth = await asyncio.open_connection("127.0.0.1", self._port)
        await asyncio.gather(self._pass(near, forth, bytearray()), self._pass(far, back, self.wire))

    async def _pass(
        self, source: asyncio.StreamReader, target: asyncio.StreamWriter, kept: bytearray
    ) -> None:
        while data := await source.read(1 << 16):
            kept += data
            target.write(data)
        target.close()


def test_no_byte_of_a_file_leaves_in_clear(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ranges that are small, large, and not in the page cache; and what is between them."""

    def never(*_: object) -> int:
        raise AssertionError("a file was sent as it is")

    monkeypatch.setattr("kdist.network.socket_transport.send_file", never)
    file = File(str(tmp_path / "log"), cold_from=2_000_000)
    asked = [(0, 100, 3), (1000, 1_500_000, 3), (2_500_000, 300_000, 3), (70_000, 9_000, 0)]

    async def scenario() -> bytes:
        async with Served(world, Fetching(file)) as served, Tap(served.port) as tap:
            peer = await world.client.connect(RawPeer, world.host, tap.port)
            peer.send(*(b"%d %d %d" % each for each in asked))
            assert await peer.answers(len(asked)) == [
                b"a" + CONTENT[start : start + size] + bytes(tail) for start, size, tail in asked
            ]
            assert file.released == len(asked)
            return bytes(tap.wire)

    wire = world.run(scenario())
    assert len(wire) > 1_800_000
    for start in (*range(0, 100, 10), *range(0, 3_000_000, 20_000)):
        assert CONTENT[start : start + 8] not in wire


async def test_bytes_behind_the_records_leave_with_them(world: World, tmp_path: Path) -> None:
    """All records of TLS in an answer are one run of packets."""
    handler = Fetching(File(str(tmp_path / "log"), len(CONTENT)))
    async with Served(world, handler) as served:
        peer = await served.peer()
        await until(lambda: handler.connected)
        corked: list[int] = []
        sender = handler.connected[0]._sender
        set_option = sender._set_option
        assert set_option is not None
        monitored = set_option

        def told(level: int, option: int, value: int) -> None:
            corked.append(int(value))
            monitored(level, option, value)

        sender._set_option = told
        peer.send(b"7 1000000 3")
        await peer.answers(1)
        await until(lambda: not sender.has_waiting)
        assert corked == [1, 0]


def test_a_transport_that_encrypts_cannot_send_files() -> None:
    assert not issubclass(TlsTransport, FileTransport)


# The contract of `direct_send`


@pytest.mark.parametrize("size", [1, PIECE_BYTES, PIECE_BYTES + 1, 3 * PIECE_BYTES])
def test_what_a_direct_send_takes_has_left(size: int) -> None:
    pair, data = Pair().shake_hands(), CONTENT[:size]
    assert pair.server.direct_send(data) == size
    assert (pair.decrypted(), pair.protocol.told) == (data, [])


@pytest.mark.parametrize("room", [0, 1, 30_000, PIECE_BYTES, 2 * PIECE_BYTES, 3 * PIECE_BYTES])
def test_a_direct_send_that_is_not_taken_whole_goes_on_in_order(room: int) -> None:
    pair, data = Pair().shake_hands(), CONTENT[: 4 * PIECE_BYTES + 5]
    pair.below.room = room
    sent = pair.server.direct_send(data)
    assert sent < len(data)
    assert sent <= room
    assert pair.protocol.told == ["pause"]
    with pytest.raises(BlockingIOError):  # as a socket's
        pair.server.direct_send(b"too early")
    pair, found = Pair().shake_hands(), b""
    pair.below.room = room
    pair.server.go_on(data, pair.server.direct_send(data))
    for _ in range(20):
        assert len(pair.below.unsent) < PIECE_BYTES + 5 * RECORD_OVERHEAD_BYTES
        found += pair.decrypted()
        pair.below.take(PIECE_BYTES)
    assert found + pair.decrypted() == data
    assert pair.protocol.told == ["pause", "resume"]
    assert pair.server.direct_send(b"now") == 3
    assert pair.decrypted() == b"now"


def test_a_direct_send_that_was_refused_is_sent_later() -> None:
    pair = Pair().shake_hands()
    pair.below.room = 0
    pair.server.write(b"first")
    with pytest.raises(BlockingIOError) as refused:
        pair.server.direct_send(b"second")
    pair.server.go_on(b"second", refused.value)
    pair.below.take(1000)
    assert pair.decrypted() == b"firstsecond"


def test_what_is_left_leaves_before_the_end() -> None:
    pair, data = Pair().shake_hands(), CONTENT[: 2 * PIECE_BYTES]
    pair.below.room = 0
    pair.server.write(data)
    pair.server.close()
    pair.server.write(b"too late")
    found = b""
    for _ in range(10):
        pair.below.take(PIECE_BYTES)
        found += pair.decrypted()
    assert found == data  # and then the client has read `close_notify`, which is no error


def test_a_peer_that_asks_for_ever_more_records_and_reads_none_is_given_up() -> None:
    """OpenSSL answers each of its changes of keys."""
    pair = Pair().shake_hands()
    pair.below.room = 0
    written = 0
    while not pair.below.is_aborted:
        assert written < 8 * PIECE_BYTES
        pair.server._outgoing.write(bytes(1000))
        written += 1000
        pair.receive(b"\x17\x03\x03")  # the beginning of a record
    assert len(pair.below.unsent) < 5 * PIECE_BYTES


async def test_a_slow_readers_answers_wait_as_plaintext_and_are_counted(world: World) -> None:
    class Large(Answering):
        def on_frame(self, connection: Connection, frame: memoryview) -> None:
            connection.answer_at_once(bytes(32 << 20))

    async with Served(world, Large()) as served:
        peer = await served.peer()
        peer.transport.pause_reading()
        peer.send(b"all of it")
        await until(lambda: bool(served.handler.connected))
        (connection,) = served.handler.connected
        await until(lambda: connection._sender.is_blocked)
        transport = connection._transport
        assert isinstance(transport, TlsTransport)
        assert connection._sender.waiting_bytes == 32 << 20
        assert transport._below.get_write_buffer_size() < 2 * PIECE_BYTES
        peer.transport.resume_reading()
        await until(lambda: len(peer.received) == 32 << 20)
        assert connection._sender.waiting_bytes == 0
        assert served.metrics.sent_bytes == 32 << 20
