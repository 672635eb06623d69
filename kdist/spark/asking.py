"""Asking a cluster from Spark's driver, which has no event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from kdist.client.cluster import Cluster, NoBroker, cluster_at, parse_addresses
from kdist.client.consumer.settings import ConsumerSettings
from kdist.client.security import client_security
from kdist.errors import UserError
from kdist.network.client import ClientSettings

T = TypeVar("T")


def ask_once(
    bootstrap: str, settings: ConsumerSettings, work: Callable[[Cluster], Awaitable[T]]
) -> T:
    """Run `work` on an event loop and connections of its own, and return its result.

    It is as patient as a consumer with these settings. `UserError` if no broker answers.
    """
    client = ClientSettings(
        settings.client_id,
        request_timeout_ms=settings.request_timeout_ms,
        security=client_security(settings),
    )
    retry_ms = settings.default_api_timeout_ms

    async def run() -> T:
        with cluster_at(parse_addresses(bootstrap), client, retry_ms) as cluster:
            try:
                return await work(cluster)
            except NoBroker as error:
                raise UserError(str(error)) from None

    return asyncio.run(run())
