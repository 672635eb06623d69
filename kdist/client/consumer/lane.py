"""Connections to the brokers of a cluster for one purpose, so that no other waits behind it.

A broker answers a connection's requests in order, and holds some back for long: a JoinGroup until
all members have joined, a fetch until there is something. Each of these has a lane.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict

from kdist.client.cluster import Address, Cluster
from kdist.errors import ApiError, Error
from kdist.network.client import Client, ClientSettings
from kdist.network.world import Network


class Lane:
    """Connections made when they are first needed, to the brokers that `cluster` knows."""

    def __init__(self, network: Network, cluster: Cluster, settings: ClientSettings) -> None:
        self._network = network
        self._cluster = cluster
        self._settings = settings
        self._clients: dict[Address, Client] = {}
        self._locks: defaultdict[Address, asyncio.Lock] = defaultdict(asyncio.Lock)

    async def client(self, broker_id: int) -> Client:
        """A connection to a broker; `ApiError` NETWORK_EXCEPTION."""
        address = self._cluster.brokers.get(broker_id)
        if address is None:
            raise ApiError(Error.NETWORK_EXCEPTION, f"there is no broker {broker_id}")
        async with self._locks[address]:
            client = self._clients.get(address)
            if client is None or client.is_closed:
                client = await Client.connect(self._network, *address, self._settings)
                self._clients[address] = client
                await client.negotiate()
            return client

    def close(self) -> None:
        """Close all; who waits hears NETWORK_EXCEPTION."""
        for client in self._clients.values():
            client.close()
