"""What TLS adds to a connection: who gets one, who does not and why, and how it ends."""

from __future__ import annotations

import asyncio
import datetime
import gc
import random
import ssl
import weakref
from collections.abc import Iterator

import psutil
import pytest
from network_world import (
    RawPeer,
    Served,
    TlsNetwork,
    World,
    framed,
    simulated_tls_world,
    tls_world,
    until,
)
from tls_pair import Pair

from kdist.network.connection import Connection
from kdist.network.tls_failed import TlsFailed
from kdist.testing.simulated_transport import SimulatedTransport
from tests.certificates import Authority, authority, client_context, server_context

HOUR = datetime.timedelta(hours=1)


@pytest.fixture(params=[tls_world, simulated_tls_world])
def world(request: pytest.FixtureRequest) -> Iterator[World]:
    yield from request.param()


@pytest.fixture
def simulated() -> Iterator[World]:
    yield from simulated_tls_world()


def client_of(world: World) -> TlsNetwork:
    assert isinstance(world.client, TlsNetwork)
    return world.client


def server_of(world: World) -> TlsNetwork:
    assert isinstance(world.server, TlsNetwork)
    return world.server


async def clear_peer(served: Served) -> RawPeer:
    return await client_of(served.world).connect_in_clear(RawPeer, served.world.host, served.port)


class InMemory:
    """A client of TLS whose bytes the test carries."""

    def __init__(self, context: ssl.SSLContext, host: str) -> None:
        self.incoming, self.outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.tls = context.wrap_bio(self.incoming, self.outgoing, server_hostname=host)

    def shake_hands(self, received: bytes = b"") -> bytes:
        """What it says next."""
        self.incoming.write(received)
        try:
            self.tls.do_handshake()
        except ssl.SSLWantReadError:
            pass
        return self.outgoing.read()

    def encrypt(self, data: bytes) -> bytes:
        self.tls.write(data)
        return self.outgoing.read()


async def answered_handshake(peer: RawPeer, client: InMemory, hello: bytes) -> bytes:
    """Send the first flight; returns the last one, once all of the server's has arrived."""
    peer.transport.write(hello)
    last = b""
    while not last:
        await until(lambda: bool(peer.received))
        last = client.shake_hands(bytes(peer.received))
        peer.received.clear()
    return last


# Whom a handshake fails for


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
async def test_a_handshake_cut_at_any_byte_ends_its_connection(
    simulated: World, version: ssl.TLSVersion
) -> None:
    context = client_of(simulated).client_context
    context.maximum_version = version
    async with Served(simulated) as served:
        good = await served.peer()
        hello = InMemory(context, "server").shake_hands()
        for end in range(len(hello)):
            peer = await clear_peer(served)
            peer.transport.write(hello[:end])
            peer.end_sending()
            await peer.closed()
        assert served.metrics.failed_handshakes == len(hello) - 1  # nothing at all is a probe
        cut = 0
        while True:
            client, peer = InMemory(context, "server"), await clear_peer(served)
            last = await answered_handshake(peer, client, client.shake_hands())
            if cut == len(last):
                break
            peer.transport.write(last[:cut])
            peer.end_sending()
            await peer.closed()
            cut += 1
        assert served.metrics.failed_handshakes == len(hello) - 1 + len(last)
        assert len(served.handler.connected) == 1
        peer.transport.abort()
        good.send(b"still here")
        assert await good.answers(1) == [b"still here"]
        await until(lambda: served.metrics.open_connections == 1)


async def test_a_handshake_and_a_request_may_arrive_byte_by_byte(simulated: World) -> None:
    async with Served(simulated) as served:
        client, peer = InMemory(client_of(simulated).client_context, "server"), None
        peer = await clear_peer(served)
        for byte in client.shake_hands():
            peer.transport.write(bytes((byte,)))
        last = await answered_handshake(peer, client, b"")
        for byte in last + client.encrypt(framed(b"slowly")):
            peer.transport.write(bytes((byte,)))
        await until(lambda: served.handler.seen == [b"slowly"])
        peer.transport.abort()


