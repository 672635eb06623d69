"""TLS with OpenSSL's own client, which changes keys, renegotiates and resumes sessions."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from kdist.network.network import AsyncioNetwork, Server
from kdist.network.tls import ServerTls
from kdist.runtime.clock import SystemClock
from kdist.runtime.tick_loop import TickLoop
from tests.certificates import Authority, authority, server_context

WAIT_S = 30


class Echo(asyncio.BufferedProtocol):
    """Sends back what it receives."""

    made: list[Echo]

    def __init__(self) -> None:
        self.lost: list[Exception | None] = []
        self._space = bytearray(1 << 16)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        self.made.append(self)

    def get_buffer(self, sizehint: int) -> bytearray:
        return self._space

    def buffer_updated(self, nbytes: int) -> None:
        self.transport.write(bytes(self._space[:nbytes]))

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost.append(exc)


class Site:
    """A listener that echoes, and OpenSSL's clients of it."""

    def __init__(self, server: Server, made: list[Echo]) -> None:
        self.port, self.made = server.port, made
        self.context = server_context()

    @asynccontextmanager
    async def client(self, *options: str) -> AsyncIterator[asyncio.subprocess.Process]:
        """One that is connected."""
        process = await asyncio.create_subprocess_exec(
            *("openssl", "s_client", "-connect", f"127.0.0.1:{self.port}", *options),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        try:
            yield process
        finally:
            if process.returncode is None:
                process.kill()
            await process.wait()


@asynccontextmanager
async def site() -> AsyncIterator[Site]:
    network, made = AsyncioNetwork(asyncio.get_running_loop()), list[Echo]()
    echo = type("Echo", (Echo,), {"made": made})
    found: list[Site] = []
    tls = ServerTls(lambda: found[0].context, SystemClock().now_ms)
    server = await network.listen(echo, "127.0.0.1", 0, tls=tls)
    found.append(Site(server, made))
    try:
        yield found[0]
    finally:
        server.close()
        for each in made:
            each.transport.abort()
        await asyncio.sleep(0)


def run(coroutine: Coroutine[Any, Any, None]) -> None:
    with asyncio.Runner(loop_factory=TickLoop) as runner:
        runner.run(asyncio.wait_for(coroutine, WAIT_S))


async def say(process: asyncio.subprocess.Process, line: bytes) -> None:
    assert process.stdin is not None
    process.stdin.write(line + b"\n")
    await process.stdin.drain()


async def hear(process: asyncio.subprocess.Process, what: bytes) -> list[bytes]:
    """All lines up to the one that has `what`."""
    assert process.stdout is not None
    lines: list[bytes] = []
    while not lines or what not in lines[-1]:
        line = await process.stdout.readline()
        assert line, f"{what!r} never came: {lines}"
        lines.append(line)
    return lines


def test_keys_are_changed_by_the_peer_as_often_as_it_likes() -> None:
    """Java does so after 137 GB, and asks for new keys of ours."""

    async def scenario() -> None:
        async with site() as place, place.client("-tls1_3") as client:
            for n in range(20):
                await say(client, b"line %d" % n)
                await hear(client, b"line %d" % n)
                for command in (b"k", b"K"):
                    await say(client, command)
                    await hear(client, b"KEYUPDATE")
            await say(client, b"the end")
            await hear(client, b"the end")
            await say(client, b"Q")
            await client.wait()
            while not place.made[0].lost:
                await asyncio.sleep(0.001)
            assert place.made[0].lost == [None]

    run(scenario())


def test_a_peer_that_renegotiates_ends_only_its_own_connection() -> None:
    async def scenario() -> None:
        async with site() as place, place.client("-tls1_2") as good:
            await say(good, b"before")
            await hear(good, b"before")
            async with place.client("-tls1_2") as bad:
                await say(bad, b"hello")
                await hear(bad, b"hello")
                await say(bad, b"R")
                await bad.communicate()
            await say(good, b"after")
            await hear(good, b"after")

    run(scenario())


def test_a_session_is_resumed_with_its_certificate_and_only_in_its_context(
    tmp_path: Path,
) -> None:
    """TLS 1.2 only, whose sessions OpenSSL keeps: Python cannot forbid it."""
    alice, kept = tmp_path / "alice.pem", tmp_path / "session"
    issued = authority().issue("alice")
    alice.write_bytes(issued.pem)
    shown = ("-cert", str(alice), "-key", str(alice))

    async def connect(place: Site, *options: str) -> bool:
        async with place.client(*shown, *options) as client:
            await say(client, b"hello")
            lines = await hear(client, b"hello")
        return any(line.startswith(b"Reused, ") for line in lines)

    async def scenario() -> None:
        async with site() as place:
            place.context = server_context(trusts=authority().pem)
            assert not await connect(place, "-tls1_2", "-sess_out", str(kept))
            assert await connect(place, "-tls1_2", "-sess_in", str(kept))
            assert [each.transport.get_extra_info("peer_der") for each in place.made] == [
                issued.der,
                issued.der,
            ]
            place.context = server_context(trusts=Authority("successor").pem)
            async with place.client(*shown, "-tls1_2", "-sess_in", str(kept)) as client:
                output, _ = await client.communicate()
            assert b"unknown ca" in output
            place.context = server_context(trusts=authority().pem)
            assert not await connect(place, "-tls1_3", "-sess_out", str(kept))

    run(scenario())
