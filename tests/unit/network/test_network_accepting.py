"""Real sockets: their options, congestion control, and running out of descriptors."""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
import socket
from collections.abc import Iterator
from typing import Any

import pytest
from network_world import RawPeer, Served, World

from kdist.errors import UserError
from kdist.network import network, socket_transport
from kdist.network.client import Client, ClientSettings
from kdist.network.network import CLIENT_PATIENCE, FETCHER_PATIENCE, Patience
from kdist.network.socket_transport import UNPACED, congestion_control


@pytest.fixture
def world(socket_world: World) -> World:
    return socket_world


@contextlib.contextmanager
def no_descriptors_left() -> Iterator[None]:
    """Take all descriptors that this process may have."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    taken: list[int] = []
    resource.setrlimit(resource.RLIMIT_NOFILE, (400, hard))
    try:
        with contextlib.suppress(OSError):
            while True:
                taken.append(os.dup(2))
        yield
    finally:
        for descriptor in taken:
            os.close(descriptor)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


async def test_connections_wait_while_no_descriptor_is_left(
    world: World, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(network, "_ACCEPT_PAUSE_S", 0.02)
    async with Served(world) as served:
        early = await served.peer()
        late = [socket.socket() for _ in range(3)]
        with no_descriptors_left():
            for each in late:
                each.setblocking(False)
                await world.loop.sock_connect(each, (world.host, served.port))
            await asyncio.sleep(0.1)  # some pauses, after each of which it is tried again
            early.send(b"hello")
            assert await early.answers(1) == [b"hello"]
            assert served.metrics.accepted_connections == 1
        for each in late:
            _, peer = await world.loop.create_connection(RawPeer, sock=each)
            peer.send(b"at last")
            assert await peer.answers(1) == [b"at last"]
        assert [record.getMessage() for record in caplog.records] == [
            f"cannot accept connections on port {served.port}: Too many open files"
        ]


async def test_a_server_closed_during_its_pause_accepts_no_more(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(network, "_ACCEPT_PAUSE_S", 0.02)
    served = Served(world)
    await served.__aenter__()
    with socket.socket() as late:
        late.setblocking(False)
        with no_descriptors_left():
            await world.loop.sock_connect(late, (world.host, served.port))
            await asyncio.sleep(0.01)
        await served.listener.close(drain_ms=10)
        await asyncio.sleep(0.05)
        with pytest.raises(ConnectionResetError):
            await world.loop.sock_recv(late, 1)
    assert served.metrics.accepted_connections == 0


async def test_accepted_connections_send_without_delay_and_are_kept_alive(world: World) -> None:
    async with Served(world, socket_send_buffer_bytes=50_000) as served:
        peer = await served.peer()
        peer.send(b"hello")
        await peer.answers(1)
        (connection,) = served.handler.connected
        found = connection._transport.get_extra_info("socket")
        assert found.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) == 1
        assert found.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
        assert found.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF) == 100_000


async def test_listening_just_after_another_process_fails_with_a_sentence(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both may bind the port as long as neither listens, as when brokers start together."""
    create, others = world.loop.create_server, list[socket.socket]()

    async def create_beside(*given: Any, **named: Any) -> Any:
        server = await create(*given, **named)
        others.append(socket.socket())
        others[0].setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        others[0].bind(server.sockets[0].getsockname())
        others[0].listen()
        return server

    monkeypatch.setattr(world.loop, "create_server", create_beside)
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(UserError, match="another process does already"):
        await world.server.listen(RawPeer, world.host, 0)
    others[0].close()
    assert len(os.listdir("/proc/self/fd")) == before


@pytest.mark.parametrize(
    ("patience", "dead_s", "unacknowledged_ms"),
    [(CLIENT_PATIENCE, 40, 0), (FETCHER_PATIENCE, 3, 3_000)],
)
async def test_a_silent_peer_is_probed_by_the_kernel_for_as_long_as_there_is_patience(
    world: World, patience: Patience, dead_s: int, unacknowledged_ms: int
) -> None:
    """A client may wait for minutes and send nothing."""
    async with Served(world) as served:
        client = await Client.connect(
            *(world.client, world.host, served.port), ClientSettings("t", patience=patience)
        )
        found = client._transport.get_extra_info("socket")
        assert found.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
        silent_s, probe_s, probes, timeout_ms = (
            found.getsockopt(socket.IPPROTO_TCP, option)
            for option in (
                socket.TCP_KEEPIDLE,
                socket.TCP_KEEPINTVL,
                socket.TCP_KEEPCNT,
                socket.TCP_USER_TIMEOUT,
            )
        )
        assert silent_s + probe_s * probes == patience.dead_s == dead_s
        assert timeout_ms == unacknowledged_ms
        client.close()


@pytest.mark.parametrize(("own_host", "is_paced"), [("127.0.0.1", False), ("127.0.0.2", True)])
async def test_only_connections_between_different_addresses_are_paced(
    world: World, own_host: str, is_paced: bool
) -> None:
    """BBR paces by a timer for each packet: wasted work where there is no network in between."""
    async with Served(world) as served:
        with socket.socket() as client:
            default = congestion_control(client)
            client.bind((own_host, 0))
            client.setblocking(False)
            await world.loop.sock_connect(client, (world.host, served.port))
            _, peer = await world.loop.create_connection(RawPeer, sock=client)
            peer.send(b"hello")
            await peer.answers(1)
        (connection,) = served.handler.connected
        found = congestion_control(connection._transport.get_extra_info("socket"))
        assert found == (default if is_paced else UNPACED)


def test_sockets_listen_and_connect_unpaced(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel keeps pacing a socket that BBR controlled when it was connected."""
    found: list[bytes] = []

    class Watched(socket.socket):
        def listen(self, backlog: int = 0) -> None:
            found.append(congestion_control(self))
            super().listen(backlog)

        def connect(self, address: Any) -> None:
            found.append(congestion_control(self))
            super().connect(address)

    monkeypatch.setattr(socket, "socket", Watched)

    async def scenario() -> None:
        async with Served(world) as served:
            peer = await served.peer()
            peer.send(b"hello")
            assert await peer.answers(1)

    world.run(scenario())
    assert found == [UNPACED, UNPACED]


async def test_without_a_choice_of_congestion_control_connections_are_served(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The host's administrator may allow only the default one."""
    monkeypatch.setattr(socket_transport, "UNPACED", b"not-allowed")
    async with Served(world) as served:
        peer = await served.peer()
        peer.send(b"hello")
        assert await peer.answers(1)
