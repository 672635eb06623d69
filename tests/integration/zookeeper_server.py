"""A real ZooKeeper for tests, and a relay for each client that can be cut or held.

`ZooKeeperHost` runs ZooKeeper as `kdist standalone` does, on a free port, one for each module of
tests; only its own process is signalled. `Way` is a TCP relay in the test's event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
import socket
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from itertools import count
from pathlib import Path

from kazoo.client import KazooClient

from kdist.cli.standalone.zookeeper_server import (
    MAIN_CLASS,
    ServerSettings,
    ZooKeeperServer,
    configuration_text,
    find_jars,
    start_server,
)
from kdist.config.addresses import ConnectString
from kdist.runtime.disk import Disk
from kdist.runtime.programs import find_java
from kdist.zk.client import SessionState, ZooKeeper
from kdist.zk.kazoo_client import KazooZooKeeper
from kdist.zk.security import ZooKeeperSecurity
from tests.certificates import authority, client_context
from tests.unit.zk.zk_contract import in_state, password_of

TICK_MS = 50  # sessions may be as short as 100 ms, and no longer than 20 ticks
PATIENT_TICK_MS = 750  # for sessions of 1.5 to 15 s
PATIENT_SESSION_TIMEOUT_MS = 15_000  # where a session must not expire, however busy the host
SESSION_TIMEOUT_MS = 1_000  # kazoo's pings need some room
CONNECTION_TIMEOUT_MS = 15_000

WORKERS_MAX = 32
WORKER = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")) % WORKERS_MAX

_chroots = count(1)


def free_port() -> int:
    """A port that is free at this moment.

    It is below the ephemeral range, so that no connection takes it before a server is restarted,
    and no other process of the tests is given it.
    """
    while True:
        port = random.randrange(15_000 + WORKER, 30_000, WORKERS_MAX)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


class ZooKeeperHost:
    """One server and its directory; it can be restarted on its data."""

    def __init__(self, directory: Path, tick_ms: int = TICK_MS) -> None:
        self.settings = ServerSettings(str(directory), free_port(), tick_ms=tick_ms)
        self.server: ZooKeeperServer | None = None

    @property
    def running(self) -> ZooKeeperServer:
        assert self.server is not None, "start it first"
        return self.server

    async def start(self) -> None:
        """Start it and wait until it serves."""
        self.server = await start_server(self.settings, Disk(), os.environ)
        await self.server.wait_until_ready()

    def pause(self) -> None:
        """Stop the server by SIGSTOP, so that it answers nothing until `go_on`."""
        os.kill(self.running.pid, signal.SIGSTOP)
        # Wait for the stop: a thread on another core runs on until it is interrupted.
        os.waitid(os.P_PID, self.running.pid, os.WSTOPPED)

    def go_on(self) -> None:
        """Continue the server after `pause`."""
        os.kill(self.running.pid, signal.SIGCONT)


@contextmanager
def zookeeper_host(directory: Path, tick_ms: int = TICK_MS) -> Iterator[ZooKeeperHost]:
    """A running server for synchronous fixtures; it is stopped at the end."""
    host = ZooKeeperHost(directory, tick_ms)
    with running(host):
        yield host


class SecureHost(ZooKeeperHost):
    """One that serves TLS too, on `secure_port`, and asks clients for certificates."""

    def __init__(self, directory: Path, *, needs_certificate: bool = False) -> None:
        super().__init__(directory)
        self.secure_port = free_port()
        self._needs_certificate = needs_certificate

    async def start(self) -> None:
        files, directory = Disk(), self.settings.directory
        Path(directory, "server.pem").write_bytes(authority().issue(hosts=("localhost",)).pem)
        Path(directory, "ca.pem").write_bytes(authority().pem)
        rows = {
            "secureClientPort": self.secure_port,
            "secureClientPortAddress": self.settings.host,
            "serverCnxnFactory": "org.apache.zookeeper.server.NettyServerCnxnFactory",
            "ssl.keyStore.location": f"{directory}/server.pem",
            "ssl.trustStore.location": f"{directory}/ca.pem",
            "ssl.clientAuth": "need" if self._needs_certificate else "want",
            "ssl.hostnameVerification": "false",  # of clients
        }
        text = configuration_text(self.settings) + "".join(f"{k}={v}\n" for k, v in rows.items())
        Path(directory, "zoo.cfg").write_text(text)
        with open(self.settings.log_path, "wb") as log:
            process = subprocess.Popen(
                [
                    *(find_java(files, os.environ, "ZooKeeper"), "-Xmx256m"),
                    *("-XX:TieredStopAtLevel=1", "-Dzookeeper.forceSync=no"),
                    *("-cp", f"{find_jars(files)}/*", MAIN_CLASS, f"{directory}/zoo.cfg"),
                ],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self.server = ZooKeeperServer(self.settings, process, files)
        await self.server.wait_until_ready()


@contextmanager
def running(host: ZooKeeperHost) -> Iterator[None]:
    """For synchronous fixtures: the server is stopped at the end."""
    asyncio.run(host.start())
    try:
        yield
    finally:
        asyncio.run(host.running.stop())


class Way:
    """A relay to the server on its own port: open, cut (connections reset) or held (no traffic, or
    none from the server)."""

    def __init__(self, host: str, port: int) -> None:
        self._target = host, port
        self._open = asyncio.Event()
        self._open.set()
        self._is_cut = False
        self._answers_pass = asyncio.Event()
        self._answers_pass.set()
        self._writers: set[asyncio.StreamWriter] = set()
        self._carriers: set[asyncio.Task[None]] = set()

    async def start(self) -> str:
        """Start listening; the address for clients to connect to."""
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        _, port = self._server.sockets[0].getsockname()
        return f"localhost:{port}"

    def cut(self) -> None:
        """Reset all connections and refuse new ones."""
        self._is_cut = True
        for writer in self._writers:
            writer.transport.abort()

    def hold(self) -> None:
        """Keep connections but forward nothing, as if the process at one end were stopped."""
        self._open.clear()

    def hold_answers(self) -> None:
        """Forward what the client sends, and nothing of what the server sends."""
        self._answers_pass.clear()

    def mend(self) -> None:
        """Undo `cut`, `hold` and `hold_answers`."""
        self._is_cut = False
        self._open.set()
        self._answers_pass.set()

    def close(self) -> None:
        self._server.close()
        self.cut()
        for carrier in self._carriers:
            carrier.cancel()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._is_cut:
            writer.transport.abort()
            return
        try:
            there = await asyncio.open_connection(*self._target)
        except OSError:
            writer.transport.abort()
            return
        for source, sink, passes in (
            (reader, there[1], self._open),
            (there[0], writer, self._answers_pass),
        ):
            self._writers.add(sink)
            carrier = asyncio.ensure_future(self._carry(source, sink, passes))
            self._carriers.add(carrier)
            carrier.add_done_callback(self._carriers.discard)

    async def _carry(
        self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, passes: asyncio.Event
    ) -> None:
        try:
            while chunk := await source.read(65536):
                await self._open.wait()
                await passes.wait()
                sink.write(chunk)
                await sink.drain()
        except ConnectionError:
            pass  # the other direction ends with it
        finally:
            self._writers.discard(sink)
            sink.transport.abort()


class RealWorld:
    """The contract tests' world on a real server, below its own chroot."""

    def __init__(self, settings: ServerSettings, secure_port: int = 0) -> None:
        """With a port, clients connect to that one, by TLS."""
        self.settings = settings
        self._port = secure_port or settings.port
        self._context = client_context if secure_port else None
        self.chroot = f"/world{next(_chroots)}"
        self.ways: dict[ZooKeeper, Way] = {}

    async def client(
        self, chroot: str = "", user: str = "", session_timeout_ms: int = SESSION_TIMEOUT_MS
    ) -> KazooZooKeeper:
        way = Way(self.settings.host, self._port)
        connect = ConnectString.parse(await way.start() + self.chroot + chroot)
        client = KazooZooKeeper(
            connect,
            session_timeout_ms,
            CONNECTION_TIMEOUT_MS,
            ZooKeeperSecurity(
                self._context, password_of(user) if user else None, sets_acls=bool(user)
            ),
        )
        self.ways[client] = way
        await client.connect()
        return client

    async def suspend(self, client: ZooKeeper) -> None:
        self.ways[client].cut()
        await in_state(client, SessionState.SUSPENDED)

    async def resume(self, client: ZooKeeper) -> None:
        self.ways[client].mend()

    async def lose_answers(self, client: ZooKeeper) -> None:
        self.ways[client].hold_answers()

    async def expire(self, client: ZooKeeper) -> None:
        """End the client's session from another client, which takes it over by id and password."""
        assert isinstance(client, KazooZooKeeper)
        session = client._session
        assert session is not None
        await asyncio.to_thread(partial(_end, self.settings.address, session.client.client_id))


def _end(address: str, client_id: tuple[int, bytes]) -> None:
    usurper = KazooClient(address, client_id=client_id)
    usurper.start()
    usurper.stop()
    usurper.close()


@asynccontextmanager
async def real_world(settings: ServerSettings, secure_port: int = 0) -> AsyncIterator[RealWorld]:
    """A world; its clients and their relays are closed at the end."""
    world = RealWorld(settings, secure_port)
    yield world
    for way in world.ways.values():
        way.mend()
    await asyncio.gather(*(client.close() for client in world.ways))
    for way in world.ways.values():
        way.close()
