"""All partitions of one broker: look-up, and the controller's requests about them.

The controller's requests are carried out one at a time, in order, since deleting a log and creating
it again takes a while; the partitions of one request concurrently. A response has an error code for
each partition. `hosting.py` carries out what is requested for each.
"""

from __future__ import annotations

import logging
import uuid
from collections import deque
from collections.abc import Callable, Container, Mapping
from functools import partial
from types import MappingProxyType

from kdist.config.topic import TopicSettings
from kdist.errors import ApiError, Error
from kdist.metrics.replication import ReplicationMetrics
from kdist.model import NO_EPOCH, TopicPartition
from kdist.protocol.leader_and_isr import (
    FULL,
    LeaderAndIsrPartitionResult,
    LeaderAndIsrRequest,
    LeaderAndIsrResponse,
    LeaderAndIsrTopicResult,
)
from kdist.protocol.stop_replica import (
    StoppedPartitionResult,
    StopReplicaRequest,
    StopReplicaResponse,
)
from kdist.replication.delayed import DelayedOperations, Schedule
from kdist.replication.hosting import Hosting
from kdist.replication.leadership import (
    StateUpdate,
    fence,
    stopped_in,
    updates_in,
)
from kdist.replication.partition import Partition, PartitionContext
from kdist.replication.writer import Writers
from kdist.storage.directory import LogDirectory
from kdist.storage.log import Log
from kdist.storage.names import some_of

logger = logging.getLogger(__name__)

_FIRST_VERSION_OF_TOPIC_IDS = 5  # of LeaderAndIsr


