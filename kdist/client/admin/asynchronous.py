"""`kdist.aio.Admin`: the admin operations as coroutines, on the application's event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Self, TypeVar, Unpack

from kdist.client.admin.arguments import checked
from kdist.client.admin.client_settings import AdminKeywords, read_settings
from kdist.client.admin.operations import Operations
from kdist.client.cluster import Cluster
from kdist.client.discovery import find_brokers, given_brokers
from kdist.client.foreign import understanding
from kdist.client.metrics import ClientMeter
from kdist.client.settings import Servers
from kdist.errors import UserError
from kdist.network.network import AsyncioNetwork, Network

T = TypeVar("T")


class AsyncAdmin(Operations):
    """Inspects and changes a cluster. Open it with `start`, or use it in an `async with` block.

    Settings and operations are those of `kdist.Admin`. `network` is for simulations.
    """

    @understanding
    def __init__(
        self,
        bootstrap_servers: Servers = (),
        *,
        network: Network | None = None,
        **settings: Unpack[AdminKeywords],
    ) -> None:
        found = read_settings({"bootstrap_servers": bootstrap_servers, **settings})
        given_brokers(found.bootstrap_servers, found.zk_connect)  # raises at once if wrong
        self.settings = found
        self._meter = ClientMeter(found.client_id)
        self._network = network
        self._cluster: Cluster | None = None

    async def start(self) -> Self:
        """Open the client; connections are made when needed. `UserError` if no broker is known."""
        network = self._network or AsyncioNetwork(asyncio.get_running_loop())
        settings = self.settings
        brokers = await find_brokers(
            settings.bootstrap_servers, settings.zk_connect, settings.security_protocol
        )
        connections = settings.connections._replace(metrics=self._meter.connections)
        self._cluster = Cluster(network, brokers, connections, settings.default_api_timeout_ms)
        return self

    @property
    def cluster(self) -> Cluster:
        """The cluster that the operations use. `UserError` if the client is not open."""
        if self._cluster is None:
            raise UserError("the admin client is not open: use `async with`, or call `start`")
        return self._cluster

    def _operate(
        self, operation: Callable[..., Coroutine[Any, Any, T]], *args: Any, **kw: Any
    ) -> Coroutine[Any, Any, T]:
        """Start one of the operations; they are methods, too."""
        args, kw = checked(operation, args, kw)
        return operation(self.cluster, *args, **kw)

    async def close(self) -> None:
        """Close all connections."""
        cluster, self._cluster = self._cluster, None
        if cluster is not None:
            cluster.close()

    async def __aenter__(self) -> Self:
        return await self.start()

    async def __aexit__(self, *_: object) -> None:
        await self.close()
