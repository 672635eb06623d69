"""Asking a cluster from Spark's driver, which has no event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from kdist.client.cluster import Cluster, NoBroker, cluster_at, parse_addresses
from kdist.errors import UserError

T = TypeVar("T")

_RETRY_MS = 10_000


def ask_once(bootstrap: str, client_id: str, work: Callable[[Cluster], Awaitable[T]]) -> T:
    """Run `work` on an event loop and connections of its own, and return its result.

    `UserError` if no broker answers.
    """

    async def run() -> T:
        with cluster_at(parse_addresses(bootstrap), client_id, _RETRY_MS) as cluster:
            try:
                return await work(cluster)
            except NoBroker as error:
                raise UserError(str(error)) from None

    return asyncio.run(run())