class Replicas:
    """Owner: the event loop. `broker_epoch` is set by whoever registers the broker.

    The `on_leader` callbacks are called when this broker becomes a partition's leader, or stays so
    in a new epoch; the `on_resign` ones when it no longer is.
    """

    def __init__(
        self,
        directory: LogDirectory,
        broker_id: int,
        schedule: Schedule,
        metrics: ReplicationMetrics,
        is_known: Callable[[TopicPartition], bool],
        saved_high_watermarks: Mapping[TopicPartition, int] = MappingProxyType({}),
    ) -> None:
        """`schedule` defers a callback to the end of this tick of the loop, so that waiting
        operations are attempted once per tick. `is_known`: the cluster has this partition.
        `saved_high_watermarks`: what `high_watermarks` returned in the broker's last life."""
        around = directory.around
        self.directory = directory
        self.broker_id = broker_id
        self.metrics = metrics
        self.delayed = DelayedOperations(around.tasks, around.clock, schedule, metrics)
        self.broker_epoch = -1
        self.controller_epoch = 0
        self._is_known = is_known
        # Topics that the controller named without partitions: for now nobody knows which they have.
        self._doubtful: set[str] = set()
        context = PartitionContext(
            broker_id=broker_id,
            writers=Writers(around.tasks, around.clock, metrics, around.on_failure),
            delayed=self.delayed,
            flusher=directory.flusher,
        )
        self._saved_high_watermarks = saved_high_watermarks
        self._hosting = hosting = Hosting(directory, context, saved_high_watermarks)
        self.partitions = hosting.partitions
        self.on_leader, self.on_resign = hosting.on_leader, hosting.on_resign
        self._orders: deque[Callable[[Callable[[], None]], None]] = deque()
        self._is_carrying_out = False
        directory.flusher.on_flushed.append(self._on_flushed)
        directory.on_bounds_moved.append(self._on_bounds_moved)
        metrics.partitions = lambda: len(self.partitions)
        metrics.leaders = lambda: sum(each.is_leader for each in self.partitions.values())
        metrics.under_min_isr = lambda: sum(
            each.is_leader and each.is_under_min_isr for each in self.partitions.values()
        )
        metrics.delayed_operations = lambda: len(self.delayed)

    def get(self, key: tuple[str, int]) -> Partition:
        """The hosted partition with this topic and number; this broker need not be its leader.

        Raises NOT_LEADER_OR_FOLLOWER if another broker has it, UNKNOWN_TOPIC_OR_PARTITION if none.
        """
        partition = self.partitions.get(key)
        if partition is None:
            raise ApiError(
                Error.NOT_LEADER_OR_FOLLOWER
                if self._is_known(TopicPartition(*key))
                else Error.UNKNOWN_TOPIC_OR_PARTITION
            )
        return partition

    def configure(self, topic: str, settings: TopicSettings) -> None:
        """Apply a topic's changed settings."""
        for key, log in self.directory.logs.items():
            if key.topic == topic:
                self._configure(key, log, settings)

    def configure_all(self, settings_of: Callable[[str], TopicSettings]) -> None:
        """Apply all topics' settings, any of which may have changed."""
        found: dict[str, TopicSettings] = {}
        for key, log in self.directory.logs.items():
            if key.topic not in found:
                found[key.topic] = settings_of(key.topic)
            if log.settings != found[key.topic]:
                self._configure(key, log, found[key.topic])

    def _configure(self, key: TopicPartition, log: Log, settings: TopicSettings) -> None:
        partition = self.partitions.get(key)
        if partition is None:
            log.configure(settings)
        else:
            partition.configure(settings)

    def committed_end(self, log: Log) -> int:
        """Up to where retention may delete records: 0, so none, in a log that is not hosted.

        If its topic is unknown, so are the topic's retention settings.
        """
        partition = self.partitions.get(log.partition)
        return 0 if partition is None else partition.high_watermark

    def high_watermarks(self) -> dict[TopicPartition, int]:
        """All logs' high watermarks, to be saved: as they were for those not hosted yet."""
        saved, logs = self._saved_high_watermarks, self.directory.logs
        found = {key: saved[key] for key in logs.keys() & saved.keys()}
        return found | {each.key: each.high_watermark for each in self.partitions.values()}

    def warn_of_strays(self) -> None:
        """Log a warning that names the logs of partitions that the cluster does not have."""
        strays = sorted(
            key
            for key in self.directory.logs
            if not self._is_known(key) and key.topic not in self._doubtful
        )
        if strays:
            logger.warning(
                "%d logs in %s are of no partition of the cluster, and are kept: %s (was ZooKeeper"
                " restored from a backup? If nobody needs them, stop the broker and remove them)",
                *(len(strays), self.directory.path, some_of(strays)),
            )

    def _on_flushed(self, log: Log) -> None:
        partition = self.partitions.get(log.partition)
        if partition is not None:
            partition.flushed()

    def _on_bounds_moved(self, log: Log) -> None:
        partition = self.partitions.get(log.partition)
        if partition is not None:
            # A truncation below it happens after an unclean election alone.
            partition.high_watermark = min(partition.high_watermark, log.end_offset)
            self.delayed.changed(partition)

    def drain(self, done: Callable[[], None]) -> None:
        """Resign all leaders; call `done` once no append is in progress, so the directory may be
        closed."""
        partitions = list(self.partitions.values())
        finish = _Countdown(len(partitions) + 1, done)
        for partition in partitions:
            self._hosting.resign(partition)
            partition.when_idle(finish)
        finish()

    # The controller's requests

    def apply_leader_and_isr(
        self,
        request: LeaderAndIsrRequest,
        version: int,
        reply: Callable[[LeaderAndIsrResponse], None],
    ) -> None:
        """Host, lead or follow the partitions in the request, then `reply`."""

        def carry_out(finished: Callable[[], None]) -> None:
            error = self._fence(request)
            found = {} if error else {each.key: each for each in updates_in(request)}
            updates = list(found.values())
            errors: dict[TopicPartition, Error] = {}

            def finish() -> None:
                if version < _FIRST_VERSION_OF_TOPIC_IDS:
                    reply(_ungrouped_response(error, errors))
                else:
                    reply(_response(error, updates, errors))
                finished()

            if not error and request.type == FULL:
                self._doubtful = {
                    each.topic_name for each in request.topic_states if not each.partition_states
                }
                self._resign_others({each.key for each in updates})
            countdown = _Countdown(len(updates) + 1, finish)
            for each in updates:
                self._hosting.host(each, partial(_settle, errors, each.key, countdown))
            countdown()

        self._order(carry_out)

    def _resign_others(self, named: Container[object]) -> None:
        """Resign partitions not in a FULL request, else clients would write where nobody reads.

        If one is named again, any state is accepted, since its znodes were re-created.
        """
        for key, partition in self.partitions.items():
            if partition.is_leader and key not in named and key[0] not in self._doubtful:
                logger.warning("resigned as leader of %s: not in the cluster", partition.key)
                self._hosting.resign(partition)
                partition.state = partition.state._replace(leader_epoch=NO_EPOCH, zk_version=-1)

    def apply_stop_replica(
        self,
        request: StopReplicaRequest,
        reply: Callable[[StopReplicaResponse], None],
    ) -> None:
        """Stop leading the partitions in the request, delete those requested, then `reply`."""

        def carry_out(finished: Callable[[], None]) -> None:
            error = self._fence(request)
            stopped = {} if error else {each.key: each for each in stopped_in(request)}
            errors: dict[TopicPartition, Error] = {}

            def finish() -> None:
                results = [
                    StoppedPartitionResult(
                        topic_name=key.topic, partition_index=key.partition, error_code=found
                    )
                    for key, found in errors.items()
                ]
                reply(StopReplicaResponse(error_code=error, partition_errors=results))
                finished()

            countdown = _Countdown(len(stopped) + 1, finish)
            for each in stopped.values():
                self._hosting.stop(each, partial(_settle, errors, each.key, countdown))
            countdown()

        self._order(carry_out)

    def _order(self, carry_out: Callable[[Callable[[], None]], None]) -> None:
        self._orders.append(carry_out)
        if not self._is_carrying_out:
            self._carry_out_next()

    def _carry_out_next(self) -> None:
        self._is_carrying_out = bool(self._orders)
        if self._orders:
            self._orders.popleft()(self._carry_out_next)

    def _fence(self, request: LeaderAndIsrRequest | StopReplicaRequest) -> Error:
        error = fence(request, self.controller_epoch, self.broker_epoch)
        if error:
            logger.warning(
                "a request of controller %d is refused: %s", request.controller_id, error.name
            )
        else:
            self.controller_epoch = request.controller_epoch
        return error