@pytest.mark.parametrize(
    ("spoken", "why"),
    [
        (b"GET / HTTP/1.1\r\n\r\n", "it speaks HTTP without TLS"),
        (framed(b"\x00\x12\x00\x03\x00\x00\x00\x01\x00\x01k\x00\x00\x00"), "Kafka's protocol"),
        (b"SSH-2.0-OpenSSH_9.2\r\n", "it does not speak TLS"),
    ],
)
async def test_who_does_not_speak_tls_is_told_so_and_logged_once_a_minute(
    simulated: World,
    spoken: bytes,
    why: str,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("kdist.network.listener._HANDSHAKE_SENTENCE_S", 5.0)  # for a minute
    async with Served(simulated) as served:
        for _ in range(3):
            peer = await clear_peer(served)
            peer.transport.write(spoken)
            await peer.closed()
        assert [why in line for line in caplog.messages] == [True]
        await asyncio.sleep(5)
        peer = await clear_peer(served)
        peer.transport.write(spoken)
        await peer.closed()
        assert len(caplog.messages) == 2
        assert served.metrics.failed_handshakes == 4
        assert (served.handler.connected, served.handler.lost) == ([], [])


async def test_a_peer_that_does_not_end_its_handshake_is_closed_in_time(simulated: World) -> None:
    hello = InMemory(client_of(simulated).client_context, "server").shake_hands()

    async def drip(peer: RawPeer) -> None:
        for byte in hello:
            peer.transport.write(bytes((byte,)))
            await asyncio.sleep(1)

    async with Served(simulated) as served:
        began_s = simulated.loop.time()
        silent, dripping = await clear_peer(served), await clear_peer(served)
        dripping_task = asyncio.create_task(drip(dripping))
        await asyncio.sleep(9)
        assert served.metrics.open_connections == 2
        await asyncio.gather(silent.closed(), dripping.closed())
        assert simulated.loop.time() - began_s < 11
        dripping_task.cancel()


@pytest.mark.parametrize("bound", ["handshakes_max", "handshakes_per_host_max"])
async def test_of_too_many_handshakes_the_oldest_is_given_up(simulated: World, bound: str) -> None:
    server_of(simulated).bounds = {bound: 3}
    async with Served(simulated) as served:
        good = await served.peer()  # whose handshake is done
        waiting = [await clear_peer(served) for _ in range(4)]
        await waiting[0].closed()
        assert [each.is_closed for each in waiting] == [True, False, False, False]
        late = await served.peer()
        await waiting[1].closed()
        for peer in (good, late):
            peer.send(b"served")
            assert await peer.answers(1) == [b"served"]
        for peer in waiting[2:]:
            peer.transport.abort()
        await until(lambda: served.metrics.open_connections == 2)
        again = [await clear_peer(served) for _ in range(3)]
        await asyncio.sleep(1)
        assert [each.is_closed for each in again] == [False] * 3


async def refusal(world: World, host: str | None = None) -> str:
    """Why a client cannot connect."""
    async with Served(world) as served:
        with pytest.raises(TlsFailed) as refused:
            await world.client.connect(RawPeer, host or world.host, served.port)
        return str(refused.value)


async def test_a_client_refuses_what_an_unknown_ca_has_signed(world: World) -> None:
    client_of(world).client_context = client_context(trusts=Authority("another").pem)
    assert "its certificate is refused: unable to get local issuer" in await refusal(world)


async def test_a_client_refuses_another_hosts_certificate(world: World) -> None:
    other = authority().issue("other", hosts=("elsewhere", "10.0.0.1"))
    server_of(world).server_context = server_context(other)
    assert "its certificate is refused: " in (why := await refusal(world))
    assert "mismatch" in why or "not valid for" in why


async def test_a_client_refuses_a_certificate_that_has_expired(world: World) -> None:
    now = datetime.datetime.now(datetime.UTC)
    expired = authority().issue(not_after=now - HOUR)
    server_of(world).server_context = server_context(expired)
    assert await refusal(world) == "its certificate is refused: certificate has expired"


async def test_the_dot_at_the_end_of_a_host_name_is_not_part_of_it(simulated: World) -> None:
    network, at = client_of(simulated), {}
    async with Served(simulated) as served:
        connect = network._below.connect

        async def renamed(make: object, host: str, *rest: object) -> object:
            at["host"] = host
            return await connect(make, host, *rest)  # type: ignore[arg-type]

        simulated.client._below._network._listening.update(  # type: ignore[attr-defined]
            {
                address._replace(host="server."): listening
                for address, listening in (
                    network._below._network._listening.items()  # type: ignore[attr-defined]
                )
            }
        )
        peer = await network.connect(RawPeer, "server.", served.port)
        peer.send(b"hello")
        assert await peer.answers(1) == [b"hello"]


@pytest.mark.parametrize("end", ["close", "abort"])
async def test_a_server_that_does_not_speak_tls_gets_a_sentence(world: World, end: str) -> None:
    class Ending(RawPeer):
        def buffer_updated(self, nbytes: int) -> None:
            getattr(self.transport, end)()

    server = await server_of(world)._below.listen(Ending, world.host, 0)
    with pytest.raises(TlsFailed, match="does it speak TLS"):
        await world.client.connect(RawPeer, world.host, server.port)
    server.close()


async def test_a_client_that_waits_no_longer_leaves_no_connection(world: World) -> None:
    silent: list[RawPeer] = []

    def make() -> RawPeer:
        silent.append(RawPeer())
        return silent[-1]

    server = await server_of(world)._below.listen(make, world.host, 0)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):
            await world.client.connect(RawPeer, world.host, server.port)
    await silent[0].closed()
    server.close()


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
async def test_a_client_without_the_certificate_that_is_wanted_is_told_so(
    world: World, version: ssl.TLSVersion
) -> None:
    """In TLS 1.3 only after its own handshake is done."""
    server_of(world).server_context = server_context(trusts=authority().pem)
    client_of(world).client_context.maximum_version = version

    class Told(RawPeer):
        why: Exception | None = None

        def connection_lost(self, exc: Exception | None) -> None:
            super().connection_lost(exc)
            self.why = exc

    async with Served(world) as served:
        try:
            peer = await world.client.connect(Told, world.host, served.port)
            peer.send(b"hello")
            await peer.closed()
            why = peer.why
        except TlsFailed as error:
            why = error
        assert isinstance(why, TlsFailed)
        assert "certificate" in str(why)
        await until(lambda: served.metrics.failed_handshakes == 1)
        assert served.handler.connected == []


