"""A listener: how many connections it admits, how long they may be idle, and how it closes."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from typing import NamedTuple

from kdist.config.addresses import parse_numbers_by_host, plain_address
from kdist.config.kinds import INT32_MAX
from kdist.config.network import NetworkSettings
from kdist.config.security import ListenerLimits
from kdist.metrics.broker import NetworkMetrics
from kdist.network.connection import Connection, Handler, Limits
from kdist.network.network import Network, Server, SocketOptions
from kdist.network.tls import ServerTls
from kdist.network.tls_failed import TlsFailed
from kdist.network.unproved import Unproved, UnprovedLimits
from kdist.runtime.tasks import Tasks

logger = logging.getLogger(__name__)

_HANDSHAKE_SENTENCE_S = 60.0  # at most one for each address
_SILENT_HOSTS_MAX = 1000
_IDLE_CHECKS = 10  # per `connections.max.idle.ms`, which is thus kept to a tenth


class CreationRate:
    """How many connections were accepted in this second of the loop."""

    def __init__(self) -> None:
        self._second = 0
        self._accepted = 0

    def wait_s(self, now_s: float, most: int) -> float:
        """How long to accept none, so that it is at most so many in a second."""
        return self._second + 1 - now_s if self._count(now_s) >= most else 0.0

    def note(self, now_s: float) -> None:
        """One is accepted."""
        self._accepted = self._count(now_s) + 1

    def _count(self, now_s: float) -> int:
        if int(now_s) != self._second:
            self._second, self._accepted = int(now_s), 0
        return self._accepted


class ConnectionQuotas:
    """The connections of a broker on all its listeners, in total and per host.

    `most`: how many the machine allows, whatever `max.connections` says.
    """

    def __init__(self, most: int = INT32_MAX) -> None:
        self.most = most
        self.rate = CreationRate()
        self.connections = 0
        self.admitted = 0  # in total, closed ones included
        self.hosts: Counter[str] = Counter()


class Bounds(NamedTuple):
    """What bounds a listener's connections: the quotas that it shares with the broker's others, and
    its own limits. `is_spared`: the broker's own limits of all connections do not apply here, since
    clients have other listeners. `unproved`: of those whose peers have to prove who they are."""

    quotas: ConnectionQuotas
    own: ListenerLimits = ListenerLimits()
    is_spared: bool = False
    unproved: UnprovedLimits | None = None


class Listener:
    """A broker's connections on one of its listeners.

    A new connection beyond `max.connections` or, for its address, `max.connections.per.ip` is
    closed at once; one beyond `max.connection.creation.rate` waits. `tasks` runs the reads of file
    ranges that are not in the page cache.
    """

    def __init__(
        self,
        network: Network,
        handler: Handler,
        settings: NetworkSettings,
        metrics: NetworkMetrics,
        tasks: Tasks,
        bounds: Bounds | None = None,
    ) -> None:
        self.network = network
        self.loop = network.loop
        self.tick = network.tick
        self.handler = handler
        self.configure(settings)
        self.metrics = metrics
        self.tasks = tasks
        self.limits = Limits(frame_bytes_max=settings.socket_request_max_bytes)
        self.connections: dict[Connection, int] = {}  # with the successive checks that were idle
        self.quotas, self._own, self._is_spared, unproved = bounds or Bounds(ConnectionQuotas())
        self._unproved = Unproved(self.loop, unproved, metrics) if unproved else None
        self._rate = CreationRate()
        self._silent_until_s: dict[str, float] = {}  # by the host whose handshakes failed
        self._servers: list[Server] = []
        self._is_closing = False
        self._is_empty = asyncio.Event()
        self._is_empty.set()
        self._idle_timer: asyncio.TimerHandle | None = None

    def configure(self, settings: NetworkSettings) -> None:
        """Apply these settings to all connections that are yet to come."""
        self.settings = settings
        self._overrides = parse_numbers_by_host(settings.max_connections_per_ip_overrides)

    async def listen(self, host: str, port: int, tls: ServerTls | None = None) -> int:
        """Accept connections there, and return the port. `UserError` if it cannot listen.

        None for `tls` is in clear.
        """
        settings = self.settings
        server = await self.network.listen(
            self._make,
            host,
            port,
            SocketOptions(
                backlog=settings.socket_listen_backlog_size,
                send_buffer_bytes=settings.socket_send_buffer_bytes,
                receive_buffer_bytes=settings.socket_receive_buffer_bytes,
            ),
            self._wait_s,
            tls,
        )
        self._servers.append(server)
        if self._idle_timer is None:
            self._await_idle()
        return server.port

    # The network's calls

    def _make(self) -> Connection:
        now_s = self.loop.time()
        self._rate.note(now_s)
        self.quotas.rate.note(now_s)
        return Connection(self)

    def _wait_s(self) -> float:
        """How long to accept no connection. They wait in the kernel's backlog."""
        now_s, most = self.loop.time(), self.settings.max_connection_creation_rate
        own_s = self._rate.wait_s(now_s, self._own.max_connection_creation_rate)
        return own_s if self._is_spared else max(own_s, self.quotas.rate.wait_s(now_s, most))

    # The connections' calls

    def admit(self, connection: Connection) -> int:
        quotas, host = self.quotas, connection.host
        most = min(self.settings.max_connections, quotas.most)
        if (
            self._is_closing
            or (quotas.connections >= most and not self._is_spared)
            or len(self.connections) >= self._own.max_connections
            or quotas.hosts[host] >= self._most_of(host)
        ):
            self.metrics.refused_connections += 1
            return 0
        quotas.connections += 1
        quotas.admitted += 1
        quotas.hosts[host] += 1
        self.connections[connection] = 0
        self._is_empty.clear()
        self.metrics.accepted_connections += 1
        self.metrics.open_connections += 1
        if self._unproved is not None:
            self._unproved.add(connection)
        return quotas.admitted

    def prove(self, connection: Connection) -> None:
        if self._unproved is not None:
            self._unproved.remove(connection)

    def _most_of(self, host: str) -> int:
        most = self.settings.max_connections_per_ip
        return self._overrides.get(plain_address(host), most) if self._overrides else most

    def forget(self, connection: Connection) -> None:
        self.prove(connection)
        del self.connections[connection]
        self.metrics.open_connections -= 1
        quotas, host = self.quotas, connection.host
        quotas.connections -= 1
        quotas.hosts[host] -= 1
        if not quotas.hosts[host]:
            del quotas.hosts[host]
        if not self.connections:
            self._is_empty.set()

    def handshake_failed(self, connection: Connection, error: TlsFailed) -> None:
        self.metrics.failed_handshakes += 1
        host, now_s = connection.host, self.loop.time()
        if now_s >= self._silent_until_s.get(host, 0.0):
            if len(self._silent_until_s) >= _SILENT_HOSTS_MAX:
                self._silent_until_s.clear()
            self._silent_until_s[host] = now_s + _HANDSHAKE_SENTENCE_S
            logger.warning("no TLS connection with %s: %s", connection.peer, error)

    # Idle connections

    def _await_idle(self) -> None:
        idle_ms = self.settings.connections_max_idle_ms
        if idle_ms >= 0:
            self._idle_timer = self.loop.call_later(
                max(1, idle_ms) / 1000 / _IDLE_CHECKS, self._close_idle
            )

    def _close_idle(self) -> None:
        """Close each connection that sent no whole request and took no answer for long enough."""
        for connection, checks in list(self.connections.items()):
            if connection.is_active or connection.is_waiting:
                connection.is_active = False
                self.connections[connection] = 0
            elif checks < _IDLE_CHECKS:
                self.connections[connection] = checks + 1
            else:
                logger.info("closing the connection of %s: it is idle", connection.peer)
                self.metrics.idle_connections += 1
                connection.abort()
        self._await_idle()

    # The end

    async def close(self, drain_ms: float) -> None:
        """Stop accepting, answer requests under way for up to `drain_ms`, close all connections."""
        self._is_closing = True
        if self._idle_timer is not None:
            self._idle_timer.cancel()
        for server in self._servers:
            server.close()
        for connection in list(self.connections):
            connection.finish()
        try:
            async with asyncio.timeout(drain_ms / 1000):
                await self._is_empty.wait()
        except TimeoutError:
            logger.warning(
                "closing %d connections that still wait for answers", len(self.connections)
            )
            for connection in list(self.connections):
                connection.abort()
            await self._is_empty.wait()
