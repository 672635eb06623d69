"""Records that wait for a broker: a bounded queue that drops the oldest first (pure)."""

from __future__ import annotations

from collections import deque
from typing import NamedTuple


class Queued(NamedTuple):
    """A record as it is sent."""

    timestamp_ms: int
    value: bytes


class Queue:
    """Records in order, at most `limit`. Owner: the loop."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._records: deque[Queued] = deque()
        self.dropped = 0

    def __len__(self) -> int:
        return len(self._records)

    def add(self, record: Queued) -> None:
        self._records.append(record)
        self._keep_limit()

    def take(self, bytes_max: int) -> list[Queued]:
        """Remove the oldest records, as many as fit into `bytes_max`, but at least one."""
        taken: list[Queued] = []
        size = 0
        while self._records and (not taken or size + len(self._records[0].value) <= bytes_max):
            taken.append(self._records.popleft())
            size += len(taken[-1].value)
        return taken

    def put_back(self, taken: list[Queued]) -> None:
        """Return records that were taken and not sent, as the oldest."""
        self._records.extendleft(reversed(taken))
        self._keep_limit()

    def _keep_limit(self) -> None:
        while len(self._records) > self._limit:
            self._records.popleft()
            self.dropped += 1
