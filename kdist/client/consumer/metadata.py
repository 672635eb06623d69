"""A consumer's metadata: topics' partition counts, and their leaders and leader epochs.

It is refreshed every `metadata_max_age_ms`, and soon after it proves to be stale.
"""

from __future__ import annotations

import asyncio
import logging
import re
import uuid
from collections.abc import Callable, Iterable
from typing import NamedTuple

from kdist.client.cluster import NoBroker, raise_for
from kdist.client.consumer.context import ConsumerContext, may_pass
from kdist.errors import ApiError, Error
from kdist.model import NO_EPOCH, NO_LEADER, TopicPartition
from kdist.protocol.metadata import MetadataResponse

logger = logging.getLogger(__name__)


class Leader(NamedTuple):
    """A partition's leader and leader epoch."""

    id: int = NO_LEADER
    epoch: int = NO_EPOCH


_UNKNOWN = Leader()
_NO_ID = uuid.UUID(int=0)
_PERMANENT = frozenset((Error.INVALID_TOPIC_EXCEPTION, Error.TOPIC_AUTHORIZATION_FAILED))
_CALM_S = 5.0  # who has not looked for so long looks again soon
_REFRESH_UNKNOWN_S = 1.0  # a topic that is not there yet is looked for this often


class Metadata:
    """Metadata of the topics in `wanted`, or of all that match `pattern`. Owner: the loop."""

    def __init__(
        self,
        context: ConsumerContext,
        on_change: Callable[[], None],
        on_recreated: Callable[[str], None],
    ) -> None:
        self.wanted: set[str] = set()
        self.counted: set[str] = set()  # the whole group's topics, while we lead it
        self.pattern: re.Pattern[str] | None = None
        self.counts: dict[str, int] = {}
        self.matched: frozenset[str] = frozenset()
        self._context = context
        self._on_change = on_change
        self._on_recreated = on_recreated
        self._leaders: dict[TopicPartition, Leader] = {}
        self._ids: dict[str, uuid.UUID] = {}  # of those that exist, or did
        self._former_ids: set[uuid.UUID] = set()  # of topics whose names others have since
        self.missing_since_s: dict[str, float] = {}  # topics that do not exist, since when
        self._is_stale = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Look up metadata now, and keep it fresh from then on."""
        if self._task is None:
            self._task = self._context.loop.create_task(self._keep_fresh())
        self.refresh()

    def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            self._task = None

    def refresh(self) -> None:
        """Look metadata up again soon, as it has proved stale."""
        self._is_stale.set()

    def leader(self, partition: TopicPartition) -> Leader:
        return self._leaders.get(partition, _UNKNOWN)

    def forget_leader(self, partition: TopicPartition) -> None:
        """Name none until the next look: who was named does not have the partition."""
        self._leaders.pop(partition, None)

    async def count(self, topics: Iterable[str]) -> dict[str, int]:
        """How many partitions each of these has; those that do not exist are left out."""
        names = set(topics)
        if names:
            await self._context.retried(lambda: self._look_up(names))
        self.counted = names
        if not names <= self.counts.keys():
            self.refresh()  # which repeats until the missing ones exist
        return {name: self.counts[name] for name in names if name in self.counts}

    async def _keep_fresh(self) -> None:
        hurries = 0  # how often in a row it was looked up early
        while True:
            looked_s = self._context.now_s()
            names = None if self.pattern is not None else self.wanted | self.counted
            for name in self.missing_since_s.keys() - self.wanted - self.counted:
                del self.missing_since_s[name]  # nobody looks whether it is there by now
            wait_s = self._context.settings.metadata_max_age_ms / 1000
            try:
                self._is_stale.clear()
                if names is None or names:
                    await self._look_up(names)
                if any(name not in self.counts for name in self.wanted | self.counted):
                    wait_s = min(wait_s, _REFRESH_UNKNOWN_S)
            except (ApiError, NoBroker) as error:
                if not may_pass(error) or not self._context.cluster.brokers:
                    self._context.report(error)
                self.refresh()
            try:
                async with asyncio.timeout(wait_s):
                    await self._is_stale.wait()
            except TimeoutError:
                hurries = 0  # a regular refresh is due
            else:
                # Later and later: else one partition without a leader would have each of its
                # readers ask for ever, as fast as answers come.
                is_calm = looked_s + _CALM_S < self._context.now_s()
                hurries = 0 if is_calm else hurries + 1
                await self._context.back_off(hurries)

    async def _look_up(self, names: set[str] | None) -> None:
        answer = await self._context.cluster.metadata(None if names is None else sorted(names))
        self._note(answer)
        if names is None:
            self._match(answer)
        self._on_change()

    def _note(self, answer: MetadataResponse) -> None:
        for topic in answer.topics:
            assert topic.name is not None, "topics were asked for by name"
            if topic.topic_id in self._former_ids:
                continue  # from a broker with stale metadata
            if Error.of(topic.error_code) in _PERMANENT and self.pattern is None:
                raise_for(topic.error_code, f"topic {topic.name}")
            if topic.error_code == Error.UNKNOWN_TOPIC_OR_PARTITION:
                self.counts.pop(topic.name, None)
                self._note_missing(topic.name)
            elif not topic.error_code:
                self.counts[topic.name] = len(topic.partitions)
                self.missing_since_s.pop(topic.name, None)
            is_same = self._note_id(topic.name, topic.topic_id)
            if not is_same:  # it may have been recreated with fewer partitions
                for gone in [key for key in self._leaders if key.topic == topic.name]:
                    del self._leaders[gone]
            for each in topic.partitions:
                key = TopicPartition(topic.name, each.partition_index)
                # An older epoch comes from a broker with stale metadata, unless the topic has
                # been recreated, which starts its epochs again.
                if not is_same or each.leader_epoch >= self.leader(key).epoch:
                    self._leaders[key] = Leader(each.leader_id, each.leader_epoch)

    def _note_id(self, name: str, topic_id: uuid.UUID) -> bool:
        """Whether it is the same topic as before; without an id (before 2.8) one cannot know."""
        before = self._ids.get(name, _NO_ID)
        if topic_id in (before, _NO_ID):
            return topic_id == before
        self._ids[name] = topic_id
        if before != _NO_ID:
            self._former_ids.add(before)
            self._on_recreated(name)
        return False

    def _note_missing(self, name: str) -> None:
        """Log a missing topic, once: the name may be misspelt, and polls would return nothing."""
        if name not in self.missing_since_s:
            self.missing_since_s[name] = self._context.now_s()
            logger.warning("topic %s does not exist: waiting for it", name)

    def _match(self, answer: MetadataResponse) -> None:
        """Match `pattern` against all topics that exist, which the answer lists."""
        for name in self.counts.keys() - {topic.name for topic in answer.topics}:
            del self.counts[name]
        if self.pattern is not None:
            found = {topic.name or "" for topic in answer.topics if not topic.is_internal}
            self.matched = frozenset(name for name in found if self.pattern.fullmatch(name))
