"""Hosting partitions: creates, opens, replaces and deletes logs as the controller requests.

`leadership.py` decides what to do about each partition. Disk work, which blocks, is done here for a
few partitions per tick of the loop.
"""

from __future__ import annotations

import logging
import uuid
from collections import deque
from collections.abc import Callable, Mapping
from functools import partial

from kdist.errors import ApiError, DiskFailed, DiskFull, Error
from kdist.model import ZERO_UUID, TopicPartition, format_uuid
from kdist.replication.leadership import (
    Hosted,
    Plan,
    StateUpdate,
    Stopped,
    plan_leadership,
    stop_fault,
)
from kdist.replication.partition import Partition, PartitionContext
from kdist.storage.directory import LogDirectory
from kdist.storage.faults import CorruptFile
from kdist.storage.flushing import Done
from kdist.storage.log import Log
from kdist.storage.meta import load_partition_metadata, save_partition_metadata
from kdist.storage.names import PARTITION_METADATA

logger = logging.getLogger(__name__)

Listener = Callable[[Partition], None]
Settle = Callable[[Error], None]

_TICK_NS = 5_000_000  # of disk work per tick of the loop, then the rest waits
_IN_A_TURN_MAX = 50


class Hosting:
    """The partitions hosted here, by topic and partition. Owner: `Replicas`."""

    def __init__(
        self,
        directory: LogDirectory,
        context: PartitionContext,
        saved_high_watermarks: Mapping[TopicPartition, int],
    ) -> None:
        self.partitions: dict[tuple[str, int], Partition] = {}
        self.on_leader: list[Listener] = []
        self.on_resign: list[Listener] = []
        self._directory = directory
        self._context = context
        self._saved_high_watermarks = saved_high_watermarks
        self._tasks = directory.around.tasks
        self._now_ns = directory.around.clock.monotonic_ns
        self._work: deque[Callable[[], None]] = deque()  # the first is running or scheduled

    def host(self, update: StateUpdate, settle: Settle) -> None:
        """Apply the controller's state to a partition; `settle` gets the outcome, now or later."""
        partition = self.partitions.get(update.key)
        if partition is None:
            self._in_turn(partial(self._host_new, update, settle))
            return
        hosted = _hosted(partition)
        plan = plan_leadership(
            update, self._context.broker_id, hosted, has_log=True, log_topic_id=partition.topic_id
        )
        if isinstance(plan, Error):
            settle(plan)
        elif plan is Plan.REPLACE:
            self._unhost(partition, partial(self._replace, partition.topic_id, update, settle))
        else:
            self._take(partition, update, settle)

    def _in_turn(self, work: Callable[[], None]) -> None:
        """Do disk work in a later tick of the loop: there may be thousands of these."""
        self._work.append(work)
        if len(self._work) == 1:
            self._tasks.call_soon(self._work_next)

    def _work_next(self) -> None:
        until_ns = self._now_ns() + _TICK_NS
        for _ in range(_IN_A_TURN_MAX):
            self._work[0]()
            self._work.popleft()
            if not self._work:
                return
            if self._now_ns() >= until_ns:
                break
        self._tasks.call_soon(self._work_next)

    def _host_new(self, update: StateUpdate, settle: Settle) -> None:
        log = self._directory.logs.get(update.key)
        try:
            log_topic_id = ZERO_UUID if log is None else self._topic_id_of(log)
        except DiskFull as error:  # no descriptor left
            settle(error.error)
            return
        plan = plan_leadership(
            update,
            self._context.broker_id,
            None,
            has_log=log is not None,
            log_topic_id=log_topic_id,
        )
        if isinstance(plan, Error):
            settle(plan)
        elif log is None:
            self._create_after(update, settle, Error.NONE)
        elif plan is Plan.OPEN:
            self._open(log, log_topic_id, update, settle)
        else:
            self._replace(log_topic_id, update, settle)

    def _replace(self, log_topic_id: uuid.UUID, update: StateUpdate, settle: Settle) -> None:
        logger.warning(
            "the log of %s is that of topic id %s, which is no longer in the cluster;"
            " the topic's id is %s",
            *(update.key, format_uuid(log_topic_id), format_uuid(update.topic_id)),
        )
        self._take_out(
            self._directory.mark_stray, update.key, partial(self._create_after, update, settle)
        )

    def _topic_id_of(self, log: Log) -> uuid.UUID:
        path = f"{log.directory}/{PARTITION_METADATA}"
        try:
            return load_partition_metadata(self._directory.files, path) or ZERO_UUID
        except CorruptFile as fault:
            logger.warning("%s: the log is assumed to be of the present topic of its name", fault)
            return ZERO_UUID

    def _open(self, log: Log, topic_id: uuid.UUID, update: StateUpdate, settle: Settle) -> None:
        if topic_id != update.topic_id != ZERO_UUID:
            path = f"{log.directory}/{PARTITION_METADATA}"
            topic_id = update.topic_id
            save = partial(save_partition_metadata, self._directory.files, path, topic_id)
            if not self._succeeds(save, settle):
                return
        log.configure(self._directory.around.settings_of(update.key.topic))
        self._begin(log, topic_id, update, settle)

    def _create_after(self, update: StateUpdate, settle: Settle, error: Error) -> None:
        """Create the log once no checkpoint contains an earlier one."""
        if error:
            settle(error)
            return

        def forgotten(failure: BaseException | None) -> None:
            if failure is None:
                self._create(update, settle)
            else:
                settle(_error_of(failure))

        self._directory.forget(update.key, forgotten)

    def _create(self, update: StateUpdate, settle: Settle) -> None:
        directory = self._directory
        settings = directory.around.settings_of(update.key.topic)
        if self._succeeds(partial(directory.create, update.key, update.topic_id, settings), settle):
            self._begin(directory.logs[update.key], update.topic_id, update, settle)

    def _begin(self, log: Log, topic_id: uuid.UUID, update: StateUpdate, settle: Settle) -> None:
        high_watermark = self._saved_high_watermarks.get(update.key, 0)
        partition = Partition(self._context, log, topic_id, high_watermark)
        self.partitions[update.key] = partition
        self._take(partition, update, settle)

    def _take(self, partition: Partition, update: StateUpdate, settle: Settle) -> None:
        was_leader, epoch_before = partition.is_leader, partition.leader_epoch
        if partition.topic_id == ZERO_UUID:
            partition.topic_id = update.topic_id
        partition.lead_or_follow(update.state, update.replicas)
        if partition.is_leader:
            if not was_leader or partition.leader_epoch != epoch_before:
                _notify(self.on_leader, partition)
        elif was_leader:
            _notify(self.on_resign, partition)
        settle(Error.NONE)

    def stop(self, stopped: Stopped, settle: Settle) -> None:
        """Stop leading the partition, and delete it if requested; `settle` gets the outcome."""
        partition = self.partitions.get(stopped.key)
        error = stop_fault(stopped, _hosted(partition))
        if error:
            settle(error)
            return
        delete = partial(self._take_out, self._directory.delete, stopped.key, settle)
        if partition is not None and stopped.is_delete:
            self._unhost(partition, delete)
        elif stopped.is_delete and stopped.key in self._directory.logs:
            self._in_turn(delete)
        else:
            if partition is not None:
                self.resign(partition)
            settle(Error.NONE)

    def _unhost(self, partition: Partition, then: Callable[[], None]) -> None:
        """Stop hosting it; call `then`, which removes its log, once no append is in progress."""
        self.resign(partition)
        del self.partitions[partition.log.partition]
        if not partition.log.is_busy:  # else the flush in progress will serve its waiters
            self._directory.fail_flush_waiters(partition.log)
        partition.when_idle(partial(self._in_turn, then))

    def resign(self, partition: Partition) -> None:
        """Stop leading it; it stays hosted."""
        was_leader = partition.is_leader
        partition.resign()
        if was_leader:
            _notify(self.on_resign, partition)

    def _take_out(
        self, how: Callable[[TopicPartition, Done], None], key: TopicPartition, settle: Settle
    ) -> None:
        def taken_out(error: BaseException | None) -> None:
            settle(Error.NONE if error is None else _error_of(error))

        self._succeeds(partial(how, key, taken_out), settle)

    def _succeeds(self, work: Callable[[], object], settle: Settle) -> bool:
        """Do disk work inside a callback, where no caller would catch a failure; whether it
        succeeded."""
        try:
            work()
        except ApiError as error:
            logger.warning("a request of the controller failed: %s", error)
            settle(error.error)
            return False
        except DiskFailed as error:
            self._directory.around.on_failure(error)
            return False
        return True


def _notify(listeners: list[Listener], partition: Partition) -> None:
    for listener in listeners:
        listener(partition)


def _hosted(partition: Partition | None) -> Hosted | None:
    return None if partition is None else Hosted(partition.topic_id, partition.state)


def _error_of(failure: BaseException) -> Error:
    return failure.error if isinstance(failure, ApiError) else Error.KAFKA_STORAGE_ERROR
