"""`kdist.aio.Admin`: the admin operations as coroutines, on the application's event loop."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Coroutine
from typing import Any, Concatenate, ParamSpec, Self, TypeVar

from kdist.client.admin import brokers, disks, groups, offsets, records, settings, topics
from kdist.client.cluster import RETRY_MS, Cluster
from kdist.client.discovery import find_brokers, given_brokers
from kdist.client.shared_settings import Servers, check_client_id, server_list
from kdist.errors import UserError
from kdist.network.client import ClientSettings
from kdist.network.network import AsyncioNetwork, Network

P = ParamSpec("P")
T = TypeVar("T")


def _of_cluster(
    operation: Callable[Concatenate[Cluster, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[AsyncAdmin, P], Coroutine[Any, Any, T]]:
    """Turn a function of a cluster into a method of the client."""

    @functools.wraps(operation)
    def method(self: AsyncAdmin, /, *given: P.args, **named: P.kwargs) -> Coroutine[Any, Any, T]:
        return operation(self.cluster, *given, **named)

    return method


class AsyncAdmin:
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

    async def close(self) -> None:
        """Close all connections."""
        cluster, self._cluster = self._cluster, None
        if cluster is not None:
            cluster.close()

    async def __aenter__(self) -> Self:
        return await self.start()

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    list_topics = _of_cluster(topics.list_topics)
    describe_topics = _of_cluster(topics.describe_topics)
    create_topics = _of_cluster(topics.create_topics)
    create_topic = _of_cluster(topics.create_topic)
    delete_topics = _of_cluster(topics.delete_topics)
    grow_topics = _of_cluster(topics.grow_topics)

    describe_topic_settings = _of_cluster(settings.describe_topic_settings)
    alter_topic_settings = _of_cluster(settings.alter_topic_settings)
    describe_broker_settings = _of_cluster(settings.describe_broker_settings)
    describe_shared_settings = _of_cluster(settings.describe_shared_settings)
    alter_broker_settings = _of_cluster(settings.alter_broker_settings)

    list_groups = _of_cluster(groups.list_groups)
    describe_groups = _of_cluster(groups.describe_groups)
    delete_groups = _of_cluster(groups.delete_groups)

    group_offsets = _of_cluster(offsets.group_offsets)
    alter_group_offsets = _of_cluster(offsets.alter_group_offsets)
    delete_group_offsets = _of_cluster(offsets.delete_group_offsets)
    plan_group_reset = _of_cluster(offsets.plan_group_reset)
    reset_group = _of_cluster(offsets.reset_group)
    list_offsets = _of_cluster(offsets.list_offsets)

    delete_records = _of_cluster(records.delete_records)
    describe_log_directories = _of_cluster(disks.describe_log_directories)
    describe_cluster = _of_cluster(brokers.describe_cluster)
    describe_versions = _of_cluster(brokers.describe_versions)
