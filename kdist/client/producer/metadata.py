"""What the producer knows of topics: a queue for each partition, and which one is sticky now.

`Metadata` requests metadata in the background and updates leaders. Where brokers create topics
automatically, a metadata request creates a missing topic. So only topics in use are requested:
asking for every topic ever sent to would recreate those that were deleted. Partitions are never
removed.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from kdist.client.cluster import Address, Cluster, NoBroker
from kdist.client.producer.batch import PartitionQueue, ProducerBatch
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
        self.turn = 0  # the round-robin counter
        self.error: Error | None = None  # from the latest metadata
        self._batches_seen = 0

    @property
    def is_busy(self) -> bool:
        return not all(queue.is_empty for queue in self.queues)

    def was_used(self) -> bool:
        """Whether batches were opened since the last call of this, or are not done yet."""
        before, self._batches_seen = (
            self._batches_seen,
            sum(queue.last_number for queue in self.queues),
        )
        return self._batches_seen != before or self.is_busy

    def stick(self, rng: random.Random) -> PartitionQueue:
        """Switch to another sticky partition, one with a leader if there is any (KIP-480)."""
        led = [queue for queue in self.queues if queue.leader != NO_LEADER] or self.queues
        if len(led) > 1 and self.sticky in led:
            led = [queue for queue in led if queue is not self.sticky]
        self.sticky = led[0] if len(led) == 1 else rng.choice(led)
        return self.sticky


class Metadata:
    """Looks up topics' metadata. Owner: the loop."""

    def __init__(
        self,
        cluster: Cluster,
        known: dict[str, Topic],
        hurry: Callable[[ProducerBatch], None],
        on_change: Callable[[], None],
        check_waiter: Callable[[], None] = lambda: None,
    ) -> None:
        self.addresses: dict[int, Address] = {}
        self.last_error: ApiError | NoBroker | None = None
        self._cluster = cluster
        self._known = known
        self._wanted: set[str] = set()
        self._awaited: Counter[str] = Counter()
        self._hurry = hurry
        self._check_waiter = check_waiter
        self._on_change = on_change
        self._asking: asyncio.Task[None] | None = None
        self._changed: asyncio.Future[None] | None = None
        self._answered: frozenset[str] = frozenset()  # the topics of the last answer
        self._answered_at_s = -_PAUSE_S

    def want(self, names: Iterable[str]) -> None:
        """Request metadata for these soon; `on_change` is called on each answer."""
        self._wanted.update(names)
        if self._wanted and (self._asking is None or self._asking.done()):
            self._asking = asyncio.get_running_loop().create_task(self._ask())

    def refresh(self) -> None:
        """Request metadata for the topics in use."""
        self.want([topic.name for topic in self._known.values() if topic.was_used()])

    @contextmanager
    def awaited(self, name: str) -> Iterator[None]:
        """Within this context a caller waits for the topic: it is requested until it exists."""
        self._awaited[name] += 1
        try:
            self.want((name,))
            yield
        finally:
            self._awaited -= Counter((name,))  # drops the name when its count is 0

    def _is_needed(self, name: str) -> bool:
        """Whether to go on requesting a topic that is missing or has partitions without leaders."""
        topic = self._known.get(name)
        if topic is None or topic.error is not None:
            return self._awaited[name] > 0 or (topic is not None and topic.is_busy)
        return True

    async def changed(self) -> None:
        """Wait for the next metadata answer or failure, or for `close`."""
        if self._changed is None or self._changed.done():
            self._changed = asyncio.get_running_loop().create_future()
        await asyncio.shield(self._changed)

    def close(self) -> None:
        """Send no more requests; wake those who wait, so that they see the producer closed."""
        if self._asking is not None:
            self._asking.cancel()
        self._tell_changed()

    def _tell_changed(self) -> None:
        if self._changed is not None and not self._changed.done():
            self._changed.set_result(None)

    async def _ask(self) -> None:
        """Request metadata until every wanted topic has leaders, cannot exist, or is not needed."""
        while self._wanted:
            await self._pause()
            names = sorted(self._wanted)
            try:
                answer = await self._metadata(names)
            except (ApiError, NoBroker) as error:
                self.last_error = error
            else:
                self.last_error = None
                self._answered = frozenset(names)
                self._answered_at_s = asyncio.get_running_loop().time()
                self._wanted.difference_update(
                    [topic.name for topic in answer.topics if topic.name and self._update(topic)]
                )
                self._on_change()
            self._tell_changed()
            if self._wanted:
                await asyncio.sleep(_PAUSE_S)
                self._wanted = {name for name in self._wanted if self._is_needed(name)}

    async def _pause(self) -> None:
        """Pause rather than repeat the last request at once.

        A topic whose leader is unreachable, or missing from the answer's brokers, is wanted again
        as soon as an answer comes.
        """
        left_s = self._answered_at_s + _PAUSE_S - asyncio.get_running_loop().time()
        if left_s > 0 and self._wanted <= self._answered:
            await asyncio.sleep(left_s)

    async def _metadata(self, names: list[str]) -> MetadataResponse:
        request = MetadataRequest(
            topics=[MetadataTopic(name=name) for name in names], allow_auto_topic_creation=True
        )
        answer: MetadataResponse = await self._cluster.ask_any(request)
        self.addresses = {each.node_id: Address(each.host, each.port) for each in answer.brokers}
        self._cluster.brokers = self.addresses
        return answer

    def _update(self, result: MetadataTopicResult) -> bool:
        """Store a topic's metadata. False if it has to be requested again: a leader is missing,
        or the error is retriable.
        """
        assert result.name is not None, "topics were asked for by name"
        topic = self._known.get(result.name)
        if topic is None:
            topic = self._known[result.name] = Topic(result.name)
        topic.error = Error.of(result.error_code) if result.error_code else None
        if topic.error is not None:
            return not topic.error.retriable
        self._update_partitions(topic, result.partitions)
        return all(queue.leader != NO_LEADER for queue in topic.queues)

    def _update_partitions(self, topic: Topic, partitions: list[Any]) -> None:
        leaders = {each.partition_index: each.leader_id for each in partitions}
        for queue in topic.queues:
            queue.leader = leaders.get(queue.partition, NO_LEADER)
        new = []
        for number in range(len(topic.queues), len(leaders)):
            leader = leaders.get(number, NO_LEADER)
            who = self._hurry, self._check_waiter
            new.append(PartitionQueue(topic.name, number, leader, *who))
        if new:
            topic.queues += new  # all at once: an interim count would map keys to wrong partitions
