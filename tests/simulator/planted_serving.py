"""Bugs of groups, fast paths and clients, to be planted: one place each.

Not planted is one that does no harm: a quick produce whose append ends once its broker has led
another time, or not, is answered by whether it leads then. What is under way keeps a log from being
cut off, so the records are at the same offsets, and committed if the high watermark says so.
"""

from __future__ import annotations

from kdist.broker.fast_path.fetch import SessionFetchFastPath
from kdist.broker.fast_path.one_partition import Reader
from kdist.broker.handlers import delete_records
from kdist.broker.offsets_log import OffsetsLoader
from kdist.client.consumer.fetcher import Fetcher
from kdist.client.consumer.rebalancing import Rebalancing
from kdist.client.producer import settling
from kdist.client.producer.batch import PartitionQueue
from kdist.client.producer.sender import Sender
from kdist.groups import membership, offsets
from kdist.groups.coordinator import GroupCoordinator
from kdist.groups.deletion import Deletion
from kdist.groups.rebalance import Rebalancer
from kdist.groups.registry import Registry
from kdist.storage import time_lookup
from tests.simulator.bug import Edit, Planted, Spot

PLANTED_IN_SERVING: dict[str, Planted] = {
    "a quick answer is given again after another has led": Edit(
        *(Spot.LATE, Reader.find),
        "(partition, role, offset, offsets)",
        "(partition, offset, offsets)",
    ),
    "a session is not looked at again after a quick fetch": Edit(
        *(Spot.GIVEN, SessionFetchFastPath.try_handle),
        "cached.depend_on(None)\n        cached.mark_dirty()",
        "cached.depend_on(None)",
    ),
    "DeleteRecords is answered before all have deleted": Edit(
        *(Spot.TRIM, delete_records._trim),
        "await _deleted_everywhere(partition, partition.log.start_offset, timeout_ms)",
        "pass",
    ),
    "DeleteRecords takes what is not committed": Edit(
        *(Spot.TRIM, delete_records._checked),
        "0 <= offset <= partition.high_watermark",
        "0 <= offset <= partition.log.end_offset",
    ),
    "a member of an earlier generation commits": Edit(
        *(Spot.GIVEN, membership.generation_fault),
        "generation != group.generation",
        "generation > group.generation",
    ),
    "a commit that failed counts": Edit(
        *(Spot.GIVEN, offsets.commit),
        "group.offsets.fail(number, kept)",
        "group.offsets.finish(number, kept)",
    ),
    "an assignment is given out in a later generation": Edit(
        *(Spot.GIVEN, Rebalancer.assign),
        "group.state is not COMPLETING or group.generation != generation",
        "group.state is not COMPLETING",
    ),
    "an assignment is given out before it is in the log": Edit(
        *(Spot.GIVEN, Rebalancer.assign),
        "self.store(group, assignments, stored)",
        "self.store(group, assignments, lambda _: None), stored(Error.NONE)",
    ),
    "offsets of a topic that is deleted during a load stay": Edit(
        *(Spot.GIVEN, GroupCoordinator.finish_loading),
        "partial(self._begin_service, loading.deleted)",
        "partial(self._begin_service, {})",
    ),
    "an answer to a fetch from elsewhere is given to the application": Edit(
        *(Spot.GIVEN, Fetcher._note_one),
        "partition is None or partition.fetch_position != asked.fetch_offset",
        "partition is None",
    ),
    "what was fetched of a partition that was revoked is still given": Edit(
        *(Spot.GIVEN, Rebalancing._give_back), "partition.is_revoked = True", "pass"
    ),
    "the first batch waits for one before it": Edit(
        *(Spot.EPOCHS, settling.judge), "and not is_first", "and is_idempotent"
    ),
    "batches are numbered anew while others are in flight": (
        Edit(
            *(Spot.EPOCHS, Sender._is_identified),
            "newer is None or queue.in_flight",
            "newer is None",
        ),
        Edit(
            *(Spot.EPOCHS, PartitionQueue.may_send),
            "if not self.in_flight:",
            "if self.is_stale or not self.in_flight:",
        ),
    ),
    "a group that was deleted comes back with its offsets": Edit(
        *(Spot.APIS, Deletion._delete),
        "tombstones(group.group_id, partitions, is_group_gone=is_group_gone)",
        "[]",
    ),
    "a group with members is deleted": Edit(
        *(Spot.APIS, Deletion.delete_groups), "group.state is not EMPTY", "group is None"
    ),
    "a time is looked up from the segment after its own": Edit(
        *(Spot.APIS, time_lookup.finding_by_timestamp), "[0] < timestamp", "[0] <= timestamp"
    ),
    "a load that was given up seems to go on": Edit(
        *(Spot.ERRORS, Registry.unload), "self._loading.pop(partition, None)", "pass"
    ),
    "a coordinator loads while its log is cut off": Edit(
        *(Spot.ZOOKEEPER, OffsetsLoader._read), "partition.log.is_truncating", "loading is None"
    ),
    "a coordinator takes the end of a segment for the log's": Edit(
        *(Spot.LIMITS, OffsetsLoader._take_in),
        "loading, next_offset)",
        "loading, next_offset if len(found[0]) == _STEP_BYTES else partition.log.end_offset)",
    ),
}
