"""Asking a cluster from Spark's driver, which has no event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from kdist.client.cluster import Cluster, NoBroker, parse_addresses
from kdist.errors import UserError
from kdist.network.client import ClientSettings
from kdist.network.network import AsyncioNetwork

T = TypeVar("T")

_RETRY_MS = 10_000


def ask_once(bootstrap: str, client_id: str, work: Callable[[Cluster], Awaitable[T]]) -> T:
    """Run `work` on an event loop and connections of its own, and return its result.

    `UserError` if no broker answers.
    """

    async def run() -> T:
        network = AsyncioNetwork(asyncio.get_running_loop())
        addresses = parse_addresses(bootstrap)
        cluster = Cluster(network, addresses, ClientSettings(client_id), _RETRY_MS)
        try:
            return await work(cluster)
        except NoBroker as error:
            raise UserError(str(error)) from None
        finally:
            cluster.close()

    return asyncio.run(run())
