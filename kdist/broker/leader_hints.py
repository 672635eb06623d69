"""Who leads a partition that a client asked this broker for, and where that broker listens.

Source: KIP-951. What this broker was told as a replica and what it knows of the cluster's metadata
come in separate requests of the controller, so the newer epoch of the two counts.
"""

from __future__ import annotations

from collections.abc import Iterable

from kdist.broker.metadata_cache import MetadataCache
from kdist.model import NO_EPOCH, NO_LEADER, TopicPartition
from kdist.protocol.leader_hints import CurrentLeader, NodeEndpoint
from kdist.replication.replicas import Replicas
from kdist.replication.roles import Leading, Role


class LeaderHints:
    """Owner: the broker. It keeps nothing."""

    def __init__(self, replicas: Replicas, cache: MetadataCache) -> None:
        self._replicas = replicas
        self._cache = cache

    def leader_of(self, key: TopicPartition) -> CurrentLeader | None:
        """The partition's leader; None if none is known, or only this broker, which resigned."""
        partition = self._replicas.partitions.get(key)
        leader, epoch = (NO_LEADER, NO_EPOCH) if partition is None else self._told(partition.role)
        known = self._cache.state_of(key)
        if known is not None and (leader < 0 or known.leader_epoch > epoch):
            leader, epoch = known.leader, known.leader_epoch
            if leader == self._replicas.broker_id:
                return None
        return None if leader < 0 else CurrentLeader(leader_id=leader, leader_epoch=epoch)

    def _told(self, role: Role) -> tuple[int, int]:
        if isinstance(role, Leading):
            return self._replicas.broker_id, role.epoch
        return role.leader, role.epoch

    def endpoints(self, leaders: Iterable[CurrentLeader], listener: str) -> list[NodeEndpoint]:
        """Where these listen, each once; those that have no such listener are left out."""
        ids = dict.fromkeys(each.leader_id for each in leaders)
        found = (self._cache.broker(broker_id, listener) for broker_id in ids)
        return [
            NodeEndpoint(node_id=each.id, host=each.host, port=each.port, rack=each.rack)
            for each in found
            if each is not None
        ]
