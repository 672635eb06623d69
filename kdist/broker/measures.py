"""What `/metrics` shows of a broker: all its metrics, and what it collects for them.

Most are counted where something happens, or read when they are scraped. For some this broker has to
go through much, or to ask others: those are collected by a scrape, unless it is done already or was
begun less than `EVERY_MS` ago, and the next scrape shows them. So a broker that nobody scrapes asks
for nothing, and no client's request waits for it.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from math import inf, nan

from kdist.broker.controller_access import ConnectClient
from kdist.broker.metadata_cache import MetadataCache
from kdist.broker.stored_security import StoredAcls
from kdist.client.cluster import in_topics
from kdist.errors import ApiError
from kdist.groups.coordinator import GroupCoordinator
from kdist.groups.lag import GroupLags, WorstLags
from kdist.metrics.broker import (
    AclMetrics,
    AuthenticationMetrics,
    AuthorizationMetrics,
    BrokerMetrics,
    BuildMetrics,
    NetworkMetrics,
    QuotaMetrics,
    RequestMetrics,
    TlsMetrics,
)
from kdist.metrics.controller import ControllerMetrics
from kdist.metrics.declare import Family
from kdist.metrics.exposition import Exposition
from kdist.metrics.groups import GroupLagMetrics, GroupMetrics
from kdist.metrics.replication import ReplicationMetrics
from kdist.metrics.storage import CleanerMetrics, RetentionMetrics, StorageMetrics
from kdist.model import NO_LEADER, Broker, TopicPartition
from kdist.network.client import Client
from kdist.protocol.list_offsets import (
    LATEST_TIMESTAMP,
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from kdist.replication.replicas import Replicas
from kdist.runtime.clock import Clock
from kdist.runtime.process import Process
from kdist.runtime.steps import CountedSteps, parted, take_slice
from kdist.runtime.tick_loop import turn_of
from kdist.storage.directory import LogDirectory
from kdist.zk import znodes
from kdist.zk.client import ZooKeeper
from kdist.zk.errors import ZooKeeperError
from kdist.zk.values import LockHolder

logger = logging.getLogger(__name__)

EVERY_MS = 10_000
SHOWN_MAX = 500  # groups' topics; metrics/groups.py says so too

_LAG_CHECK_S = 0.5
_TURNS_S = 120  # longer than any scraper's interval: however many there are, each sees every turn
_ASKED_MAX = 1_000  # partitions in a request, which its leader answers in one step
_OFFSETS_PER_STEP = 1_000
_LAG_US = 2
_VERSION = 6  # of ListOffsets, which every broker of a cluster with kdist's has


class Measures:
    """All metrics of one broker. Owner: the broker."""

    def __init__(self) -> None:
        self.broker = BrokerMetrics()
        self.requests = Family(RequestMetrics, "api")
        self.quotas = Family(QuotaMetrics, "user", "client", "quota")
        self.authorization = Family(AuthorizationMetrics, "operation", "resource")
        self.build = Family(BuildMetrics, "version", "release", "settings", "unit")
        self.network = NetworkMetrics()
        self.tls = Family(TlsMetrics, "listener")
        self.proofs = Family(AuthenticationMetrics, "listener", "mechanism")
        self.replication = ReplicationMetrics()
        self.groups = GroupMetrics()
        self.lags = Family(GroupLagMetrics, "group", "topic")
        self.retention = Family(RetentionMetrics, "topic")
        self.controller = ControllerMetrics()
        self.storage = StorageMetrics()
        self.cleaner = CleanerMetrics()
        self.exposition = Exposition()
        self.exposition.add_family(self.requests)
        self.exposition.add_family(self.proofs)
        self.exposition.add_family(self.tls)
        self.exposition.add_family(self.quotas)
        self.exposition.add_family(self.authorization)
        self.exposition.add_family(self.build)
        self.exposition.add_family(self.lags)
        self.exposition.add_family(self.retention)
        for group in (
            self.broker,
            self.network,
            self.replication,
            self.groups,
            self.controller,
            self.storage,
            self.cleaner,
        ):
            self.exposition.add(group)

    def watch(self, directory: LogDirectory) -> None:
        """Add the metrics that are computed from the log directory at each scrape."""
        storage, logs = self.storage, directory.logs
        settings, files = directory.context.settings, directory.files
        storage.partitions = lambda: len(logs)
        storage.segments = lambda: sum(len(log.segments) for log in logs.values())
        storage.size_bytes = lambda: sum(log.size for log in logs.values())
        storage.unflushed_records = lambda: sum(
            log.end_offset - log.recovery_point for log in logs.values()
        )
        storage.free_bytes = lambda: files.free_bytes(directory.path) - settings.reserved_bytes

    def watch_acls(self, acls: StoredAcls) -> None:
        """Add the metrics of the ACLs by which the broker decides."""
        found = AclMetrics()
        table = acls.table
        found.patterns = lambda: len(table.patterns())
        found.unreadable = lambda: len(table.unreadable)
        found.are_current = lambda: acls.is_current
        self.exposition.add(found)

    async def watch_lag(self) -> None:
        """Measure the event loop's lag and its longest turn periodically, until cancelled."""
        loop = asyncio.get_running_loop()
        now_s, turn = loop.time, turn_of(loop)
        longest_s = deque([0.0], maxlen=int(_TURNS_S / _LAG_CHECK_S))
        self.broker.loop_longest_turn_seconds = lambda: max(longest_s)
        while True:
            due_s = now_s() + _LAG_CHECK_S
            await asyncio.sleep(_LAG_CHECK_S)
            self.broker.loop_lag_seconds.observe(max(0.0, now_s() - due_s))
            longest_s.append(turn.take_longest_s())


