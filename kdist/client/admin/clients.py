"""`kdist.Admin` and `kdist.aio.Admin`: the admin operations, blocking and as coroutines."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Self, TypeVar, Unpack

from kdist.client.admin import (
    acls,
    brokers,
    disks,
    elections,
    groups,
    offsets,
    quotas,
    reassignments,
    records,
    settings,
    topics,
    users,
)
from kdist.client.admin.arguments import checked
from kdist.client.admin.client_settings import AdminKeywords, read_settings
from kdist.client.background import BackgroundLoop
from kdist.client.cluster import Cluster
from kdist.client.discovery import find_brokers, given_brokers
from kdist.client.foreign import OtherNames, understanding
from kdist.client.metrics import ClientMeter, Measured
from kdist.client.operation import Blocking, Operation
from kdist.client.settings import Servers
from kdist.errors import UserError
from kdist.network.network import AsyncioNetwork, Network

T = TypeVar("T")


class Operations(Measured, OtherNames):
    """What an admin client can do: each operation is a function of a cluster, and a method here."""

    list_topics = Operation(topics.list_topics)
    describe_topics = Operation(topics.describe_topics)
    create_topics = Operation(topics.create_topics)
    create_topic = Operation(topics.create_topic)
    delete_topics = Operation(topics.delete_topics)
    create_partitions = Operation(topics.create_partitions)

    describe_topic_configs = Operation(settings.describe_topic_configs)
    incremental_alter_topic_configs = Operation(settings.incremental_alter_topic_configs)
    describe_broker_configs = Operation(settings.describe_broker_configs)
    describe_default_broker_configs = Operation(settings.describe_default_broker_configs)
    incremental_alter_broker_configs = Operation(settings.incremental_alter_broker_configs)

    describe_quotas = Operation(quotas.describe_quotas)
    alter_quotas = Operation(quotas.alter_quotas)
    describe_client_quotas = Operation(quotas.describe_client_quotas)
    alter_client_quotas = Operation(quotas.alter_client_quotas)

    describe_user_scram_credentials = Operation(users.describe_user_scram_credentials)
    upsert_user_scram_credentials = Operation(users.upsert_user_scram_credentials)
    delete_user_scram_credentials = Operation(users.delete_user_scram_credentials)
    describe_acls = Operation(acls.describe_acls)
    create_acls = Operation(acls.create_acls)
    delete_acls = Operation(acls.delete_acls)

    list_groups = Operation(groups.list_groups)
    describe_groups = Operation(groups.describe_groups)
    delete_groups = Operation(groups.delete_groups)

    list_group_offsets = Operation(offsets.list_group_offsets)
    alter_group_offsets = Operation(offsets.alter_group_offsets)
    delete_group_offsets = Operation(offsets.delete_group_offsets)
    plan_group_offsets_reset = Operation(offsets.plan_group_offsets_reset)
    reset_group_offsets = Operation(offsets.reset_group_offsets)
    list_offsets = Operation(offsets.list_offsets)

    elect_leaders = Operation(elections.elect_leaders)
    alter_partition_reassignments = Operation(reassignments.alter_partition_reassignments)
    list_partition_reassignments = Operation(reassignments.list_partition_reassignments)
    delete_records = Operation(records.delete_records)
    describe_log_dirs = Operation(disks.describe_log_dirs)
    describe_cluster = Operation(brokers.describe_cluster)
    describe_versions = Operation(brokers.describe_versions)


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


class Admin(Operations, Blocking):
    """Inspects and changes a cluster. Any thread may call it; each call blocks until it is done.

    It runs an event loop in a background thread, so `close` it, or use it in a `with` block.
    `settings` are those that `AdminSettings` lists; an unknown or invalid one raises `UserError`.
    """

    @understanding
    def __init__(
        self,
        bootstrap_servers: Servers = (),
        **settings: Unpack[AdminKeywords],
    ) -> None:
        self._core = AsyncAdmin(bootstrap_servers, **settings)
        self._meter = self._core._meter
        background = BackgroundLoop(f"{self._core.settings.client_id}-loop")
        try:
            background.run(self._core.start())
        except BaseException:
            background.stop()
            raise
        background.warn_if_left(self)
        self._background: BackgroundLoop | None = background

    def run(self, work: Callable[[Cluster], Coroutine[Any, Any, T]]) -> T:
        """Run a coroutine function of the cluster, and return its result. `UserError` if closed."""
        if self._background is None:
            raise UserError("the admin client is closed")

        async def on_the_loop() -> T:
            return await work(self._core.cluster)

        return self._background.run(on_the_loop())

    def _operate(
        self, operation: Callable[..., Coroutine[Any, Any, T]], *args: Any, **kw: Any
    ) -> T:
        """Run one of the operations; they are methods, too."""
        args, kw = checked(operation, args, kw)
        return self.run(lambda cluster: operation(cluster, *args, **kw))

    def close(self) -> None:
        """Close all connections and end the thread. A second call does nothing."""
        background, self._background = self._background, None
        if background is not None and not background.is_elsewhere:
            background.run(self._core.close())
            background.stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
