"""All metrics of one broker, and their exposition on `/metrics`."""

from __future__ import annotations

import asyncio
from collections import deque

from kdist.metrics.broker import BrokerMetrics, BuildMetrics, RequestMetrics
from kdist.metrics.cleaner import CleanerMetrics
from kdist.metrics.controller import ControllerMetrics
from kdist.metrics.declare import Family
from kdist.metrics.exposition import Exposition
from kdist.metrics.groups import GroupLagMetrics, GroupMetrics
from kdist.metrics.network import NetworkMetrics
from kdist.metrics.quotas import QuotaMetrics
from kdist.metrics.replication import ReplicationMetrics
from kdist.metrics.storage import RetentionMetrics, StorageMetrics
from kdist.runtime.tick_loop import turn_of
from kdist.storage.directory import LogDirectory

_LAG_CHECK_S = 0.5
_TURNS_S = 120  # longer than any scraper's interval: however many there are, each sees every turn


class Measures:
    """Owner: the broker."""

    def __init__(self) -> None:
        self.broker = BrokerMetrics()
        self.requests = Family(RequestMetrics, "api")
        self.quotas = Family(QuotaMetrics, "client", "quota")
        self.build = Family(BuildMetrics, "version", "release", "settings", "unit")
        self.network = NetworkMetrics()
        self.replication = ReplicationMetrics()
        self.groups = GroupMetrics()
        self.lags = Family(GroupLagMetrics, "group", "topic")
        self.retention = Family(RetentionMetrics, "topic")
        self.controller = ControllerMetrics()
        self.storage = StorageMetrics()
        self.cleaner = CleanerMetrics()
        self.exposition = Exposition()
        self.exposition.add_family(self.requests)
        self.exposition.add_family(self.quotas)
        self.exposition.add_family(self.build)
        self.exposition.add_family(self.lags)
        self.exposition.add_family(self.retention)
        for group in (
            self.broker,
            self.network,
            self.replication,
            self.groups,
            self.controller,
            self.storage,
            self.cleaner,
        ):
            self.exposition.add(group)

    def watch(self, directory: LogDirectory) -> None:
        """Add the metrics that are computed from the log directory at each scrape."""
        storage, logs = self.storage, directory.logs
        settings, files = directory.context.settings, directory.files
        storage.partitions = lambda: len(logs)
        storage.segments = lambda: sum(len(log.segments) for log in logs.values())
        storage.size_bytes = lambda: sum(log.size for log in logs.values())
        storage.unflushed_records = lambda: sum(
            log.end_offset - log.recovery_point for log in logs.values()
        )
        storage.free_bytes = lambda: files.free_bytes(directory.path) - settings.reserved_bytes

    async def watch_lag(self) -> None:
        """Measure the event loop's lag and its longest turn periodically, until cancelled."""
        loop = asyncio.get_running_loop()
        now_s, turn = loop.time, turn_of(loop)
        longest_s = deque([0.0], maxlen=int(_TURNS_S / _LAG_CHECK_S))
        self.broker.loop_longest_turn_seconds = lambda: max(longest_s)
        while True:
            due_s = now_s() + _LAG_CHECK_S
            await asyncio.sleep(_LAG_CHECK_S)
            self.broker.loop_lag_seconds.observe(max(0.0, now_s() - due_s))
            longest_s.append(turn.take_longest_s())