async def test_the_handler_sees_the_clients_certificate(world: World) -> None:
    alice = authority().issue("alice")
    server_of(world).server_context = server_context(trusts=authority().pem)
    client_of(world).client_context = client_context(alice)
    async with Served(world) as served:
        peer = await served.peer()
        await until(lambda: served.handler.connected)
        assert served.handler.connected[0].get_extra_info("peer_der") == alice.der
        assert peer.transport.get_extra_info("peer_der")


async def test_a_connection_counts_before_its_handshake_and_is_served_after_it(
    simulated: World,
) -> None:
    async with Served(simulated, max_connections=1) as served:
        first = await clear_peer(served)
        await until(lambda: served.metrics.open_connections == 1)
        assert served.handler.connected == []
        second = await clear_peer(served)
        await second.closed()
        assert served.metrics.refused_connections == 1
        first.transport.abort()
        await until(lambda: served.metrics.open_connections == 0)
        assert served.handler.lost == []


# How one ends


async def test_a_connection_ends_with_the_clients_certificate(simulated: World) -> None:
    now = datetime.datetime.now(datetime.UTC)
    server_of(simulated).server_context = server_context(trusts=authority().pem)
    client_of(simulated).client_context = client_context(
        authority().issue("alice", not_after=now + HOUR)
    )
    server_of(simulated).began_s += 3600 - 10
    async with Served(simulated) as served:
        peer = await served.peer()
        peer.send(b"park")
        await asyncio.sleep(8)
        assert not peer.is_closed
        await asyncio.sleep(4)
        assert peer.is_closed
        assert served.handler.lost == served.handler.connected


