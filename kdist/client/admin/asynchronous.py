"""`kdist.aio.Admin`: the admin operations as coroutines, on the application's event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Self, TypeVar

from kdist.client.admin.operations import Operations
from kdist.client.cluster import RETRY_MS, Cluster
from kdist.client.discovery import find_brokers, given_brokers
from kdist.client.shared_settings import Servers, check_client_id, server_list
from kdist.errors import UserError
from kdist.network.client import ClientSettings
from kdist.network.network import AsyncioNetwork, Network

T = TypeVar("T")


class AsyncAdmin(Operations):
    """Inspects and changes a cluster. Open it with `start`, or use it in an `async with` block.

    The brokers are found through `bootstrap_servers`, addresses as `host:port`, or through
    `zk_connect`, the ZooKeeper ensemble in which they are registered. Retriable errors are retried
    for up to `retry_ms`; a connection on which a request is not answered within
    `request_timeout_ms` is given up. `network` is for simulations.
    """

    def __init__(
        self,
        bootstrap_servers: Servers = (),
        *,
        zk_connect: str = "",
        client_id: str = "kdist-admin",
        request_timeout_ms: float = 30_000,
        retry_ms: float = RETRY_MS,
        network: Network | None = None,
    ) -> None:
        check_client_id(client_id)
        self._servers = server_list("bootstrap_servers", bootstrap_servers)
        self._zk_connect = zk_connect
        given_brokers(self._servers, zk_connect)  # raises at once if they are wrong
        self._settings = ClientSettings(client_id, request_timeout_ms=request_timeout_ms)
        self._retry_ms = retry_ms
        self._network = network
        self._cluster: Cluster | None = None

    async def start(self) -> Self:
        """Open the client; connections are made when needed. `UserError` if no broker is known."""
        network = self._network or AsyncioNetwork(asyncio.get_running_loop())
        brokers = await find_brokers(self._servers, self._zk_connect)
        self._cluster = Cluster(network, brokers, self._settings, self._retry_ms)
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
