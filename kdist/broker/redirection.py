"""Whom a client is to ask instead of this broker: the leader, or a replica in its rack.

`LeaderHints` (KIP-951) are for clients that asked a broker which does not lead. `NearestReplica`
(KIP-392) sends consumers that say their rack from the leader to a follower there, by Kafka's
`RackAwareReplicaSelector`:

    the consumer's rack          it reads from
    is not said                  the leader
    is the leader's              the leader
    has followers to choose from the one that has most, of several the one that caught up last
    has none                     the leader
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from kdist.broker.metadata_cache import MetadataCache
from kdist.model import NO_EPOCH, NO_LEADER, TopicPartition
from kdist.protocol.fetch import CurrentLeader, NodeEndpoint
from kdist.replication.leadership import Leading, Role
from kdist.replication.partition import Partition
from kdist.replication.replicas import Replicas


class LeaderHints:
    """Who leads a partition that a client asked for, and where. Owner: the broker; keeps nothing.

    What this broker was told as a replica and what it knows of the cluster's metadata come in
    separate requests of the controller, so the newer epoch of the two counts.
    """

    def __init__(self, replicas: Replicas, cache: MetadataCache) -> None:
        self._replicas = replicas
        self._cache = cache

    def leader_of(self, key: TopicPartition) -> CurrentLeader | None:
        """The partition's leader; None if none is known, or only this broker, which resigned."""
        partition = self._replicas.partitions.get(key)
        leader, epoch = (
            (NO_LEADER, NO_EPOCH) if partition is None else self._by_role(partition.role)
        )
        known = self._cache.state_of(key)
        if known is not None and (leader < 0 or known.leader_epoch > epoch):
            leader, epoch = known.leader, known.leader_epoch
            if leader == self._replicas.broker_id:
                return None
        return None if leader < 0 else CurrentLeader(leader_id=leader, leader_epoch=epoch)

    def _by_role(self, role: Role) -> tuple[int, int]:
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


class ReplicaView(NamedTuple):
    """A follower from which the consumer may go on."""

    broker_id: int
    rack: str | None
    end_offset: int
    caught_up_ms: int


def nearest_follower(
    rack: str, leader_rack: str | None, followers: Iterable[ReplicaView]
) -> int | None:
    """The broker that a consumer of this rack is to read from (pure); None: the leader."""
    if not rack or rack == leader_rack:
        return None
    near = (each for each in followers if each.rack == rack)
    best = max(
        near, key=lambda each: (each.end_offset, each.caught_up_ms, each.broker_id), default=None
    )
    return None if best is None else best.broker_id


class NearestReplica:
    """Owner: the fetch handler, of a broker with the rack-aware selector. It keeps nothing."""

    def __init__(self, cache: MetadataCache, broker_id: int) -> None:
        self._cache = cache
        self._broker_id = broker_id

    @property
    def rack(self) -> str | None:
        """This broker's own; who is there is never sent away by it."""
        own = self._cache.brokers.get(self._broker_id)
        return None if own is None else own.rack

    def find(self, partition: Partition, offset: int, rack: str, listener: str) -> int | None:
        """The follower to read from at `offset`, in a partition led here; None: from here.

        An offset outside what is committed is this leader's to judge.
        """
        cache, log, in_sync = self._cache, partition.log, partition.in_sync
        if in_sync is None or not log.start_offset <= offset <= partition.high_watermark:
            return None
        followers = (
            ReplicaView(broker.id, broker.rack, each.end_offset, each.caught_up_ms)
            for each in in_sync.readable_at(offset)
            if (broker := cache.broker(each.broker_id, listener)) is not None
        )
        return nearest_follower(rack, self.rack, followers)
