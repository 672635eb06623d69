"""What clients ask of topics, carried out: each topic succeeds or fails by itself.

All of a request are judged first, and what may be done is then written together: a hundred topics
in a few transactions, not one by one.
"""

from __future__ import annotations

import asyncio
import random
import uuid
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import NamedTuple, Protocol

from kdist.config.broker_config import BrokerConfig
from kdist.controller.cluster import Topic
from kdist.controller.executor import Executor
from kdist.controller.topics import (
    Counts,
    Planned,
    check_doomed,
    check_once,
    find_doomed,
    plan_growth,
    plan_topic,
)
from kdist.errors import ApiError, Error
from kdist.model import ZERO_UUID, flat, format_uuid
from kdist.protocol.create_partitions import GrownTopic
from kdist.protocol.create_topics import NewTopic
from kdist.protocol.delete_topics import DoomedTopic


class Outcome(NamedTuple):
    """What became of one topic; `topic` is as it is now, or would be, None where it failed.

    `name` is None for a topic that was asked for by an unknown id.
    """

    name: str | None
    error: Error = Error.NONE
    sentence: str | None = None
    topic: Topic | None = None


class Bench(NamedTuple):
    """What a command works with."""

    executor: Executor
    config: BrokerConfig
    chance: random.Random


class Carried(NamedTuple):
    """Outcomes in the order of the request; all of `settling` are done when the brokers know."""

    outcomes: list[Outcome]
    settling: list[asyncio.Future[None]]


class Command(Protocol):
    """A request for some topics."""

    @property
    def names(self) -> Sequence[str | None]:
        """The topics' names."""
        ...

    async def carry_out(self, bench: Bench) -> Carried:
        """Do it. What a topic is refused for stands in its outcome."""
        ...


class CreateTopics(NamedTuple):
    """Create topics, or only say whether they could be.

    It may be carried out again after a reign that ended before its answer: `begun` has the ids of
    topics that may have been created then, which are no one else's.
    """

    topics: Sequence[NewTopic]
    validate_only: bool
    begun: dict[str, uuid.UUID]

    @property
    def names(self) -> list[str | None]:
        """The topics' names."""
        return [new.name for new in self.topics]

    async def carry_out(self, bench: Bench) -> Carried:
        """See `Command`."""
        planned: dict[str, Planned] = {}
        counts = Counter(self.names)
        taken = {flat(name): name for name in bench.executor.cluster.topics}
        outcomes = [
            _judged(new.name, partial(self._plan, new, bench, counts, taken, planned))
            for new in self.topics
        ]
        if not self.validate_only:
            self.begun.update((name, each.topic.id) for name, each in planned.items())
            await bench.executor.create(list(planned.values()))
        return await _with_leaders(outcomes, bench.executor, self.validate_only)

    def _plan(
        self,
        new: NewTopic,
        bench: Bench,
        counts: Counts,
        taken: dict[str, str],
        planned: dict[str, Planned],
    ) -> Topic:
        check_once(new.name, counts)
        cluster = bench.executor.cluster
        found = cluster.topics.get(new.name)
        if found is not None and found.id == self.begun.get(new.name):
            return found
        made = plan_topic(new, cluster, bench.config, bench.chance, taken)
        planned[new.name], taken[flat(new.name)] = made, new.name
        return made.topic


class GrowTopics(NamedTuple):
    """Add partitions to topics, or only say whether they could be added.

    It may be carried out again, as `CreateTopics`: `begun` has topics as they may have become.
    """

    topics: Sequence[GrownTopic]
    validate_only: bool
    begun: dict[str, Topic]

    @property
    def names(self) -> list[str | None]:
        """The topics' names."""
        return [grown.name for grown in self.topics]

    async def carry_out(self, bench: Bench) -> Carried:
        """See `Command`."""
        planned: dict[str, Topic] = {}
        counts = Counter(self.names)
        outcomes = [
            _judged(grown.name, partial(self._plan, grown, bench, counts, planned))
            for grown in self.topics
        ]
        if not self.validate_only:
            self.begun.update(planned)
            await bench.executor.assign(list(planned.values()))
        return await _with_leaders(outcomes, bench.executor, self.validate_only)

    def _plan(
        self, grown: GrownTopic, bench: Bench, counts: Counts, planned: dict[str, Topic]
    ) -> Topic:
        check_once(grown.name, counts)
        cluster = bench.executor.cluster
        found, begun = cluster.topics.get(grown.name), self.begun.get(grown.name)
        if found and begun and (found.id, found.assignment) == (begun.id, begun.assignment):
            return found
        made = planned[grown.name] = plan_growth(grown, cluster)
        return made


class DeleteTopics(NamedTuple):
    """Delete topics with all their records."""

    topics: Sequence[DoomedTopic]

    @property
    def names(self) -> list[str | None]:
        """The topics' names."""
        return [doomed.name for doomed in self.topics]

    async def carry_out(self, bench: Bench) -> Carried:
        """See `Command`."""
        executor = bench.executor
        by_id = {topic.id: topic for topic in executor.cluster.topics.values()}
        labels = [_label(each, by_id) for each in self.topics]
        counts = Counter(labels)
        outcomes = [
            _judged(each.name, partial(self._find, each, label, bench, counts, by_id))
            for each, label in zip(self.topics, labels, strict=True)
        ]
        doomed = {outcome.topic.name: outcome.topic for outcome in outcomes if outcome.topic}
        await executor.doom(doomed.values())
        ended = [executor.deletions.ended(name, executor.cluster.alive) for name in doomed]
        return Carried(outcomes, ended + executor.switchboard.told() if doomed else [])

    def _find(
        self,
        doomed: DoomedTopic,
        label: str | None,
        bench: Bench,
        counts: Counts,
        by_id: Mapping[uuid.UUID, Topic],
    ) -> Topic:
        check_doomed(doomed, bench.config)
        if label is not None:
            check_once(label, counts)
        return find_doomed(doomed, bench.executor.cluster, by_id)


def _label(doomed: DoomedTopic, by_id: Mapping[uuid.UUID, Topic]) -> str | None:
    """The same for a topic that is named by its name and, elsewhere, by its id.

    None for what is named in both ways at once, which is refused for that.
    """
    if doomed.topic_id == ZERO_UUID:
        return doomed.name
    if doomed.name is not None:
        return None
    topic = by_id.get(doomed.topic_id)
    return topic.name if topic else format_uuid(doomed.topic_id)


def _judged(name: str | None, plan: Callable[[], Topic]) -> Outcome:
    try:
        topic = plan()
    except ApiError as error:
        return Outcome(name, error.error, error.detail)
    return Outcome(topic.name, topic=topic)


async def _with_leaders(outcomes: list[Outcome], executor: Executor, is_trial: bool) -> Carried:
    """Give the new partitions leaders: of all topics of the request in the same writes."""
    done = [outcome.topic for outcome in outcomes if outcome.topic]
    if is_trial or not done:
        return Carried(outcomes, [])
    await executor.elect_first(each for topic in done for each in topic.partitions)
    return Carried(outcomes, executor.switchboard.told())
