"""Bugs of leaders and followers, to be planted: one place each, as a tired engineer leaves it.

Not planted is one that does no harm: a late fetch of a broker's earlier life that counts (KIP-903).
Its epoch goes into what the leader proposes, and the controller compares it with the registration.
"""

from __future__ import annotations

from kdist.broker.handlers.control import ControlHandler
from kdist.broker.handlers.fetch import _Fetch
from kdist.replication import leadership
from kdist.replication.alter_partition_manager import AlterPartitionManager
from kdist.replication.fetcher import ReplicaFetcher
from kdist.replication.in_sync import InSyncReplicas
from kdist.replication.partition import Partition
from kdist.replication.replicas import Fetchers
from tests.simulator.bug import Edit, Planted, Spot

PLANTED_IN_FOLLOWING: dict[str, Planted] = {
    # What comes late
    "a controller's earlier connection is still heard": Edit(
        *(Spot.LATE, ControlHandler._fence, "line < self._line:", "line[0] < self._line[0]:")
    ),
    "a StopReplica of an earlier epoch is carried out (9539)": Edit(
        *(
            Spot.LATE,
            leadership.stop_fault,
            "stopped.leader_epoch < hosted.state.leader_epoch",
            "False",
        )
    ),
    "a state that is no newer ends a proposal": Edit(
        Spot.LATE,
        Partition.lead_or_follow,
        "state.zk_version > known.zk_version",
        "state.zk_version >= known.zk_version",
    ),
    "an answer to a proposal that was replaced takes the newer away": Edit(
        Spot.LATE,
        AlterPartitionManager._take_in,
        "pending is None or self._waiting.get(key) is not pending",
        "pending is None or key not in self._waiting",
    ),
    # Losses
    "the high watermark stays above an end that was cut off": Edit(
        Spot.LOSS,
        Partition.bounds_moved,
        "min(max(self.high_watermark, log.start_offset), log.end_offset)",
        "max(self.high_watermark, log.start_offset)",
    ),
    "what followers had in the epoch before counts": Edit(
        Spot.BELIEF,
        Partition.lead_or_follow,
        "if self.role != before:\n            self._forget_isr()",
        "if self.role != before:\n            self._end_proposal()",
    ),
    "a follower at the leader's end is not compared": Edit(
        *(Spot.BELIEF, _Fetch._is_at_end),
        "asked.last_fetched_epoch == log.epochs.latest",
        "asked.last_fetched_epoch <= log.epochs.latest",
    ),
    "a proposal that was refused stays": Edit(
        *(Spot.BELIEF, Partition._judge),
        "self.in_sync.withdraw()",
        "pass",
    ),
    # Failures
    "a flush that failed is asked for no more": Edit(
        Spot.AIMED,
        Partition._flushed,
        "self._is_flushing = False",
        "self._is_flushing = error is not None",
    ),
    "a follower does not go on after a truncation that found no room": Edit(
        *(Spot.AIMED, ReplicaFetcher._truncated), "self._back_off(each, error)", "pass"
    ),
    # DeleteRecords
    "a deletion of records is not told that a follower has deleted them": Edit(
        Spot.TRIM, Partition.follower_fetched, "if trimmed and", "if trimmed and moved and"
    ),
    "a follower does not tell where its own retention has moved its start": (
        Edit(
            *(Spot.TRIM, Fetchers._on_bounds_moved),
            "self._fetchers[leader].touch(log.partition)",
            "pass",
        ),
        Edit(
            *(Spot.TRIM, ReplicaFetcher._trim),
            "(partition.log, offset, _ignore)",
            "(partition.log, offset, _ignore), self.touch(partition.key)",
        ),
    ),
    "only replicas in sync delete records": Edit(
        Spot.TRIM,
        InSyncReplicas.lowest_start,
        "if self._alive(each.broker_id)",
        "if each.broker_id in self.isr",
    ),
    # Limits
    "a partition that found no room in an answer is not looked at again": Edit(
        Spot.LIMITS,
        _Fetch._collect,
        "what is None and self._is_clean(partition, cached)",
        "what is None and cached.was_told(partition.high_watermark, partition.log.start_offset)",
    ),
}
