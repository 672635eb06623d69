"""How far the groups that this broker coordinates are behind, for `/metrics`.

The partitions' leaders are asked for their ends, one ListOffsets for each 1,000 partitions of one
leader. What a leader does not answer keeps its last known end. Work on the loop is done in slices,
so that requests of clients come in between, and groups may come and go.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable

from kdist.broker.controller_access import ConnectClient
from kdist.broker.measures import Measures
from kdist.broker.metadata_cache import MetadataCache
from kdist.client.cluster import in_topics
from kdist.errors import ApiError
from kdist.groups.coordinator import GroupCoordinator
from kdist.groups.lag import GroupLags, WorstLags
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
from kdist.runtime.slices import Steps, in_slices, parted

logger = logging.getLogger(__name__)

SHOWN_MAX = 500  # groups' topics; metrics/groups.py says so too

_ASKED_MAX = 1_000  # partitions in a request, which its leader answers in one step
_OFFSETS_PER_STEP = 1_000
_LAG_US = 2
_VERSION = 6  # of ListOffsets, which every broker of a cluster with kdist's has


class LaggingGroups:
    """Owner: the broker."""

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

    async def look(self) -> None:
        """Ask for the ends, and show the lags."""
        wanted: dict[TopicPartition, None] = {}  # a set would have no order that a seed repeats
        await in_slices(self._gather(wanted))
        await in_slices(self._lags.keep_only(wanted))
        asked: dict[int, list[TopicPartition]] = {}
        await in_slices(self._note_own(wanted, asked))
        await asyncio.gather(*(self._ask(*each) for each in asked.items()))
        lags = WorstLags(SHOWN_MAX)
        await in_slices(self._judge(lags))
        self._show(lags)

    def _gather(self, wanted: dict[TopicPartition, None]) -> Steps:
        """Find the partitions that groups have committed offsets for."""
        for group in self._coordinator.groups():
            for some in parted(group.offsets.all(), _OFFSETS_PER_STEP):
                wanted.update(dict.fromkeys(some))
                yield 1 + len(some) // 5

    def _note_own(
        self, wanted: Iterable[TopicPartition], asked: dict[int, list[TopicPartition]]
    ) -> Steps:
        """Take in the ends of partitions led here; the others are asked of their leaders."""
        for each in wanted:
            found = self._replicas.partitions.get(each)
            if found is not None and found.is_leader:
                self._lags.note({each: found.high_watermark}, self._clock.now_ms())
            elif (leader := self._cache.leader_of(each)) != NO_LEADER:
                asked.setdefault(leader, []).append(each)
            yield _LAG_US

    def _judge(self, lags: WorstLags) -> Steps:
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
