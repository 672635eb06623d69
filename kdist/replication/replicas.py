"""All partitions of one broker: look-up, the controller's requests about them, and their fetchers.

What is followed here has one `ReplicaFetcher` for each broker that leads some of it.

The controller's requests are carried out one at a time, in order, since deleting a log and creating
it again takes a while; the partitions of one request concurrently. `leadership.py` decides what to
do about each. Disk work, which blocks, is done for a few partitions per tick of the loop.
"""

from __future__ import annotations

import logging
import math
import uuid
from collections import deque
from collections.abc import Callable, Container, Iterable, Mapping
from functools import partial
from types import MappingProxyType
from typing import Any, NamedTuple

from kdist.config.topic import TopicSettings
from kdist.errors import ApiError, CorruptFile, DiskFailed, DiskFull, Error
from kdist.metrics.replication import ReplicationMetrics
from kdist.model import NO_EPOCH, ZERO_UUID, TopicPartition, format_uuid
from kdist.protocol.leader_and_isr import FULL, LeaderAndIsrRequest, LeaderAndIsrResponse
from kdist.protocol.stop_replica import StopReplicaRequest, StopReplicaResponse
from kdist.replication.alter_partition_manager import IsrChanges
from kdist.replication.delayed import AtTickEnd, DelayedOperations
from kdist.replication.fetcher import ReplicaFetcher
from kdist.replication.leadership import (
    Following,
    Hosted,
    HostingPlan,
    StateUpdate,
    Stopped,
    fence,
    leader_and_isr_response,
    plan_leadership,
    stop_fault,
    stop_replica_response,
    stopped_in,
    updates_in,
)
from kdist.replication.partition import Partition
from kdist.replication.peers import ALONE, FetcherContext, PartitionContext, Peers
from kdist.replication.throttles import ReplicationThrottles
from kdist.replication.writer import Writers
from kdist.runtime.steps import LongWork
from kdist.storage.directory import LogDirectory
from kdist.storage.log import Log
from kdist.storage.meta import load_partition_metadata, save_partition_metadata
from kdist.storage.names import PARTITION_METADATA, some_of

logger = logging.getLogger(__name__)

Listener = Callable[[Partition], None]
Respond = Callable[[Error], None]

_WORK_NS_PER_TICK = 5_000_000  # of disk work per tick of the loop, then the rest waits
_WORK_PER_TICK_MAX = 50


class _ControllerRequest(NamedTuple):
    """A request of the controller: for each partition that it names, `apply`; then `finish`."""

    request: LeaderAndIsrRequest | StopReplicaRequest
    partitions: Callable[[], Iterable[Any]]
    apply: Callable[[Any, Respond], None]
    finish: Callable[[Error, Mapping[TopicPartition, Error]], None]


class Fetchers:
    """Owner: `Replicas`. A partition is in at most one fetcher: its leader's, in its epoch."""

    def __init__(self, context: FetcherContext) -> None:
        self._context = context
        self._fetchers: dict[int, ReplicaFetcher] = {}
        self._leaders: dict[TopicPartition, int] = {}
        context.directory.trimmer.on_bounds_moved.append(self._on_bounds_moved)

    def _on_bounds_moved(self, log: Log) -> None:
        """Tell the leader where this log begins and ends, which no fetch has moved.

        By its own retention, say: it is in no ISR while its leader thinks that it begins too early,
        and may have nothing to fetch.
        """
        leader = self._leaders.get(log.partition)
        if leader is not None:
            self._fetchers[leader].touch(log.partition)

    def update(self, partition: Partition) -> None:
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

    def reconnect(self) -> None:
        """Tell all leaders again of all that is fetched from them."""
        for fetcher in self._fetchers.values():
            fetcher.reconnect()

    def close(self) -> None:
        """Fetch nothing any more."""
        for fetcher in self._fetchers.values():
            fetcher.close()
        self._fetchers.clear()
        self._leaders.clear()