@pytest.mark.parametrize("says_so", [True, False])
async def test_a_peer_may_end_with_or_without_saying_so(
    world: World, says_so: bool, caplog: pytest.LogCaptureFixture
) -> None:
    async with Served(world) as served:
        peer = await served.peer()
        peer.send(b"hello")
        await peer.answers(1)
        if says_so:
            peer.transport.close()
        else:
            peer.end_sending()
        await peer.closed()
        await until(lambda: served.metrics.open_connections == 0)
        assert served.metrics.failed_connections == 0
        assert caplog.messages == []


async def test_a_client_with_no_version_in_common_gets_an_alert(simulated: World) -> None:
    server_of(simulated).server_context.minimum_version = ssl.TLSVersion.TLSv1_3
    client_of(simulated).client_context.maximum_version = ssl.TLSVersion.TLSv1_2
    assert await refusal(simulated) == "it has no version of TLS in common with this side"


async def test_a_record_that_was_changed_on_the_way_ends_the_connection(simulated: World) -> None:
    async with Served(simulated) as served:
        client, peer = (
            InMemory(client_of(simulated).client_context, "server"),
            await clear_peer(served),
        )
        last = await answered_handshake(peer, client, client.shake_hands())
        good, bad = client.encrypt(framed(b"good")), bytearray(client.encrypt(framed(b"bad")))
        bad[-1] ^= 1
        peer.transport.write(last + good + bytes(bad) + client.encrypt(framed(b"unseen")))
        await peer.closed()
        assert served.handler.seen == [b"good"]
        await until(lambda: served.metrics.open_connections == 0)


# Bytes


class Sipping(asyncio.BufferedProtocol):
    """Receives ten bytes at a time, and pauses after each `pause_after` receives."""

    def __init__(self, pause_after: int) -> None:
        self.received = bytearray()
        self.is_ended = False
        self._pause_after = self._left = pause_after
        self._space = bytearray(10)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def get_buffer(self, sizehint: int) -> bytearray:
        return self._space

    def buffer_updated(self, nbytes: int) -> None:
        self.received += self._space[:nbytes]
        self._left -= 1
        if not self._left:
            self._left = self._pause_after
            self.transport.pause_reading()
            asyncio.get_running_loop().call_later(0.001, self.transport.resume_reading)

    def eof_received(self) -> bool:
        self.is_ended = True
        return False


@pytest.mark.parametrize("pause_after", [1, 7])
async def test_nothing_stays_behind_when_a_protocol_reads_on(
    world: World, pause_after: int
) -> None:
    """Neither the rest of a record nor whole ones; the stream's end comes after them."""
    protocol = Sipping(pause_after)
    server = await world.server.listen(lambda: protocol, world.host, 0)
    peer = await world.client.connect(RawPeer, world.host, server.port)
    sent = random.Random(1).randbytes(3000)
    for start in range(0, len(sent), 100):
        peer.transport.write(sent[start : start + 100])
    peer.transport.close()
    await until(lambda: protocol.is_ended)
    assert bytes(protocol.received) == sent
    server.close()


