"""`kdist.Admin`: the admin operations as blocking methods."""

from __future__ import annotations

import functools
from collections.abc import Callable, Coroutine
from typing import Any, Concatenate, ParamSpec, Self, TypeVar

from kdist.client.admin import brokers, disks, groups, offsets, records, settings, topics
from kdist.client.admin.asynchronous import AsyncAdmin
from kdist.client.background import BackgroundLoop
from kdist.client.cluster import RETRY_MS, Cluster
from kdist.client.shared_settings import Servers
from kdist.errors import UserError

P = ParamSpec("P")
T = TypeVar("T")


def _blocking(
    operation: Callable[Concatenate[Cluster, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[Admin, P], T]:
    """Turn a coroutine function of a cluster into a blocking method of the client."""

    @functools.wraps(operation)
    def method(self: Admin, /, *given: P.args, **named: P.kwargs) -> T:
        return self.run(lambda cluster: operation(cluster, *given, **named))

    return method


class Admin:
    """Inspects and changes a cluster. Any thread may call it; each call blocks until it is done.

    It runs an event loop in a background thread, so `close` it, or use it in a `with` block. The
    arguments mean what they mean for `kdist.aio.Admin`.
    """

    def __init__(
        self,
        bootstrap_servers: Servers = (),
        *,
        zk_connect: str = "",
        client_id: str = "kdist-admin",
        request_timeout_ms: float = 30_000,
        retry_ms: float = RETRY_MS,
    ) -> None:
        self._core = AsyncAdmin(
            bootstrap_servers,
            zk_connect=zk_connect,
            client_id=client_id,
            request_timeout_ms=request_timeout_ms,
            retry_ms=retry_ms,
        )
        background = BackgroundLoop(f"{client_id}-loop")
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

    list_topics = _blocking(topics.list_topics)
    describe_topics = _blocking(topics.describe_topics)
    create_topics = _blocking(topics.create_topics)
    create_topic = _blocking(topics.create_topic)
    delete_topics = _blocking(topics.delete_topics)
    grow_topics = _blocking(topics.grow_topics)

    describe_topic_settings = _blocking(settings.describe_topic_settings)
    alter_topic_settings = _blocking(settings.alter_topic_settings)
    describe_broker_settings = _blocking(settings.describe_broker_settings)
    describe_shared_settings = _blocking(settings.describe_shared_settings)
    alter_broker_settings = _blocking(settings.alter_broker_settings)

    list_groups = _blocking(groups.list_groups)
    describe_groups = _blocking(groups.describe_groups)
    delete_groups = _blocking(groups.delete_groups)

    group_offsets = _blocking(offsets.group_offsets)
    alter_group_offsets = _blocking(offsets.alter_group_offsets)
    delete_group_offsets = _blocking(offsets.delete_group_offsets)
    plan_group_reset = _blocking(offsets.plan_group_reset)
    reset_group = _blocking(offsets.reset_group)
    list_offsets = _blocking(offsets.list_offsets)

    delete_records = _blocking(records.delete_records)
    describe_log_directories = _blocking(disks.describe_log_directories)
    describe_cluster = _blocking(brokers.describe_cluster)
    describe_versions = _blocking(brokers.describe_versions)
