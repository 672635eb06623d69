"""The fetchers of a broker: one for each broker that leads what is followed here."""

from __future__ import annotations

from kdist.model import TopicPartition
from kdist.replication.fetching.fetcher import FetchContext, ReplicaFetcher
from kdist.replication.partition import Partition
from kdist.replication.peers import ALONE
from kdist.replication.roles import Following
from kdist.storage.log import Log


class Fetchers:
    """Owner: `Replicas`. A partition is in at most one fetcher: its leader's, in its epoch."""

    def __init__(self, context: FetchContext) -> None:
        self._context = context
        self._fetchers: dict[int, ReplicaFetcher] = {}
        self._leaders: dict[TopicPartition, int] = {}
        context.directory.on_bounds_moved.append(self._tell_of_bounds)

    def _tell_of_bounds(self, log: Log) -> None:
        """Tell the leader where this log begins and ends, which no fetch has moved.

        By its own retention, say: it is in no ISR while its leader thinks that it begins too early,
        and may have nothing to fetch.
        """
        leader = self._leaders.get(log.partition)
        if leader is not None:
            self._fetchers[leader].touch(log.partition)

    def see_to(self, partition: Partition) -> None:
        """Have the partition fetched from its leader, anew in each epoch, or from nobody."""
        key, role = partition.key, partition.role
        leader = self._leaders.get(key)
        if leader is not None:
            known = self._fetchers[leader].followed[key]
            if known.partition is partition and known.is_current:
                return
            self.leave(key)
        if not isinstance(role, Following) or role.leader < 0 or self._context.peers is ALONE:
            return
        fetcher = self._fetchers.get(role.leader)
        if fetcher is None:
            fetcher = self._fetchers[role.leader] = ReplicaFetcher(self._context, role.leader)
        self._leaders[key] = role.leader
        fetcher.follow(partition, role)

    def leave(self, key: TopicPartition) -> None:
        """Have the partition fetched from nobody."""
        leader = self._leaders.pop(key, None)
        if leader is None:
            return
        fetcher = self._fetchers[leader]
        fetcher.leave(key)
        if not fetcher.followed:
            fetcher.close()
            del self._fetchers[leader]

    def renew(self) -> None:
        """Tell all leaders again of all that is fetched from them."""
        for fetcher in self._fetchers.values():
            fetcher.renew()

    def close(self) -> None:
        """Fetch nothing any more."""
        for fetcher in self._fetchers.values():
            fetcher.close()
        self._fetchers.clear()
        self._leaders.clear()
