"""How groups and their offsets are deleted: on request, with a topic, and when they have expired.

    group                       DeleteGroups        OffsetDelete
    EMPTY                       deleted             deleted
    of consumers, with members  NON_EMPTY_GROUP     deleted for topics that no member reads, else
                                                    GROUP_SUBSCRIBED_TO_TOPIC
    of others, with members     NON_EMPTY_GROUP     NON_EMPTY_GROUP

Requests are answered once the tombstones are in the log, so that what is deleted stays deleted.
Until then it is seen, so that what was seen to be gone stays gone too.

    group                              an offset expires `offsets.retention.minutes` after
    EMPTY, had members once            the group became empty (after the commit, if the log does
                                       not say when that was)
    never had members                  the commit
    STABLE, of consumers whose         the commit, for topics that no member reads
    topics are known
    any other                          never

An offset with an expiry time of its own expires at that time instead. While a commit of a partition
is under way, its offset does not expire.
Source: KIP-211, KIP-229, KIP-496, Apache Kafka's `GroupCoordinator.handleDeleteGroups` and
`handleDeleteOffsets`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from functools import partial

from kdist.errors import Error
from kdist.groups.context import COMMIT_ERRORS, GroupsContext, LogRecord, Reply
from kdist.groups.group import DEAD, EMPTY, STABLE, CommittedOffset, Group
from kdist.groups.rebalance import Rebalancer
from kdist.groups.records import tombstones
from kdist.groups.registry import Registry
from kdist.model import NO_TIMESTAMP, TopicPartition
from kdist.protocol.delete_groups import (
    DeletedGroupResult,
    DeleteGroupsRequest,
    DeleteGroupsResponse,
)
from kdist.protocol.offset_delete import (
    ForgottenPartitionResult,
    ForgottenTopicResult,
    OffsetDeleteRequest,
    OffsetDeleteResponse,
)
from kdist.runtime.steps import CountedSteps, parted
from kdist.runtime.tasks import Timer

MINUTE_MS = 60_000
TOMBSTONE_BYTES_MAX = 1 << 17  # of keys in a batch; far below any usual max.message.bytes

_OFFSETS_PER_STEP = 1_000
_GROUP_US, _APPEND_US, _TOMBSTONE_US, _OFFSETS_PER_US = 5, 150, 2, 2

Done = Callable[[Error], None]

logger = logging.getLogger(__name__)


class _Appends:
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


class Deletion:
    """Part of the coordinator; owns the expiry timer."""

    def __init__(self, context: GroupsContext, registry: Registry, rebalancer: Rebalancer) -> None:
        self._context = context
        self._registry = registry
        self._rebalancer = rebalancer
        self._timer: Timer | None = None
        self._is_stopped = False

    def start(self) -> None:
        """Begin to check all groups for expiry periodically."""
        self._is_stopped = False
        self._await_round()

    def stop(self) -> None:
        self._is_stopped = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    # On request

    def delete_groups(
        self, request: DeleteGroupsRequest, answer: Reply[DeleteGroupsResponse]
    ) -> CountedSteps:
        """Answer with one result per group, also if the request names one twice.

        They may be all groups that there are, and each has tombstones of its own.
        """
        wanted = list(dict.fromkeys(request.groups_names))
        results: dict[str, Error] = {}

        def note(group_id: str, error: Error) -> None:
            results[group_id] = COMMIT_ERRORS.get(error, error)
            if len(results) == len(wanted):
                answer(_groups_response(results))

        if not wanted:
            answer(_groups_response(results))
        for group_id in wanted:
            error, group = self._registry.find(group_id)
            if group is None:
                note(group_id, error or Error.GROUP_ID_NOT_FOUND)
            elif group.state is not EMPTY:
                note(group_id, Error.NON_EMPTY_GROUP)
            else:
                yield from self._delete_group(group, partial(note, group_id))
            yield _GROUP_US

    def delete_offsets(
        self, request: OffsetDeleteRequest, answer: Reply[OffsetDeleteResponse]
    ) -> None:
        """Answer with a result per partition, or with one error for the whole request."""
        error, group = self._registry.find(request.group_id)
        if not request.group_id:
            error, group = Error.INVALID_GROUP_ID, None
        if group is not None and group.state is not EMPTY and not group.is_consumers:
            error, group = Error.NON_EMPTY_GROUP, None
        if group is None:
            error = error or Error.GROUP_ID_NOT_FOUND
            answer(OffsetDeleteResponse(error_code=error, topics=[]))
            return
        is_known = self._context.is_known
        results = {
            each: _fault(group, each) if is_known(each) else Error.UNKNOWN_TOPIC_OR_PARTITION
            for each in _asked(request)
        }
        deleted = [each for each, fault in results.items() if fault is Error.NONE]

        def ended(error: Error) -> None:
            if error is Error.NONE and group.is_unused:
                self._write_tombstones(group, [])
            finish(error)

        def finish(error: Error) -> None:
            outcome = dict.fromkeys(deleted, COMMIT_ERRORS.get(error, error))
            answer(_offsets_response(request, results | outcome))

        if deleted:
            self._delete(group, group.offsets.known(deleted), ended)
        else:
            finish(Error.NONE)

    def _delete_group(self, group: Group, done: Done) -> CountedSteps:
        """Delete the group and its offsets; `done` is called when the appends have ended.

        Until then it is seen as it was, and after a failure too: as the log has it, and so the next
        coordinator.
        """
        # Whoever uses the group meanwhile has to find the tombstones in the log before its own
        # records.
        appends = _Appends(partial(self._deleted, group, group.generation, done))
        visit = partial(self._write_off, appends)
        return self._registry.sweep({group.group_id: group}, visit)

    def _write_off(self, appends: _Appends, group: Group) -> CountedSteps:
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

    # With a topic, or when they have expired

    def forget_partitions(self, partitions: Collection[TopicPartition]) -> None:
        """Delete all groups' offsets for partitions that were deleted."""
        wanted = dict.fromkeys(partitions)  # a set would have no order that a seed repeats
        if wanted:
            for loading in self._registry.loadings():
                loading.deleted.update(wanted)
            visit = partial(self.forget, wanted)
            self._context.slices.add(self._registry.sweep(self._registry.groups, visit))

    def forget(self, partitions: Collection[TopicPartition], group: Group) -> CountedSteps:
        """Delete the group's offsets for these partitions."""
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
        groups = list(self._registry.groups.values())
        self._context.slices.add(self._expire(groups), self._await_round)

    def _expire(self, groups: list[Group]) -> CountedSteps:
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
        self._append(group, records, _Appends(lambda _: None))
        return (_APPEND_US + _TOMBSTONE_US * len(records)) if records else 1

    # Tombstones

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

        appends = _Appends(ended)
        self._append(
            group, tombstones(group.group_id, partitions, is_group_gone=is_group_gone), appends
        )
        appends.end()

    def _append(self, group: Group, records: list[LogRecord], appends: _Appends) -> None:
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
        self._rebalancer.close(group)