async def test_no_byte_of_a_file_or_an_answer_leaves_in_clear(simulated: World) -> None:
    network = client_of(simulated)._below._network  # type: ignore[attr-defined]
    wire = bytearray()

    def watch(_transport: SimulatedTransport, piece: bytes) -> None:
        wire.extend(piece)

    network.watch = watch
    async with Served(simulated) as served:
        peer = await served.peer()
        peer.send(b"a secret in a request")
        assert await peer.answers(1) == [b"a secret in a request"]
    assert len(wire) > 1000
    assert b"a secret" not in wire


async def test_whatever_is_changed_on_the_way_others_are_served(simulated: World) -> None:
    """In a handshake, and in the records after it."""
    rng = random.Random(4)
    async with Served(simulated) as served:
        good = await served.peer()
        for n in range(1, 151):
            client = InMemory(client_of(simulated).client_context, "server")
            peer, hello = await clear_peer(served), bytearray(client.shake_hands())
            is_early = rng.random() < 0.5
            if is_early:
                change(rng, hello)
                peer.transport.write(hello)
                await asyncio.sleep(0.02)
            else:
                last = bytearray(await answered_handshake(peer, client, hello))
                last += client.encrypt(framed(b"first")) + client.encrypt(framed(b"second"))
                change(rng, last)
                peer.transport.write(last)
                await asyncio.sleep(0.02)
            good.send(b"%d" % n)
            assert await good.answers(n)
            peer.transport.abort()
        sent = {b"first", b"second", *(b"%d" % n for n in range(1, 151))}
        assert set(served.handler.seen) <= sent
        await until(lambda: served.metrics.open_connections == 1)
        assert simulated.server.tick.buffers.taken_bytes == 0


def change(rng: random.Random, data: bytearray) -> None:
    """Change, cut or repeat a part of it."""
    at = rng.randrange(len(data))
    match rng.randrange(3):
        case 0:
            data[at] ^= rng.randint(1, 255)
        case 1:
            del data[at : at + rng.randint(1, 100)]
        case _:
            data[at:at] = data[at : at + rng.randint(1, 100)]


def test_thousands_of_failed_handshakes_leave_no_memory_behind(without_collector: None) -> None:
    """Each holds 45 KiB, most of it where Python does not look."""
    context = server_context()

    def fail() -> None:
        pair = Pair(context)
        with pytest.raises(ssl.SSLWantReadError):
            pair.client.do_handshake()
        pair.receive(pair.outgoing.read())
        pair.receive(b"\x17\x03\x03\x00\x10" + bytes(16))
        assert pair.server.is_closing()
        pair.server.connection_lost(None)
        del pair.below.transport  # as the transport of a socket forgets its protocol

    process = psutil.Process()
    for _ in range(300):
        fail()
    before = process.memory_info().rss
    for _ in range(1000):
        fail()
    assert process.memory_info().rss - before < 8 << 20


@pytest.mark.parametrize("world", [tls_world], indirect=True)
def test_a_failed_handshake_is_freed_without_the_collector(
    world: World, without_collector: None
) -> None:
    made: list[weakref.ref[object]] = []

    class Kept(RawPeer):
        def __init__(self) -> None:
            super().__init__()
            made.append(weakref.ref(self))

    async def scenario() -> None:
        async with Served(world) as served:
            admit = served.listener.admit

            def admitting(connection: Connection) -> int:
                made.append(weakref.ref(connection))
                made.append(weakref.ref(connection._transport))
                return admit(connection)

            served.listener.admit = admitting  # type: ignore[method-assign]
            client_of(world).client_context = client_context(trusts=Authority("another").pem)
            for _ in range(3):
                with pytest.raises(TlsFailed):
                    await world.client.connect(Kept, world.host, served.port)
            await until(lambda: served.metrics.failed_handshakes == 3)
            clear = await clear_peer(served)
            clear.transport.write(b"garbage, garbage")
            await clear.closed()
            await asyncio.sleep(0.01)
        assert len(made) == 11
        assert [each() for each in made] == [None] * 11

    world.run(scenario())
    assert not gc.isenabled()
