"""What happens to groups without a member's request: loading, unloading, expiry, deletion.

A partition may have 100,000 groups, and a group as many offsets: what concerns them all is done in
slices. A `Sweep` is such work that a group must not be seen without: whoever asks for a group has
it done for that one first.
"""

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
from kdist.groups.states import DEAD, EMPTY
from kdist.model import TopicPartition
from kdist.runtime.slices import Steps, parted
from kdist.runtime.tasks import Timer

MINUTE_MS = 60_000
TOMBSTONE_BYTES_MAX = 1 << 17  # of keys in a batch; far below any usual max.message.bytes

_OFFSETS_PER_STEP = 1_000
_TIMER_US, _APPEND_US, _TOMBSTONE_US, _OFFSETS_PER_US = 5, 150, 2, 2

Done = Callable[[Error], None]

logger = logging.getLogger(__name__)


class Sweep:
    """Work on many groups. Owned by `GroupMaintenance`."""

    def __init__(self, groups: dict[str, Group], visit: Callable[[Group], Steps]) -> None:
        """`visit` may find the group DEAD, at first and after each step."""
        self._left = dict(reversed(groups.items()))  # which are taken from the end
        self._visit = visit
        self._visited: str | None = None
        self._steps: Steps = iter(())

    def steps(self) -> Steps:
        """Visit those that are left."""
        while self._left:
            self._visited, group = self._left.popitem()
            self._steps = self._visit(group)
            yield from self._steps
            yield 1

    def catch_up(self, group_id: str) -> None:
        """Do at once what is left to do of one group."""
        if self._visited == group_id:
            _exhaust(self._steps)
        group = self._left.pop(group_id, None)
        if group is not None:
            _exhaust(self._visit(group))


class Appends:
    """Some appends: `done` is called once all have ended, with the first error."""

    def __init__(self, done: Done) -> None:
        self._done = done
        self._under_way = 1  # they are still being begun
        self._error = Error.NONE

    def begin(self) -> Done:
        """Another append; what it has to call at its end."""
        self._under_way += 1
        return self.end

    def end(self, error: Error = Error.NONE) -> None:
        """An append has ended; or all are begun."""
        self._error = self._error or error
        self._under_way -= 1
        if not self._under_way:
            self._done(self._error)


