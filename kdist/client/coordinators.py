"""A group's coordinator: finds it, sends it requests, and finds it again after it has moved."""

from __future__ import annotations

from typing import Any

from kdist.client.cluster import Cluster, Lane, NoBroker, raise_for
from kdist.errors import ApiError, Error
from kdist.protocol import find_coordinator as api
from kdist.protocol.find_coordinator import FindCoordinatorRequest

_VERSION_OF_MANY = 4  # from then on several keys at once (KIP-699)
_MOVED = frozenset((Error.NOT_COORDINATOR, Error.COORDINATOR_NOT_AVAILABLE))


async def find_coordinator(cluster: Cluster, group: str) -> int:
    """The coordinator's id, without retries. `ApiError`, or `NoBroker` if no broker answers."""
    await cluster.metadata()
    client = await cluster.any_client()
    if client.version_of(api.API) >= _VERSION_OF_MANY:
        request = FindCoordinatorRequest(coordinator_keys=[group])
    else:
        request = FindCoordinatorRequest(key=group)
    answer = await client.send(request)
    found = answer.coordinators[0] if answer.coordinators else answer
    raise_for(found.error_code, f"group {group}", found.error_message)
    if found.node_id not in cluster.brokers:
        raise ApiError(Error.COORDINATOR_NOT_AVAILABLE)
    node_id: int = found.node_id
    return node_id


class Coordinator:
    """The coordinator of one group. Owner: the loop."""

    def __init__(self, cluster: Cluster, lane: Lane, group_id: str) -> None:
        self._cluster = cluster
        self._lane = lane
        self._group_id = group_id
        self._broker: int | None = None

    async def ask(
        self, request: Any, lane: Lane | None = None, timeout_ms: float | None = None
    ) -> Any:
        """The coordinator's answer; `ApiError` if it cannot be found or reached.

        The caller must pass the error code in the answer to `check`.
        """
        client = await self.client(lane)
        try:
            return await client.send(request, timeout_ms=timeout_ms)
        except ApiError:
            self._broker = None
            raise

    async def client(self, lane: Lane | None = None) -> Any:
        if self._broker is None:
            self._broker = await self._find()
        try:
            return await (lane or self._lane).client(self._broker)
        except ApiError:
            self._broker = None
            raise

    def check(self, code: int, about: str = "") -> None:
        """Raise an answer's error; if it says that the coordinator moved, forget which it was."""
        if code in _MOVED:
            self._broker = None
        raise_for(code, about or f"group {self._group_id}")

    async def _find(self) -> int:
        try:
            return await find_coordinator(self._cluster, self._group_id)
        except NoBroker as error:  # retriable here, as the cluster may come back
            raise ApiError(Error.NETWORK_EXCEPTION, str(error)) from error
