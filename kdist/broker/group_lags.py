"""How far the groups that this broker coordinates are behind, for `/metrics`.

The partitions' leaders are asked for their ends, one ListOffsets for each 1,000 partitions of one
leader. What a leader does not answer keeps its last known end. Work on the loop is cut into steps,
so that requests of clients come in between.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable

from kdist.broker.controller_access import ConnectClient
from kdist.broker.measures import Measures
from kdist.broker.metadata_cache import MetadataCache
from kdist.client.cluster import by_leader, in_topics
from kdist.errors import ApiError
from kdist.groups.coordinator import GroupCoordinator
from kdist.groups.group import Group
from kdist.groups.lag import GroupLags, Lag, worst
from kdist.model import Broker, TopicPartition
from kdist.network.client import Client
from kdist.protocol.list_offsets import (
    LATEST_TIMESTAMP,
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from kdist.replication.replicas import Replicas
from kdist.runtime.clock import Clock

logger = logging.getLogger(__name__)

SHOWN_MAX = 500  # groups' topics; metrics/groups.py says so too

_ASKED_MAX = 1_000  # partitions in a request, which its leader answers in one step
_GROUPS_PER_STEP = 50
_PARTITIONS_PER_STEP = 500
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
        wanted: set[TopicPartition] = set()
        async for group in self._groups():
            wanted.update(group.offsets)
        self._lags.keep_only(wanted)
        elsewhere = await self._note_own(wanted)
        leaders = {each: self._cache.leader_of(each) for each in elsewhere}
        asked = by_leader(leaders, elsewhere)
        await asyncio.gather(*(self._ask(*each) for each in asked.items()))
        lags: dict[tuple[str, str], Lag] = {}
        async for group in self._groups():
            for topic, lag in self._lags.of(group, self._clock.now_ms()).items():
                lags[group.group_id, topic] = lag
        self._show(lags)

    async def _groups(self) -> AsyncIterator[Group]:
        for number, group in enumerate(self._coordinator.groups()):
            if number % _GROUPS_PER_STEP == 0:
                await asyncio.sleep(0)
            yield group

    async def _note_own(self, wanted: set[TopicPartition]) -> set[TopicPartition]:
        """Take in the ends of partitions led here; returns the others."""
        elsewhere = set()
        for number, each in enumerate(wanted):
            if number % _PARTITIONS_PER_STEP == 0:
                await asyncio.sleep(0)
            found = self._replicas.partitions.get(each)
            if found is not None and found.is_leader:
                self._lags.note({each: found.high_watermark}, self._clock.now_ms())
            else:
                elsewhere.add(each)
        return elsewhere

    async def _ask(self, leader: int, partitions: list[TopicPartition]) -> None:
        address = self._find(leader)
        if address is None:
            return
        try:
            client = await self._connect(address.host, address.port)
            try:
                for first in range(0, len(partitions), _ASKED_MAX):
                    await self._ask_some(client, partitions[first : first + _ASKED_MAX])
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

    def _show(self, lags: dict[tuple[str, str], Lag]) -> None:
        self._shown.clear()
        for key in worst(lags, SHOWN_MAX):
            group = self._shown[key]
            group.lag_records, group.lag_seconds = lags[key]
        self._metrics.hidden_lags = len(lags) - len(self._shown)
