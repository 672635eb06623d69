"""What the producer knows of topics: their partitions' queues, and which is sticky now.

`Topics` asks the cluster, in the background, and moves leaders; a topic that is not there is
created by the broker, if that is its setting. So one is asked for only while it is used: who asked
for all that it ever sent to would bring back those that were deleted. Partitions are never taken
away.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from kdist.client.cluster import Address, Cluster, NoBroker
from kdist.client.producer.batch import Batch
from kdist.client.producer.queue import PartitionQueue
from kdist.errors import ApiError, Error
from kdist.model import NO_LEADER
from kdist.protocol.metadata import (
    MetadataRequest,
    MetadataResponse,
    MetadataTopic,
    MetadataTopicResult,
)

_PAUSE_S = 0.1


class Topic:
    """One topic. Owner: the loop; others read it under the accumulator's lock."""

    __slots__ = ("_batches_seen", "error", "name", "queues", "sticky", "turn")

    def __init__(self, name: str) -> None:
        self.name = name
        self.queues: list[PartitionQueue] = []
        self.sticky: PartitionQueue | None = None
        self.turn = 0  # of round robin
        self.error: Error | None = None  # what metadata said last
        self._batches_seen = 0

    @property
    def is_busy(self) -> bool:
        """Whether there is something to send, or to be acknowledged."""
        return not all(queue.is_empty for queue in self.queues)

    def was_used(self) -> bool:
        """Whether anything was sent since this was asked the last time, or still is."""
        before, self._batches_seen = (
            self._batches_seen,
            sum(queue.last_number for queue in self.queues),
        )
        return self._batches_seen != before or self.is_busy

    def stick(self, chance: random.Random) -> PartitionQueue:
        """Another partition for records without a key, with a leader if any has one (KIP-480)."""
        led = [queue for queue in self.queues if queue.leader != NO_LEADER] or self.queues
        if len(led) > 1 and self.sticky in led:
            led = [queue for queue in led if queue is not self.sticky]
        self.sticky = led[0] if len(led) == 1 else chance.choice(led)
        return self.sticky


class Topics:
    """Owner: the loop."""

    def __init__(
        self,
        cluster: Cluster,
        known: dict[str, Topic],
        hurry: Callable[[Batch], None],
        on_change: Callable[[], None],
    ) -> None:
        self.addresses: dict[int, Address] = {}
        self.last_error: ApiError | NoBroker | None = None
        self._cluster = cluster
        self._known = known
        self._wanted: set[str] = set()
        self._awaited: Counter[str] = Counter()
        self._hurry = hurry
        self._on_change = on_change
        self._asking: asyncio.Task[None] | None = None
        self._changed: asyncio.Future[None] | None = None
        self._told: frozenset[str] = frozenset()  # what the last answer was about
        self._told_at_s = -_PAUSE_S

    def want(self, names: Iterable[str]) -> None:
        """Ask for these soon; `on_change` is called when something came."""
        self._wanted.update(names)
        if self._wanted and (self._asking is None or self._asking.done()):
            self._asking = asyncio.get_running_loop().create_task(self._ask())

    def refresh(self) -> None:
        """Ask for those that are used."""
        self.want([topic.name for topic in self._known.values() if topic.was_used()])

    @contextmanager
    def awaited(self, name: str) -> Iterator[None]:
        """Meanwhile somebody waits for this topic: it is asked for again until it is there."""
        self._awaited[name] += 1
        try:
            self.want((name,))
            yield
        finally:
            self._awaited -= Counter((name,))  # who is awaited no more leaves it

    def _is_needed(self, name: str) -> bool:
        """Whether to ask for a topic that is not there, or for leaders that it has not."""
        topic = self._known.get(name)
        if topic is None or topic.error is not None:
            return self._awaited[name] > 0 or (topic is not None and topic.is_busy)
        return True

    async def changed(self) -> None:
        """Until the next answer, or failure, has come."""
        if self._changed is None or self._changed.done():
            self._changed = asyncio.get_running_loop().create_future()
        await asyncio.shield(self._changed)

    def close(self) -> None:
        """Ask no more; who waits looks whether it was closed."""
        if self._asking is not None:
            self._asking.cancel()
        self._tell_changed()

    def _tell_changed(self) -> None:
        if self._changed is not None and not self._changed.done():
            self._changed.set_result(None)

    async def _ask(self) -> None:
        """Until all that is wanted has leaders, or cannot be, or nobody needs it any more."""
        while self._wanted:
            await self._pause()
            names = sorted(self._wanted)
            try:
                answer = await self._metadata(names)
            except (ApiError, NoBroker) as error:
                self.last_error = error
            else:
                self.last_error = None
                self._told, self._told_at_s = frozenset(names), asyncio.get_running_loop().time()
                self._wanted.difference_update(
                    [topic.name for topic in answer.topics if topic.name and self._take(topic)]
                )
                self._on_change()
            self._tell_changed()
            if self._wanted:
                await asyncio.sleep(_PAUSE_S)
                self._wanted = {name for name in self._wanted if self._is_needed(name)}

    async def _pause(self) -> None:
        """Not the same again at once: whose leader is being connected to, or is no broker that the
        answer names, is wanted again as soon as the answer is there.
        """
        left_s = self._told_at_s + _PAUSE_S - asyncio.get_running_loop().time()
        if left_s > 0 and self._wanted <= self._told:
            await asyncio.sleep(left_s)

    async def _metadata(self, names: list[str]) -> MetadataResponse:
        request = MetadataRequest(
            topics=[MetadataTopic(name=name) for name in names], allow_auto_topic_creation=True
        )
        answer: MetadataResponse = await self._cluster.ask_any(request)
        self.addresses = {each.node_id: Address(each.host, each.port) for each in answer.brokers}
        self._cluster.brokers = self.addresses
        return answer

    def _take(self, told: MetadataTopicResult) -> bool:
        """Keep what was told; whether it is enough: no error that may pass, and all leaders."""
        assert told.name is not None, "topics were asked for by name"
        topic = self._known.get(told.name)
        if topic is None:
            topic = self._known[told.name] = Topic(told.name)
        topic.error = Error.of(told.error_code) if told.error_code else None
        if topic.error is not None:
            return not topic.error.retriable
        self._take_partitions(topic, told.partitions)
        return all(queue.leader != NO_LEADER for queue in topic.queues)

    def _take_partitions(self, topic: Topic, partitions: list[Any]) -> None:
        leaders = {each.partition_index: each.leader_id for each in partitions}
        for queue in topic.queues:
            queue.leader = leaders.get(queue.partition, NO_LEADER)
        new = []
        for number in range(len(topic.queues), len(leaders)):
            leader = leaders.get(number, NO_LEADER)
            new.append(PartitionQueue(topic.name, number, leader, self._hurry))
        if new:
            topic.queues += new  # at once: counts in between would put keys where none belongs
