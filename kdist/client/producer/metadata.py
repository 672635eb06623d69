"""Looks up topics' leaders and partition counts for the producer, in the background.

Where brokers create topics automatically, a metadata request creates a missing topic. So only
topics in use are requested: asking for every topic ever sent to would recreate those that were
deleted. What an answer lacks is asked for again at growing intervals, and only while records or
callers wait for it: else one failed disk would have every producer ask for ever.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

from kdist.client.cluster import Cluster, NoBroker
from kdist.client.producer.batch import PartitionQueue
from kdist.client.producer.topic import Topic
from kdist.errors import ApiError, Error
from kdist.model import NO_LEADER, ZERO_UUID
from kdist.protocol.metadata import MetadataTopicResult

_CALM_S = 1.0  # who is not wanted for so long is asked for at once, the next time


class _Asked(NamedTuple):
    """How many times in a row a topic was asked for, and when it may be again."""

    times: int
    again_s: float


class Metadata:
    """Looks up topics' metadata. Owner: the loop.

    `pause_s`: how long to wait after a topic was asked for so many times in a row. `make_queue` is
    given a topic's name, the number of a partition, and its leader. `shrink` is called with a topic
    and its partition count, while there are queues beyond that.
    """

    def __init__(
        self,
        cluster: Cluster,
        known: dict[str, Topic],
        pause_s: Callable[[int], float],
        make_queue: Callable[[str, int, int], PartitionQueue],
        shrink: Callable[[Topic, int], None],
        on_change: Callable[[], None],
    ) -> None:
        self.last_error: ApiError | NoBroker | None = None
        self.cluster = cluster
        self._known = known
        self._pause_s = pause_s
        self._shrink = shrink
        self._on_change = on_change
        self._make_queue = make_queue
        self._wanted: set[str] = set()
        self._lacking: set[str] = set()  # what they lack was in no answer: to be asked for again
        self._asked: dict[str, _Asked] = {}
        self._awaited: Counter[str] = Counter()
        self._news = asyncio.Event()  # set by `want`
        self._asking: asyncio.Task[None] | None = None
        self._changed: asyncio.Future[None] | None = None

    def want(self, names: Iterable[str]) -> None:
        """Request metadata for these soon; `on_change` is called on each answer."""
        self._wanted.update(names)
        self._news.set()
        if self._wanted and (self._asking is None or self._asking.done()):
            self._asking = asyncio.get_running_loop().create_task(self._ask())

    def refresh(self) -> None:
        """Request metadata for the topics in use."""
        now_s = asyncio.get_running_loop().time()
        self.want([topic.name for topic in self._known.values() if topic.was_used(now_s)])

    def find_idle(self, idle_s: float) -> list[Topic]:
        """The topics that were not in use at any `refresh` for so long, and nobody waits for."""
        since_s = asyncio.get_running_loop().time() - idle_s
        return [
            topic
            for topic in self._known.values()
            if topic.used_s is not None
            and topic.used_s <= since_s
            and not self._awaited[topic.name]
        ]

    def forget(self, name: str) -> None:
        """Note that a topic is known no more."""
        self._asked.pop(name, None)

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
        """Whether to ask again for a topic that is missing or has partitions without leaders."""
        topic = self._known.get(name)
        if topic is None or topic.error is not None or not topic.queues:
            return self._awaited[name] > 0 or (topic is not None and topic.is_busy)
        return topic.is_stranded

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
        now_s = asyncio.get_running_loop().time
        while names := self._wanted | self._lacking:
            at_s = now_s()
            due_s = {name: self._asked[name].again_s for name in names & self._asked.keys()}
            due = sorted(name for name in names if due_s.get(name, at_s) <= at_s)
            if due:
                await self._ask_for(due)
                continue
            self._news.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout_at(min(due_s.values())):
                    await self._news.wait()
            self._lacking = {name for name in self._lacking if self._is_needed(name)}

    async def _ask_for(self, names: list[str]) -> None:
        at_s = asyncio.get_running_loop().time()
        for name in names:
            before = self._asked.get(name)
            is_calm = before is None or before.again_s + _CALM_S < at_s
            times = 0 if before is None or is_calm else before.times + 1
            self._asked[name] = _Asked(times, at_s + self._pause_s(times))
        self._wanted.difference_update(names)
        self._lacking.update(names)
        try:
            answer = await self.cluster.look_up(names, may_create=True)
        except (ApiError, NoBroker) as error:
            self.last_error = error
        else:
            self.last_error = None
            self._lacking.difference_update(
                [topic.name for topic in answer.topics if topic.name and self._update(topic)]
            )
            self._on_change()
        self._tell_changed()

    def _update(self, result: MetadataTopicResult) -> bool:
        """Store a topic's metadata. False if it has to be requested again: a leader is missing,
        or the error is retriable.
        """
        assert result.name is not None, "topics were asked for by name"
        topic = self._known.get(result.name)
        if topic is None:
            topic = self._known[result.name] = Topic(result.name)
        topic.error = Error.of(result.error_code) if result.error_code else None
        if topic.error is not Error.UNKNOWN_TOPIC_OR_PARTITION:
            topic.missing_since_s = None
        elif topic.missing_since_s is None:
            topic.missing_since_s = asyncio.get_running_loop().time()
        if topic.error is not None:
            return not topic.error.retriable
        self._update_partitions(topic, result)
        return all(queue.leader != NO_LEADER for queue in topic.queues)

    def _update_partitions(self, topic: Topic, result: MetadataTopicResult) -> None:
        leaders = {each.partition_index: each.leader_id for each in result.partitions}
        count = len(leaders)
        # A topic never loses partitions: with the same id, the broker has not heard of all yet.
        may_shrink = result.topic_id != topic.id or result.topic_id == ZERO_UUID
        is_behind = count < len(topic.queues) and not may_shrink
        topic.id = result.topic_id
        for queue in topic.every:
            gone = queue.leader if is_behind else NO_LEADER
            queue.leader = leaders.get(queue.partition, gone)
        for number in range(len(topic.every), count):
            leader = leaders.get(number, NO_LEADER)
            topic.every.append(self._make_queue(topic.name, number, leader))
        if count > len(topic.queues):
            # All at once: an interim count would map keys to wrong partitions.
            topic.queues = topic.every[:count]
        if count < len(topic.every) and not is_behind:
            self._shrink(topic, count)
