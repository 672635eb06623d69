"""The broker that coordinates a group: found, asked, and found anew when it is another."""

from __future__ import annotations

from typing import Any

from kdist.client.cluster import Lane, NoBroker, raise_for
from kdist.client.consumer.world import World
from kdist.errors import ApiError, Error
from kdist.protocol import find_coordinator
from kdist.protocol.find_coordinator import FindCoordinatorRequest

_VERSION_OF_MANY = 4  # FindCoordinator: from then on several keys at once
_MOVED = frozenset(
    error.code
    for error in (
        Error.NOT_COORDINATOR,
        Error.COORDINATOR_NOT_AVAILABLE,
    )
)


class Coordinator:
    """Of one group. Owner: the loop."""

    def __init__(self, world: World, group_id: str) -> None:
        self._world = world
        self._group_id = group_id
        self._broker: int | None = None

    async def ask(
        self, request: Any, lane: Lane | None = None, timeout_ms: float | None = None
    ) -> Any:
        """The coordinator's answer; `ApiError` if there is none, or it cannot be reached.

        Whoever asks has to tell `check` of the error that the answer carries.
        """
        client = await self.client(lane)
        try:
            return await client.send(request, timeout_ms=timeout_ms)
        except ApiError:
            self._broker = None
            raise

    async def client(self, lane: Lane | None = None) -> Any:
        """A connection to the coordinator."""
        if self._broker is None:
            self._broker = await self._find()
        try:
            return await (lane or self._world.group).client(self._broker)
        except ApiError:
            self._broker = None
            raise

    def check(self, code: int, about: str = "") -> None:
        """Raise an answer's error; the coordinator is found anew if it is another."""
        if code in _MOVED:
            self._broker = None
        raise_for(code, about or f"group {self._group_id}")

    async def _find(self) -> int:
        cluster = self._world.cluster
        try:
            await cluster.metadata()
        except NoBroker as error:  # a cluster that was there, and may be again
            raise ApiError(Error.NETWORK_EXCEPTION, str(error)) from error
        broker = min(cluster.brokers)
        for each in sorted(cluster.brokers):
            try:
                await cluster.client(each)
            except ApiError:
                continue  # it is down; the next one may answer, and if none does, the first tells
            broker = each
            break
        client = await cluster.client(broker)
        answer = await client.send(self._request(client.version_of(find_coordinator.API)))
        found = answer.coordinators[0] if answer.coordinators else answer
        raise_for(found.error_code, f"group {self._group_id}", found.error_message)
        if found.node_id not in cluster.brokers:
            raise ApiError(Error.COORDINATOR_NOT_AVAILABLE)
        node_id: int = found.node_id
        return node_id

    def _request(self, version: int) -> FindCoordinatorRequest:
        if version >= _VERSION_OF_MANY:
            return FindCoordinatorRequest(coordinator_keys=[self._group_id])
        return FindCoordinatorRequest(key=self._group_id)