class Collector:
    """Collects. Owner: the broker. A work raises only bugs and disk failures, which end it."""

    def __init__(self, process: Process, *works: Callable[[], Awaitable[None]]) -> None:
        self._process = process
        self._works = works
        self._begun_ms = -inf
        self._is_under_way = False

    def maybe_collect(self) -> None:
        """Begin to collect, if it is time."""
        now_ms = self._process.clock.monotonic_ns() / 1e6
        if not self._is_under_way and now_ms - self._begun_ms >= EVERY_MS:
            self._begun_ms = now_ms
            self._is_under_way = True
            self._process.start(self._collect(), "collecting metrics")

    async def _collect(self) -> None:
        try:
            for work in self._works:
                await work()
        finally:
            self._is_under_way = False


class LaggingGroups:
    """How far the groups that this broker coordinates are behind. Owner: the broker.

    The partitions' leaders are asked for their ends, one ListOffsets for each 1,000 partitions of
    one leader. What a leader does not answer keeps its last known end. Work on the loop is done in
    slices, so that requests of clients come in between, and groups may come and go.
    """

    def __init__(
        self,
        clock: Clock,
        coordinator: GroupCoordinator,
        replicas: Replicas,
        cache: MetadataCache,
        find: Callable[[int], Broker | None],
        connect: ConnectClient,
        measures: Measures,
    ) -> None:
        """`find` says where another broker is asked, and `connect` connects to it."""
        self._clock = clock
        self._coordinator = coordinator
        self._replicas = replicas
        self._cache = cache
        self._find = find
        self._connect = connect
        self._metrics, self._shown = measures.groups, measures.lags
        self._lags = GroupLags()

    async def collect(self) -> None:
        """Ask for the ends, and show the lags."""
        wanted: dict[TopicPartition, None] = {}  # a set would have no order that a seed repeats
        await _in_slices(self._gather(wanted))
        await _in_slices(self._lags.keep_only(wanted))
        asked: dict[int, list[TopicPartition]] = {}
        await _in_slices(self._note_own(wanted, asked))
        await asyncio.gather(*(self._ask(*each) for each in asked.items()))
        lags = WorstLags(SHOWN_MAX)
        await _in_slices(self._judge(lags))
        self._show(lags)

    def _gather(self, wanted: dict[TopicPartition, None]) -> CountedSteps:
        """Find the partitions that groups have committed offsets for."""
        for group in self._coordinator.groups():
            for some in parted(group.offsets.all(), _OFFSETS_PER_STEP):
                wanted.update(dict.fromkeys(some))
                yield 1 + len(some) // 5

    def _note_own(
        self, wanted: Iterable[TopicPartition], asked: dict[int, list[TopicPartition]]
    ) -> CountedSteps:
        """Take in the ends of partitions led here; the others are asked of their leaders."""
        for each in wanted:
            found = self._replicas.partitions.get(each)
            if found is not None and found.is_leader:
                self._lags.note({each: found.high_watermark}, self._clock.now_ms())
            elif (leader := self._cache.leader_of(each)) != NO_LEADER:
                asked.setdefault(leader, []).append(each)
            yield _LAG_US

    def _judge(self, lags: WorstLags) -> CountedSteps:
        for group in self._coordinator.groups():
            yield from self._lags.of(group, self._clock.now_ms(), lags)

    async def _ask(self, leader: int, partitions: list[TopicPartition]) -> None:
        address = self._find(leader)
        if address is None:
            return
        try:
            client = await self._connect(address.host, address.port)
            try:
                for some in parted(partitions, _ASKED_MAX):
                    await self._ask_some(client, some)
            finally:
                client.close()
        except ApiError as error:
            logger.debug("broker %d does not say where its logs end: %s", leader, error)

    async def _ask_some(self, client: Client, partitions: list[TopicPartition]) -> None:
        topics = in_topics(
            ListOffsetsTopic,
            partitions,
            lambda key: ListOffsetsPartition(
                partition_index=key.partition, timestamp=LATEST_TIMESTAMP
            ),
        )
        answer = await client.send(ListOffsetsRequest(topics=topics), _VERSION)
        ends = {
            TopicPartition(topic.name, each.partition_index): each.offset
            for topic in answer.topics
            for each in topic.partitions
            if not each.error_code
        }
        self._lags.note(ends, self._clock.now_ms())

    def _show(self, lags: WorstLags) -> None:
        self._shown.clear()
        for group_id, topic, lag in lags.worst():
            group = self._shown[group_id, topic]
            group.lag_records, group.lag_seconds = lag
        self._metrics.hidden_lags = lags.hidden


