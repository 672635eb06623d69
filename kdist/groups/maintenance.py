"""What happens to groups without a member's request: loading, unloading, expiry, deletion."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Iterator
from functools import partial

from kdist.errors import Error
from kdist.groups.answers import join_refused, sync_refused
from kdist.groups.context import GroupsContext, LogRecord
from kdist.groups.expiry import choose_expired
from kdist.groups.group import Group
from kdist.groups.loading import Loading
from kdist.groups.rebalance import Rebalancer
from kdist.groups.records import tombstones
from kdist.groups.registry import Registry
from kdist.groups.states import DEAD
from kdist.model import TopicPartition
from kdist.runtime.tasks import Timer

GROUPS_PER_TICK = 50  # checked for expiry before the event loop gets to other work
MINUTE_MS = 60_000
TOMBSTONE_BYTES_MAX = 1 << 17  # of keys in a batch; far below any usual max.message.bytes

Done = Callable[[Error], None]

logger = logging.getLogger(__name__)


class GroupMaintenance:
    """Part of the coordinator; owns the expiry timer."""

    def __init__(self, context: GroupsContext, registry: Registry, rebalancer: Rebalancer) -> None:
        self._context = context
        self._registry = registry
        self._rebalancer = rebalancer
        self._timer: Timer | None = None

    def start(self) -> None:
        """Begin to check all groups for expiry periodically."""
        interval_ms = self._context.settings.offsets_retention_check_interval_ms
        self._timer = self._context.call_later(interval_ms, self._begin_round)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def finish_loading(self, loading: Loading) -> None:
        """Serve the loaded groups: their members have to heartbeat from now on."""
        groups = self._registry.finish_loading(loading, self._context.clock.now_ms())
        for group in groups:
            for member in group.members.values():
                self._rebalancer.restart_session(group, member)
            if len(group.members) > self._context.settings.max_size:
                self._rebalancer.prepare(group, "it has more members than group.max.size")
        logger.info("partition %d: %d groups are loaded", loading.partition, len(groups))
        self._forget_in(groups, loading.deleted)

    def unload(self, partition: int) -> None:
        """Drop the partition's groups; waiting members are told to find the new coordinator."""
        for group in self._registry.unload(partition):
            self._bury(group)

    def expire(self, groups: Iterable[Group]) -> None:
        """Delete expired offsets of these groups, and groups that are no longer used."""
        now_ms = self._context.clock.now_ms()
        retention_ms = self._context.settings.offsets_retention_minutes * MINUTE_MS
        for group in groups:
            expired = group.offsets.forget(choose_expired(group, now_ms, retention_ms))
            self._context.metrics.expired_offsets += len(expired)
            self._write_tombstones(group, expired)

    def forget_partitions(self, partitions: Collection[TopicPartition]) -> None:
        """Delete all groups' offsets for partitions that were deleted."""
        for loading in self._registry.loadings():
            loading.deleted.update(partitions)
        self._forget_in(list(self._registry), partitions)

    def _forget_in(self, groups: list[Group], partitions: Collection[TopicPartition]) -> None:
        for group in groups if partitions else ():
            self._write_tombstones(group, group.offsets.forget(partitions))

    def delete(self, group: Group, done: Done) -> None:
        """Delete the group and its offsets; `done` is called when the append has ended."""
        logger.info("group %s is deleted", group.group_id)
        partitions = group.offsets.forget_all()
        self._registry.remove(group)
        self._bury(group)
        records = tombstones(group.group_id, partitions, is_group_gone=group.generation > 0)
        self._append(group, records, done)

    def delete_offsets(
        self, group: Group, partitions: Collection[TopicPartition], done: Done
    ) -> None:
        """Delete the group's offsets for these partitions; `done` as for `delete`."""
        self._write_tombstones(group, group.offsets.forget(partitions), done)

    def _begin_round(self) -> None:
        self._expire_some([group.group_id for group in self._registry])

    def _expire_some(self, group_ids: list[str]) -> None:
        """Expire offsets of some groups, and of the rest in the loop's next ticks."""
        now, later = group_ids[:GROUPS_PER_TICK], group_ids[GROUPS_PER_TICK:]
        found = map(self._registry.get, now)
        self.expire([group for group in found if group is not None])
        if later:
            self._timer = self._context.call_later(0, partial(self._expire_some, later))
        else:
            self.start()

    def _write_tombstones(
        self, group: Group, partitions: list[TopicPartition], done: Done = lambda _: None
    ) -> None:
        """Append tombstones for the offsets, and for the group if nothing is left of it."""
        is_unused = group.is_unused
        if is_unused:
            logger.info("group %s: nothing is left of it", group.group_id)
            self._registry.remove(group)
            self._bury(group)
        # A group without a generation has no record of its own, only its offsets have.
        is_gone = is_unused and group.generation > 0
        records = tombstones(group.group_id, partitions, is_group_gone=is_gone)
        self._append(group, records, done)

    def _append(self, group: Group, records: list[LogRecord], done: Done) -> None:
        """Append in as many batches as needed; `done` after the last, with the first error."""
        parts = list(_parts(records))
        errors: list[Error] = []

        def ended(error: Error) -> None:
            errors.append(error)
            if len(errors) == len(parts):
                done(next(filter(None, errors), Error.NONE))

        if not parts:
            done(Error.NONE)
        for part in parts:
            self._context.append(group.group_id, part, partial(self._appended, ended))

    def _appended(self, done: Done, error: Error) -> None:
        """If the append failed, the next load brings the offsets back, and they expire later."""
        if error is not Error.NONE:
            self._context.metrics.failed_appends += 1
            logger.warning("tombstones of offsets are not in the log: %s", error.name)
        done(error)

    def _bury(self, group: Group) -> None:
        for member_id in list(group.joining):
            refused = join_refused(Error.NOT_COORDINATOR, member_id)
            self._rebalancer.answer_join(group, member_id, refused)
        for member_id in list(group.syncing):
            self._rebalancer.answer_sync(group, member_id, sync_refused(Error.NOT_COORDINATOR))
        group.stop_timers()
        group.become(DEAD, self._context.clock.now_ms())


def _parts(records: Iterable[LogRecord]) -> Iterator[list[LogRecord]]:
    """Split tombstones, in order, into lists that each fit a batch.

    A single batch for tens of thousands of offsets would exceed `max.message.bytes` and be refused,
    and the offsets would come back with the next load.
    """
    part: list[LogRecord] = []
    part_bytes = 0
    for record in records:
        key_bytes = len(record[0])
        if part and part_bytes + key_bytes > TOMBSTONE_BYTES_MAX:
            yield part
            part, part_bytes = [], 0
        part.append(record)
        part_bytes += key_bytes
    if part:
        yield part
