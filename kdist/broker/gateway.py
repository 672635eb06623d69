"""How the broker is reached: its listeners, the addresses it advertises, and its HTTP server.

Each listener has a name; clients are given the addresses of the listener that they connected to.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from kdist.broker.context import BrokerContext
from kdist.broker.http import HttpPages, Pages
from kdist.config.addresses import Listener as Address
from kdist.config.addresses import parse_host_port, parse_listener
from kdist.config.network import NetworkSettings
from kdist.errors import UserError
from kdist.metrics.broker import NetworkMetrics
from kdist.model import Principal
from kdist.network.connection import Handler
from kdist.network.listener import Bounds, ConnectionQuotas, Listener
from kdist.network.network import Server
from kdist.network.tls import ServerTls
from kdist.network.unproved import UnprovedLimits
from kdist.zk.registration import Endpoint

_EVERY_ADDRESS = ("", "0.0.0.0", "::")


class Gateway:
    """Owner: the broker."""

    def __init__(self, context: BrokerContext, metrics: NetworkMetrics) -> None:
        """A listener on all addresses is advertised with `context.host`."""
        self._context = context
        self._config = context.config.broker
        self._settings = context.config.network
        self._quotas = ConnectionQuotas(context.connections_max)
        limits = context.config.authentication
        self._limits = UnprovedLimits(
            limits.unauthenticated_connections_max,
            limits.unauthenticated_connections_max_per_ip,
            limits.authentication_timeout_ms,
        )
        self._network = context.network
        self._process = context.process
        self._metrics = metrics
        self._host = context.host
        self._listeners: list[Listener] = []
        self._http: HttpPages | None = None
        self._http_server: Server | None = None
        self.endpoints: tuple[Endpoint, ...] = ()

    async def open(
        self, handler_of: Callable[[str], Handler], tls_of: Callable[[str], ServerTls | None]
    ) -> None:
        """Open all listeners and set `endpoints`. `UserError` if an address is in use.

        `handler_of` makes the handler for a listener, given its name; `tls_of` says how its
        connections begin TLS.
        """
        broker, config = self._config, self._context.config
        advertised = {each.name: each for each in map(parse_listener, broker.advertised_listeners)}
        has_several = len(broker.listeners) > 1
        for address in map(parse_listener, broker.listeners):
            listener = Listener(
                self._network,
                handler_of(address.name),
                self._settings,
                self._metrics,
                self._process,
                Bounds(
                    self._quotas,
                    config.listener(address.name).limits,
                    is_spared=has_several and address.name == config.inter_broker_listener,
                    unproved=self._unproved(address.name),
                ),
            )
            self._listeners.append(listener)
            tls = tls_of(address.name)
            has_tls = config.listener(address.name).tls is not None
            assert has_tls == (tls is not None), "no listener is opened in clear instead"
            port = await listener.listen(address.host, address.port, tls)
            host = self._host if address.host in _EVERY_ADDRESS else address.host
            reached = advertised.get(address.name, Address(address.name, host, port))
            self.endpoints += (Endpoint(reached, config.listener(address.name).protocol),)

    def _unproved(self, listener: str) -> UnprovedLimits | None:
        """None for a listener whose peers prove nothing."""
        security, limits = self._context.config.listener(listener), self._limits
        is_any = security.sasl is None and security.tls is None
        return None if is_any else limits

    def configure(self, settings: NetworkSettings) -> None:
        """Apply new values of dynamic settings, from the next connection on."""
        self._settings = settings
        for listener in self._listeners:
            listener.configure(settings)

    def disconnect(self, principal: Principal) -> int:
        """End all connections of a principal; how many there were."""
        ended = [
            connection
            for listener in self._listeners
            for connection in listener.connections
            if connection.subject.principal == principal
        ]
        for connection in ended:
            connection.abort()
        return len(ended)

    async def open_http(self, pages: Pages) -> int | None:
        """Serve pages on `http.address` and return the port; None if there is no such address.

        `UserError` if `http.token.file` cannot be read.
        """
        address = parse_host_port(self._config.http_address or "")
        if address is None:
            return None
        self._http = HttpPages(self._network.loop, pages, self._read_token())
        self._http_server = await self._network.listen(self._http.make, *address)
        return self._http_server.port

    def _read_token(self) -> bytes | None:
        path = self._config.http_token_file
        if path is None:
            return None
        try:
            token = self._context.files.read(path).strip()
        except OSError as error:
            raise UserError(f"http.token.file {path}: {error.strerror or error}") from error
        if not token:
            raise UserError(f"http.token.file {path} is empty: it must have a token")
        return token

    async def close(self, drain_ms: float) -> None:
        """Stop accepting connections, give requests in flight `drain_ms` to be answered, close."""
        await asyncio.gather(*(listener.close(drain_ms) for listener in self._listeners))
        if self._http_server is not None and self._http is not None:
            self._http_server.close()
            self._http.close()