async def _in_slices(steps: CountedSteps) -> None:
    """Do all of the work, with a turn of the loop after each slice."""
    while take_slice(steps):
        await asyncio.sleep(0)


class RollLockWatch:
    """For how long the lock of whatever stops brokers has been held. Owner: the broker.

    It gives the controller's metrics their readings of the lock.
    """

    def __init__(
        self,
        zk: ZooKeeper,
        clock: Clock,
        is_controller: Callable[[], bool],
        metrics: ControllerMetrics,
    ) -> None:
        self._zk = zk
        self._clock = clock
        self._is_controller = is_controller
        self._is_known = False
        self._holder: LockHolder | None = None
        metrics.roll_lock_seconds = self._held_s
        metrics.roll_lock_overdue_seconds = self._overdue_s

    async def collect(self) -> None:
        """Read who holds the lock, if this broker is the controller."""
        self._is_known = False
        if self._is_controller():
            try:
                self._holder = await znodes.LOCK.read(self._zk, znodes.ROLL_LOCK)
                self._is_known = True
            except ZooKeeperError as error:
                logger.debug("the lock of rolls cannot be read: %s", error)

    def _held_s(self) -> float:
        return self._since_s(None if self._holder is None else self._holder.timestamp_ms)

    def _overdue_s(self) -> float:
        return self._since_s(None if self._holder is None else self._holder.until_ms)

    def _since_s(self, time_ms: int | None) -> float:
        """Seconds since then; 0 before then, or if there is no such time."""
        if not self._is_known:
            return nan
        return 0.0 if time_ms is None else max(0, self._clock.now_ms() - time_ms) / 1000


async def collect_retention(replicas: Replicas, shown: Family[RetentionMetrics]) -> None:
    """For how long topics keep their records, so that one sees whose readers are too late.

    Each topic once in a cluster: by the leader of its partition 0.
    """
    shown.clear()
    for (topic, number), partition in replicas.partitions.items():
        if number == 0 and partition.is_leader:
            settings = partition.log.settings
            if "delete" in settings.cleanup_policy and settings.retention_ms >= 0:
                shown[topic,].retention_seconds = settings.retention_ms / 1000