class _Countdown:
    """Calls `done` at its `count`-th call."""

    def __init__(self, count: int, done: Callable[[], None]) -> None:
        self._left = count
        self._done = done

    def __call__(self) -> None:
        self._left -= 1
        if not self._left:
            self._done()


def _settle(
    errors: dict[TopicPartition, Error],
    key: TopicPartition,
    countdown: Callable[[], None],
    error: Error,
) -> None:
    errors[key] = error
    countdown()


def _ungrouped_response(error: Error, errors: dict[TopicPartition, Error]) -> LeaderAndIsrResponse:
    results = [
        LeaderAndIsrPartitionResult(
            topic_name=key.topic, partition_index=key.partition, error_code=found
        )
        for key, found in errors.items()
    ]
    return LeaderAndIsrResponse(error_code=error, partition_errors=results)


def _response(
    error: Error, updates: list[StateUpdate], errors: dict[TopicPartition, Error]
) -> LeaderAndIsrResponse:
    topics: dict[uuid.UUID, LeaderAndIsrTopicResult] = {}
    for each in updates:
        topic = topics.setdefault(
            each.topic_id, LeaderAndIsrTopicResult(topic_id=each.topic_id, partition_errors=[])
        )
        topic.partition_errors.append(
            LeaderAndIsrPartitionResult(
                partition_index=each.key.partition, error_code=errors[each.key]
            )
        )
    return LeaderAndIsrResponse(error_code=error, topics=list(topics.values()))