def choose_expired(
    group: Group, now_ms: int, retention_ms: int, among: Iterable[TopicPartition]
) -> list[TopicPartition]:
    """The partitions, of these, whose offsets the group may forget."""
    if group.protocol_type is None:
        return group.offsets.find(partial(_is_old, now_ms, retention_ms, NO_TIMESTAMP), among)
    if group.state is EMPTY:
        is_old = partial(_is_old, now_ms, retention_ms, group.state_since_ms)
        return group.offsets.find(is_old, among)
    topics = group.subscribed_topics
    if group.state is STABLE and topics is not None:
        unread = (each for each in among if each.topic not in topics)
        return group.offsets.find(partial(_is_old, now_ms, retention_ms, NO_TIMESTAMP), unread)
    return []


def _is_old(
    now_ms: int, retention_ms: int, since_ms: int, _where: TopicPartition, what: CommittedOffset
) -> bool:
    if what.expire_timestamp_ms != NO_TIMESTAMP:
        return now_ms >= what.expire_timestamp_ms
    start_ms = what.commit_timestamp_ms if since_ms == NO_TIMESTAMP else since_ms
    return now_ms - start_ms >= retention_ms


def _fault(group: Group, partition: TopicPartition) -> Error:
    topics = group.subscribed_topics
    if group.state is EMPTY or (topics is not None and partition.topic not in topics):
        return Error.NONE
    return Error.GROUP_SUBSCRIBED_TO_TOPIC  # also if the subscription is not known


def _asked(request: OffsetDeleteRequest) -> Iterable[TopicPartition]:
    return (
        TopicPartition(topic.name, each.partition_index)
        for topic in request.topics
        for each in topic.partitions
    )


def _groups_response(results: Mapping[str, Error]) -> DeleteGroupsResponse:
    return DeleteGroupsResponse(
        results=[
            DeletedGroupResult(group_id=group_id, error_code=error)
            for group_id, error in results.items()
        ]
    )


def _offsets_response(
    request: OffsetDeleteRequest, results: Mapping[TopicPartition, Error]
) -> OffsetDeleteResponse:
    return OffsetDeleteResponse(
        error_code=Error.NONE,
        topics=[
            ForgottenTopicResult(
                name=topic.name,
                partitions=[
                    ForgottenPartitionResult(
                        partition_index=each.partition_index,
                        error_code=results[TopicPartition(topic.name, each.partition_index)],
                    )
                    for each in topic.partitions
                ],
            )
            for topic in request.topics
        ],
    )


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
