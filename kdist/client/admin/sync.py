"""`kdist.Admin`: the admin operations as blocking methods."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any, Self, TypeVar, Unpack

from kdist.client.admin.arguments import checked
from kdist.client.admin.asynchronous import AsyncAdmin
from kdist.client.admin.client_settings import AdminKeywords
from kdist.client.admin.operations import Operations
from kdist.client.background import BackgroundLoop
from kdist.client.cluster import Cluster
from kdist.client.foreign import understanding
from kdist.client.operation import Blocking
from kdist.client.settings import Servers
from kdist.errors import UserError

T = TypeVar("T")


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
