"""A group's coordinator: finds it, sends it requests, and finds it again after it has moved."""

from __future__ import annotations

from typing import Any

from kdist.client.cluster import Lane, NoBroker, raise_for
from kdist.client.consumer.context import ConsumerContext
from kdist.client.coordinators import find_coordinator
from kdist.errors import ApiError, Error

_MOVED = frozenset((Error.NOT_COORDINATOR, Error.COORDINATOR_NOT_AVAILABLE))


class Coordinator:
    """The coordinator of one group. Owner: the loop."""

    def __init__(self, context: ConsumerContext, group_id: str) -> None:
        self._context = context
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
            return await (lane or self._context.group).client(self._broker)
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
            return await find_coordinator(self._context.cluster, self._group_id)
        except NoBroker as error:  # retriable here, as the cluster may come back
            raise ApiError(Error.NETWORK_EXCEPTION, str(error)) from error