class Replicas:
    """Owner: the event loop. `broker_epoch` is set by whoever registers the broker.

    The `on_leader` callbacks are called when this broker becomes a partition's leader, or stays so
    in a new epoch; the `on_resign` ones when it no longer is.
    """

    def __init__(
        self,
        directory: LogDirectory,
        broker_id: int,
        schedule: AtTickEnd,
        metrics: ReplicationMetrics,
        is_known: Callable[[TopicPartition], bool],
        saved_high_watermarks: Mapping[TopicPartition, int] = MappingProxyType({}),
        peers: Peers = ALONE,
    ) -> None:
        """`schedule` defers a callback to the end of this tick of the loop, so that waiting
        operations are attempted once per tick. `is_known`: the cluster has this partition.
        `saved_high_watermarks`: what `high_watermarks` returned in the broker's last life."""
        context = directory.context
        self.directory = directory
        self.broker_id = broker_id
        self.metrics = metrics
        self.delayed = DelayedOperations(context.tasks, context.clock, schedule, metrics)
        self.broker_epoch = -1
        self.controller_epoch = 0
        self._is_known = is_known
        # Topics that the controller named without partitions: for now nobody knows which they have.
        self._doubtful: set[str] = set()
        self._context = PartitionContext(
            broker_id=broker_id,
            writers=Writers(context.tasks, context.clock, metrics, context.on_failure),
            delayed=self.delayed,
            flusher=directory.flusher,
            metrics=metrics,
            isr_changes=IsrChanges(context.tasks, metrics),
            peers=peers,
        )
        # One mechanism, but conversions, which hold most, and look-ups, which wait for the disk,
        # do not hold up produces.
        self.produce_checks = LongWork(context.tasks, jobs_max=2)
        self.conversions = LongWork(context.tasks, jobs_max=1)
        self.lookups = LongWork(context.tasks, jobs_max=2)
        self.throttles = ReplicationThrottles(context.clock)
        self.throttles.configure(peers.settings)
        follower = self.throttles.follower
        self._fetchers = Fetchers(FetcherContext(broker_id, peers, directory, metrics, follower))
        self.refused = self._context.writers.refused
        self._saved_high_watermarks = saved_high_watermarks
        self.partitions: dict[tuple[str, int], Partition] = {}
        self.on_leader: list[Listener] = []
        self.on_resign: list[Listener] = []
        self._requests: deque[_ControllerRequest] = deque()  # the first is being carried out
        self._work: deque[Callable[[], None]] = deque()  # on the disk; the first is scheduled
        directory.flusher.on_flushed.append(self._on_flushed)
        directory.trimmer.on_bounds_moved.append(self._on_bounds_moved)
        self._count_for(metrics)

    def _count_for(self, metrics: ReplicationMetrics) -> None:
        metrics.partitions = lambda: len(self.partitions)
        metrics.leaders = lambda: sum(each.is_leader for each in self.partitions.values())
        metrics.under_min_isr = lambda: sum(
            each.is_leader and each.is_under_min_isr for each in self.partitions.values()
        )
        metrics.under_replicated = lambda: sum(
            each.is_leader and each.is_under_replicated for each in self.partitions.values()
        )
        metrics.reassigning = lambda: sum(
            each.is_leader and bool(each.adding) for each in self.partitions.values()
        )
        metrics.at_min_isr = lambda: sum(
            each.is_leader and each.is_at_min_isr for each in self.partitions.values()
        )
        metrics.replica_lag_max = self._replica_lag_max
        metrics.delayed_operations = lambda: len(self.delayed)

    def _replica_lag_max(self) -> float:
        """NaN if nothing is known of any follower."""
        lags = {each.replica_lag for each in self.partitions.values() if each.is_leader} or {0}
        known = [each for each in lags if each is not None]
        return max(known, default=math.nan)

    def know_epoch(self, broker_epoch: int) -> None:
        """The broker has registered. Leaders are to hear in which epoch, for every partition: they
        cannot propose a replica of an earlier one for the ISR."""
        is_another, self.broker_epoch = 0 <= self.broker_epoch < broker_epoch, broker_epoch
        if is_another:
            self._fetchers.reconnect()

    def review_isrs(self) -> None:
        """Have leaders propose other ISRs, where replicas are out of sync or in sync again."""
        for partition in self.partitions.values():
            partition.review_isr()

    def watch_isrs(self) -> None:
        """From here on review all ISRs periodically."""
        lag_ms_max = self._context.peers.settings.lag_time_max_ms
        tasks = self.directory.context.tasks

        def review() -> None:
            self.review_isrs()
            tasks.call_later(lag_ms_max / 2, review)

        tasks.call_later(lag_ms_max / 2, review)

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
            partition.bounds_moved()

    def drain(self, done: Callable[[], None]) -> None:
        """Resign all leaders and follow nobody; call `done` once no append is in progress, so the
        directory may be closed."""
        self._fetchers.close()
        partitions = list(self.partitions.values())
        left = len(partitions) + 1

        def count() -> None:
            nonlocal left
            left -= 1
            if not left:
                done()

        for partition in partitions:
            self._resign(partition)
            partition.when_idle(count)
        count()

    # The controller's requests

    def apply_leader_and_isr(
        self,
        request: LeaderAndIsrRequest,
        version: int,
        reply: Callable[[LeaderAndIsrResponse], None],
    ) -> None:
        """Host, lead or follow the partitions in the request, then `reply`."""

        def updates() -> list[StateUpdate]:
            found = list(updates_in(request))
            if request.type == FULL:
                self._doubtful = {
                    each.topic_name for each in request.topic_states if not each.partition_states
                }
                self._resign_others({each.key for each in found})
            return found

        def finish(error: Error, errors: Mapping[TopicPartition, Error]) -> None:
            reply(leader_and_isr_response(request, version, error, errors))

        self._enqueue(_ControllerRequest(request, updates, self._host, finish))

    def _resign_others(self, named: Container[object]) -> None:
        """Resign partitions not in a FULL request, else clients would write where nobody reads.

        Those followed are fetched no longer. If one is named again, any state is accepted, since
        its znodes were re-created.
        """
        for key, partition in self.partitions.items():
            is_in_use = partition.is_leader or partition.state.leader >= 0
            if is_in_use and key not in named and key[0] not in self._doubtful:
                if partition.is_leader:
                    logger.warning("resigned as leader of %s: not in the cluster", partition.key)
                self._resign(partition)
                partition.state = partition.state._replace(leader_epoch=NO_EPOCH, zk_version=-1)

    def apply_stop_replica(
        self, request: StopReplicaRequest, reply: Callable[[StopReplicaResponse], None]
    ) -> None:
        """Stop leading the partitions in the request, delete those requested, then `reply`."""

        def finish(error: Error, errors: Mapping[TopicPartition, Error]) -> None:
            reply(stop_replica_response(error, errors))

        self._enqueue(_ControllerRequest(request, partial(stopped_in, request), self._stop, finish))

    def _enqueue(self, request: _ControllerRequest) -> None:
        self._requests.append(request)
        if len(self._requests) == 1:
            self._carry_out()

    def _carry_out(self) -> None:
        """Carry out the first request; the next when it is answered."""
        request, partitions, apply, finish = self._requests[0]
        error = fence(request, self.controller_epoch, self.broker_epoch)
        if error:
            sender = request.controller_id
            logger.warning("a request of controller %d is refused: %s", sender, error.name)
        else:
            self.controller_epoch = request.controller_epoch
        named = {} if error else {each.key: each for each in partitions()}
        errors: dict[TopicPartition, Error] = {}

        def finished() -> None:
            finish(error, errors)
            self._requests.popleft()
            if self._requests:
                self._carry_out()

        def respond(key: TopicPartition, error: Error) -> None:
            errors[key] = error
            if len(errors) == len(named):
                finished()

        for key, each in named.items():
            apply(each, partial(respond, key))
        if not named:
            finished()

    # One partition: `respond` gets the outcome, now or later

    def _host(self, update: StateUpdate, respond: Respond) -> None:
        """Apply the controller's state to a partition."""
        partition = self.partitions.get(update.key)
        if partition is None:
            self._defer(partial(self._host_new, update, respond))
            return
        hosted = _hosted(partition)
        plan = plan_leadership(
            update, self.broker_id, hosted, has_log=True, log_topic_id=partition.topic_id
        )
        if isinstance(plan, Error):
            respond(plan)
        elif plan is HostingPlan.REPLACE:
            self._unhost(partition, partial(self._replace, partition.topic_id, update, respond))
        else:
            self._lead_or_follow(partition, update, respond)

    def _defer(self, work: Callable[[], None]) -> None:
        """Do disk work in a later tick of the loop: there may be thousands of these."""
        self._work.append(work)
        if len(self._work) == 1:
            self.directory.context.tasks.call_soon(self._work_next)

    def _work_next(self) -> None:
        until_ns = self.directory.context.clock.monotonic_ns() + _WORK_NS_PER_TICK
        for _ in range(_WORK_PER_TICK_MAX):
            self._work[0]()
            self._work.popleft()
            if not self._work:
                return
            if self.directory.context.clock.monotonic_ns() >= until_ns:
                break
        self.directory.context.tasks.call_soon(self._work_next)

    def _host_new(self, update: StateUpdate, respond: Respond) -> None:
        log = self.directory.logs.get(update.key)
        try:
            log_topic_id = ZERO_UUID if log is None else self._topic_id_of(log)
        except DiskFull as error:  # no descriptor left
            respond(error.error)
            return
        plan = plan_leadership(
            update, self.broker_id, None, has_log=log is not None, log_topic_id=log_topic_id
        )
        if isinstance(plan, Error):
            respond(plan)
        elif log is None:
            self._create_anew(update, respond, None)
        elif plan is HostingPlan.OPEN:
            self._open(log, log_topic_id, update, respond)
        else:
            self._replace(log_topic_id, update, respond)

    def _replace(self, log_topic_id: uuid.UUID, update: StateUpdate, respond: Respond) -> None:
        logger.warning(
            "the log of %s is that of topic id %s, which is no longer in the cluster;"
            " the topic's id is %s",
            *(update.key, format_uuid(log_topic_id), format_uuid(update.topic_id)),
        )
        self.directory.mark_stray(update.key, partial(self._create_anew, update, respond))

    def _topic_id_of(self, log: Log) -> uuid.UUID:
        path = f"{log.directory}/{PARTITION_METADATA}"
        try:
            return load_partition_metadata(self.directory.files, path) or ZERO_UUID
        except CorruptFile as fault:
            logger.warning("%s: the log is assumed to be of the present topic of its name", fault)
            return ZERO_UUID

    def _open(self, log: Log, topic_id: uuid.UUID, update: StateUpdate, respond: Respond) -> None:
        if topic_id != update.topic_id != ZERO_UUID:
            path = f"{log.directory}/{PARTITION_METADATA}"
            topic_id = update.topic_id
            save = partial(save_partition_metadata, self.directory.files, path, topic_id)
            if not self._succeeds(save, respond):
                return
        log.configure(self.directory.context.settings_of(update.key.topic))
        self._add(log, topic_id, update, respond)

    def _create_anew(
        self, update: StateUpdate, respond: Respond, failure: BaseException | None
    ) -> None:
        """Create the log once no checkpoint contains an earlier one, if that could be removed."""
        if failure is None:
            self.directory.forget(update.key, partial(self._create, update, respond))
        else:
            respond(_error_of(failure))

    def _create(self, update: StateUpdate, respond: Respond, failure: BaseException | None) -> None:
        if failure is not None:
            respond(_error_of(failure))
            return
        settings = self.directory.context.settings_of(update.key.topic)
        create = partial(self.directory.create, update.key, update.topic_id, settings)
        if self._succeeds(create, respond):
            self._add(self.directory.logs[update.key], update.topic_id, update, respond)

    def _add(self, log: Log, topic_id: uuid.UUID, update: StateUpdate, respond: Respond) -> None:
        high_watermark = self._saved_high_watermarks.get(update.key, 0)
        partition = Partition(self._context, log, topic_id, high_watermark)
        self.partitions[update.key] = partition
        self._lead_or_follow(partition, update, respond)

    def _lead_or_follow(self, partition: Partition, update: StateUpdate, respond: Respond) -> None:
        was_leader, epoch_before = partition.is_leader, partition.leader_epoch
        if partition.topic_id == ZERO_UUID:
            partition.topic_id = update.topic_id
        partition.lead_or_follow(update.state, update.replicas, update.adding)
        self._fetchers.update(partition)
        if partition.is_leader:
            if not was_leader or partition.leader_epoch != epoch_before:
                _notify(self.on_leader, partition)
        elif was_leader:
            _notify(self.on_resign, partition)
        respond(Error.NONE)

    def _stop(self, stopped: Stopped, respond: Respond) -> None:
        """Stop leading the partition, and delete it if requested."""
        partition = self.partitions.get(stopped.key)
        error = stop_fault(stopped, _hosted(partition))
        if error:
            respond(error)
            return

        def removed(failure: BaseException | None) -> None:
            respond(_error_of(failure))

        if not stopped.is_delete:
            if partition is not None:
                self._resign(partition)
            respond(Error.NONE)
        elif partition is not None:
            self._unhost(partition, partial(self.directory.delete, stopped.key, removed))
        elif stopped.key in self.directory.logs:
            self._defer(partial(self.directory.delete, stopped.key, removed))
        else:  # an earlier attempt may have found no room to make it durable
            self._defer(partial(self.directory.forget, stopped.key, removed))

    def _unhost(self, partition: Partition, then: Callable[[], None]) -> None:
        """Stop hosting it; call `then`, which removes its log, once no append is in progress."""
        self._resign(partition)
        del self.partitions[partition.log.partition]
        if not partition.log.is_busy:  # else the flush in progress will serve its waiters
            self.directory.fail_flush_waiters(partition.log)
        partition.when_idle(partial(self._defer, then))

    def _resign(self, partition: Partition) -> None:
        """Stop leading it; it stays hosted."""
        was_leader = partition.is_leader
        partition.resign()
        self._fetchers.leave(partition.key)
        if was_leader:
            _notify(self.on_resign, partition)

    def _succeeds(self, work: Callable[[], object], respond: Respond) -> bool:
        """Do disk work inside a callback, where no caller would catch a failure; whether it
        succeeded."""
        try:
            work()
        except ApiError as error:
            logger.warning("a request of the controller failed: %s", error)
            respond(error.error)
            return False
        except DiskFailed as error:
            self.directory.context.on_failure(error)
            return False
        return True


def _notify(listeners: list[Listener], partition: Partition) -> None:
    for listener in listeners:
        listener(partition)


def _hosted(partition: Partition | None) -> Hosted | None:
    return None if partition is None else Hosted(partition.topic_id, partition.state)


def _error_of(failure: BaseException | None) -> Error:
    if failure is None:
        return Error.NONE
    return failure.error if isinstance(failure, ApiError) else Error.KAFKA_STORAGE_ERROR