class GroupMaintenance:
    """Part of the coordinator; owns the expiry timer."""

    def __init__(self, context: GroupsContext, registry: Registry, rebalancer: Rebalancer) -> None:
        self._context = context
        self._registry = registry
        self._rebalancer = rebalancer
        self._timer: Timer | None = None
        self._is_stopped = False
        self._sweeps: list[Sweep] = []
        registry.catch_up = self._catch_up

    def start(self) -> None:
        """Begin to check all groups for expiry periodically."""
        self._is_stopped = False
        self._await_round()

    def stop(self) -> None:
        self._is_stopped = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def finish_loading(self, loading: Loading) -> None:
        """Serve the decoded groups: their members have to heartbeat from now on."""
        if self._registry.finish_loading(loading):
            groups = loading.home.groups
            logger.info("partition %d: %d groups are loaded", loading.partition, len(groups))
            self._sweep(groups, partial(self._begin_service, loading.deleted))

    def unload(self, partition: int) -> None:
        """Drop the partition's groups; waiting members are told to find the new coordinator."""
        gone = self._registry.unload(partition)
        if gone:
            self._context.slices.add(self._bury_all(gone))

    def forget_partitions(self, partitions: Collection[TopicPartition]) -> None:
        """Delete all groups' offsets for partitions that were deleted."""
        wanted = dict.fromkeys(partitions)  # a set would have no order that a seed repeats
        if wanted:
            for loading in self._registry.loadings():
                loading.deleted.update(wanted)
            self._sweep(self._registry.groups, partial(self._forget, wanted))

    def delete(self, group: Group, done: Done) -> Steps:
        """Delete the group and its offsets; `done` is called when the appends have ended.

        Until then it is seen as it was, and after a failure too: as the log has it, and so the next
        coordinator.
        """
        # Whoever uses the group meanwhile has to find the tombstones in the log before its own
        # records.
        appends = Appends(partial(self._deleted, group, group.generation, done))
        sweep = Sweep({group.group_id: group}, lambda _: self._write_off(group, appends))
        self._sweeps.append(sweep)
        return self._steps_of(sweep)

    def delete_offsets(
        self, group: Group, partitions: Collection[TopicPartition], done: Done
    ) -> None:
        """Delete the group's offsets for these partitions; until when they are seen, and `done`,
        are as for `delete`."""
        self._delete(
            group, group.offsets.known(partitions), partial(self._offsets_deleted, group, done)
        )

    def _sweep(self, groups: dict[str, Group], visit: Callable[[Group], Steps]) -> None:
        sweep = Sweep(groups, visit)
        self._sweeps.append(sweep)
        self._context.slices.add(self._steps_of(sweep))

    def _steps_of(self, sweep: Sweep) -> Steps:
        yield from sweep.steps()
        self._sweeps.remove(sweep)

    def _catch_up(self, group_id: str) -> None:
        for sweep in self._sweeps:
            sweep.catch_up(group_id)

    def _begin_service(self, deleted: Collection[TopicPartition], group: Group) -> Steps:
        """`deleted` are the partitions that were, while the log was read."""
        if deleted:
            yield from self._forget(deleted, group)
        for member in list(group.members.values()):
            # It may have left meanwhile, or sent a request, or the group be another broker's.
            is_there = group.members.get(member.member_id) is member
            if is_there and member.session is None and group.state is not DEAD:
                self._rebalancer.restart_session(group, member)
                yield _TIMER_US
        if len(group.members) > self._context.settings.max_size:
            self._rebalancer.maybe_prepare(group, "it has more members than group.max.size")

    def _forget(self, partitions: Collection[TopicPartition], group: Group) -> Steps:
        offsets = group.offsets
        among = partitions if len(partitions) <= len(offsets) else offsets.all()
        for some in parted(among, _OFFSETS_PER_STEP):
            if group.state is DEAD:
                return
            found = offsets.forget([each for each in some if each in partitions])
            yield len(some) // _OFFSETS_PER_US + self._write_tombstones(group, found)

    def _await_round(self) -> None:
        if not self._is_stopped:
            interval_ms = self._context.settings.offsets_retention_check_interval_ms
            self._timer = self._context.call_later(interval_ms, self._begin_round)

    def _begin_round(self) -> None:
        self._context.slices.add(self._expire(list(self._registry)), self._await_round)

    def _expire(self, groups: list[Group]) -> Steps:
        """Delete expired offsets of these groups, and groups that are no longer used."""
        retention_ms = self._context.settings.offsets_retention_minutes * MINUTE_MS
        for group in groups:
            for some in parted(group.offsets.all(), _OFFSETS_PER_STEP):
                if group.state is DEAD:
                    break
                now_ms = self._context.clock.now_ms()
                expired = choose_expired(group, now_ms, retention_ms, some)
                forgotten = group.offsets.forget(expired)
                self._context.metrics.expired_offsets += len(forgotten)
                yield len(some) // _OFFSETS_PER_US + self._write_tombstones(group, forgotten)

    def _write_tombstones(self, group: Group, partitions: list[TopicPartition]) -> int:
        """Append tombstones for forgotten offsets, and for the group if nothing is left of it.

        Returns how long it takes, in microseconds.
        """
        is_unused = group.is_unused
        if is_unused:
            logger.info("group %s: nothing is left of it", group.group_id)
            self._remove(group)
        # A group without a generation has no record of its own, only its offsets have.
        is_gone = is_unused and group.generation > 0
        records = tombstones(group.group_id, partitions, is_group_gone=is_gone)
        self._append(group, records, Appends(lambda _: None))
        return (_APPEND_US + _TOMBSTONE_US * len(records)) if records else 1

    def _write_off(self, group: Group, appends: Appends) -> Steps:
        """Append the tombstones of a group and its offsets, as long as its partition is led."""
        parts = list(parted(group.offsets.all(), _OFFSETS_PER_STEP))
        for number, some in enumerate(parts, 1):
            if group.home.is_left:
                appends.begin()(Error.NOT_COORDINATOR)
                break
            is_gone = number == len(parts) and group.generation > 0
            self._delete(group, some, appends.begin(), is_group_gone=is_gone)
            yield _APPEND_US + _TOMBSTONE_US * len(some)
        appends.end()

    def _deleted(self, group: Group, generation: int, done: Done, error: Error) -> None:
        # What was used meanwhile has records after the tombstones.
        is_used = group.state is not EMPTY or group.generation != generation or group.offsets
        if error is Error.NONE and not is_used:
            logger.info("group %s is deleted", group.group_id)
            self._remove(group)
        done(error)

    def _offsets_deleted(self, group: Group, done: Done, error: Error) -> None:
        if error is Error.NONE and group.is_unused:
            self._write_tombstones(group, [])
        done(error)

    def _delete(
        self,
        group: Group,
        partitions: list[TopicPartition],
        done: Done,
        *,
        is_group_gone: bool = False,
    ) -> None:
        """Append tombstones for these offsets, which are there until those are in the log."""
        number = group.offsets.begin(partitions)

        def ended(error: Error) -> None:
            if error is Error.NONE:
                group.offsets.finish_deletion(number, partitions)
            else:
                group.offsets.fail(number, partitions)
            done(error)

        appends = Appends(ended)
        self._append(
            group, tombstones(group.group_id, partitions, is_group_gone=is_group_gone), appends
        )
        appends.end()

    def _append(self, group: Group, records: list[LogRecord], appends: Appends) -> None:
        """Append in as many batches as needed."""
        for part in _fitting(records):
            self._context.append(group.group_id, part, partial(self._appended, appends.begin()))

    def _appended(self, done: Done, error: Error) -> None:
        """If the append failed, the next load brings back what has expired, to expire later."""
        if error is not Error.NONE:
            self._context.metrics.failed_appends += 1
            logger.warning("tombstones of offsets are not in the log: %s", error.name)
        done(error)

    def _remove(self, group: Group) -> None:
        self._registry.remove(group)
        self._bury(group)

    def _bury_all(self, groups: list[Group]) -> Steps:
        while groups:
            group = groups.pop()
            self._bury(group)
            yield 2 + _TIMER_US * len(group.members)

    def _bury(self, group: Group) -> None:
        for member_id in list(group.joining):
            refused = join_refused(Error.NOT_COORDINATOR, member_id)
            self._rebalancer.answer_join(group, member_id, refused)
        for member_id in list(group.syncing):
            self._rebalancer.answer_sync(group, member_id, sync_refused(Error.NOT_COORDINATOR))
        group.stop_timers()


def _exhaust(steps: Steps) -> None:
    for _ in steps:
        pass


def _fitting(records: Iterable[LogRecord]) -> Iterator[list[LogRecord]]:
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
