"""For how long topics keep their records, so that `/metrics` shows whose readers are too late.

Each topic once in a cluster: by the leader of its partition 0.
"""

from __future__ import annotations

from kdist.metrics.declare import Family
from kdist.metrics.storage import RetentionMetrics
from kdist.replication.replicas import Replicas


class ShownRetention:
    """Owner: the broker."""

    def __init__(self, replicas: Replicas, shown: Family[RetentionMetrics]) -> None:
        self._replicas = replicas
        self._shown = shown

    async def look(self) -> None:
        """Show the topics whose partition 0 this broker leads now."""
        self._shown.clear()
        for (topic, number), partition in self._replicas.partitions.items():
            if number == 0 and partition.is_leader:
                settings = partition.log.settings
                if "delete" in settings.cleanup_policy and settings.retention_ms >= 0:
                    self._shown[topic,].retention_seconds = settings.retention_ms / 1000
