"""Sends consumers that say their rack to a follower there, if the leader is elsewhere (KIP-392)."""

from __future__ import annotations

from kdist.broker.metadata_cache import MetadataCache
from kdist.replication.partition import Partition
from kdist.replication.replica_selector import ReplicaView, nearest_follower


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
