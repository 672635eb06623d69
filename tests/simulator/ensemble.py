"""ZooKeeper in memory, observed: the omniscient's view of what is written, and by whom."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from kdist.testing.memory_connection import Connection
from kdist.testing.memory_zookeeper import MemoryEnsemble
from kdist.zk.client import Operation, WatchEvent
from kdist.zk.session import Answer, Multi, Request, Sync, Write

Written = Callable[[int, Sequence[Operation]], None]
"""Called with the session that has written, and what; after the tree has changed."""


class WatchedEnsemble(MemoryEnsemble):
    """Owner: whoever plays the servers. Its listeners run at the leader, in the order of writes."""

    def __init__(self, *args: Any, **kw: Any) -> None:
        super().__init__(*args, **kw)
        self.on_written: list[Written] = []
        self.on_changed: list[Callable[[Sequence[WatchEvent]], None]] = []
        self.requests = 0
        self.answers_lost = 0
        self.is_to_be_lost: Callable[[Request], bool] = lambda _request: False
        """Whether a request is to be lost, before it is carried out or after."""

    def serve(self, connection: Connection, request: Request, answer: Answer) -> None:
        self.requests += 1
        if self.is_to_be_lost(request):
            connection.reset(self.delay_ms())
        else:
            super().serve(connection, request, answer)

    def _carry_out(self, request: Write, session_id: int) -> object:
        outcome = super()._carry_out(request, session_id)
        if not isinstance(outcome, Exception) and not isinstance(request, Sync):
            operations = request.operations if isinstance(request, Multi) else (request,)
            for hear in self.on_written:
                hear(session_id, operations)
        return outcome

    def _publish(self, events: Sequence[WatchEvent]) -> None:
        super()._publish(events)
        if events:
            for hear in self.on_changed:
                hear(events)

    def _answer_write(
        self, connection: Connection, request: Request, answer: Answer, outcome: object
    ) -> None:
        was_cut = connection.to_client.is_cut
        if self.is_to_be_lost(request):
            connection.reset(self.delay_ms())
        super()._answer_write(connection, request, answer, outcome)
        self.answers_lost += connection.to_client.is_cut and not was_cut
