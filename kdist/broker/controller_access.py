"""How a broker asks the controller to create a topic: by a call in-process, or by a request."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from kdist.broker.metadata_cache import MetadataCache
from kdist.controller.controller import Controller
from kdist.errors import ApiError, Error
from kdist.network.client import Client
from kdist.protocol.create_topics import API, CreateTopicsRequest, NewTopic

ConnectClient = Callable[[str, int], Awaitable[Client]]

_ROUND_TRIP_MS = 5_000  # in addition to the controller's own timeout


class ControllerAccess:
    """Owner: the broker."""

    def __init__(
        self, controller: Controller, cache: MetadataCache, listener: str, connect: ConnectClient
    ) -> None:
        """`listener`: the inter-broker listener."""
        self._controller = controller
        self._cache = cache
        self._listener = listener
        self._connect = connect

    async def create(self, new: NewTopic, timeout_ms: int) -> Error:
        """Create a topic. ApiError if there is no controller, or it does not answer."""
        if self._controller.is_active:
            outcomes = await self._controller.create_topics([new], timeout_ms)
            return outcomes[0].error
        address = self._cache.broker(self._cache.controller_id, self._listener)
        if address is None:
            raise ApiError(Error.NOT_CONTROLLER, "no controller is known")
        client = await self._connect(address.host, address.port)
        try:
            request = CreateTopicsRequest(topics=[new], timeout_ms=timeout_ms)
            answer = await client.send(request, API.newest, timeout_ms + _ROUND_TRIP_MS)
        finally:
            client.close()
        return Error.of(answer.topics[0].error_code)
