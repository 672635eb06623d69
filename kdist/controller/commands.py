"""What the controller is asked: to create, grow and delete topics, and to let a broker stop.

Each topic of a request succeeds or fails by itself. All are validated first; the valid ones are
then written together: a hundred topics take a few transactions, not one each.
"""

from __future__ import annotations

import asyncio
import logging
import random
import uuid
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple, Protocol, TypeVar

from kdist.config.broker_config import BrokerConfig
from kdist.controller.context import ControllerContext, Topic
from kdist.controller.executor import Executor
from kdist.controller.topics import (
    Counts,
    Planned,
    check_deletable,
    check_once,
    find_deletable,
    plan_growth,
    plan_topic,
)
from kdist.errors import ApiError, Error
from kdist.model import ZERO_UUID, flat, format_uuid
from kdist.protocol.controlled_shutdown import (
    ControlledShutdownRequest,
    ControlledShutdownResponse,
    RemainingPartition,
)
from kdist.protocol.create_partitions import GrownTopic
from kdist.protocol.create_topics import NewTopic
from kdist.protocol.delete_topics import TopicToDelete

logger = logging.getLogger(__name__)

Result = TypeVar("Result", covariant=True)


class Outcome(NamedTuple):
    """The outcome for one topic: `topic` as it is now (or would be), None where it failed.

    `name` is None if the request named the topic by an unknown id.
    """

    name: str | None
    error: Error = Error.NONE
    sentence: str | None = None
    topic: Topic | None = None


class CommandContext(NamedTuple):
    """What a command works with."""

    executor: Executor
    config: BrokerConfig
    rng: random.Random


class CommandResult(NamedTuple):
    """Outcomes in the order of the request; `settling` are done once the brokers know."""

    outcomes: list[Outcome]
    settling: list[asyncio.Future[None]]


class Command(Protocol[Result]):
    """What the controller is asked to do between two events."""

    async def carry_out(self, context: CommandContext) -> Result:
        """Do it, and return what to answer."""
        ...


class TopicsCommand(Command[CommandResult], Protocol):
    """A request for some topics. A topic's error is reported in its outcome."""

    @property
    def topics(self) -> Sequence[NewTopic | GrownTopic | TopicToDelete]:
        """The topics, each with its name."""
        ...


class CreateTopics(NamedTuple):
    """Create topics, or only say whether they could be created.

    If a term ends before it answers, the next one carries the command out again. `begun` has the
    ids of the topics that the first try may have created, which tells them from anyone else's.
    """

    topics: Sequence[NewTopic]
    validate_only: bool
    begun: dict[str, uuid.UUID]

    async def carry_out(self, context: CommandContext) -> CommandResult:
        planned: dict[str, Planned] = {}
        counts: Counter[str | None] = Counter(new.name for new in self.topics)
        taken = {flat(name): name for name in context.executor.cluster.topics}
        outcomes = [
            _judged(new.name, partial(self._plan, new, context, counts, taken, planned))
            for new in self.topics
        ]
        if not self.validate_only:
            self.begun.update((name, each.topic.id) for name, each in planned.items())
            await context.executor.create(list(planned.values()))
        return await _with_leaders(outcomes, context.executor, self.validate_only)

    def _plan(
        self,
        new: NewTopic,
        context: CommandContext,
        counts: Counts,
        taken: dict[str, str],
        planned: dict[str, Planned],
    ) -> Topic:
        check_once(new.name, counts)
        cluster = context.executor.cluster
        found = cluster.topics.get(new.name)
        if found is not None and found.id == self.begun.get(new.name):
            return found
        made = plan_topic(new, cluster, context.config, context.rng, taken)
        planned[new.name], taken[flat(new.name)] = made, new.name
        return made.topic


class GrowTopics(NamedTuple):
    """Add partitions to topics, or only say whether they could be added.

    May be carried out again, like `CreateTopics`: `begun` has the topics as the first try would
    have left them.
    """

    topics: Sequence[GrownTopic]
    validate_only: bool
    begun: dict[str, Topic]

    async def carry_out(self, context: CommandContext) -> CommandResult:
        planned: dict[str, Topic] = {}
        counts: Counter[str | None] = Counter(grown.name for grown in self.topics)
        outcomes = [
            _judged(grown.name, partial(self._plan, grown, context, counts, planned))
            for grown in self.topics
        ]
        if not self.validate_only:
            self.begun.update(planned)
            await context.executor.assign(list(planned.values()))
        return await _with_leaders(outcomes, context.executor, self.validate_only)

    def _plan(
        self, grown: GrownTopic, context: CommandContext, counts: Counts, planned: dict[str, Topic]
    ) -> Topic:
        check_once(grown.name, counts)
        cluster = context.executor.cluster
        found, begun = cluster.topics.get(grown.name), self.begun.get(grown.name)
        if found and begun and (found.id, found.assignment) == (begun.id, begun.assignment):
            return found
        made = planned[grown.name] = plan_growth(grown, cluster)
        return made


class DeleteTopics(NamedTuple):
    """Delete topics with all their records."""

    topics: Sequence[TopicToDelete]

    async def carry_out(self, context: CommandContext) -> CommandResult:
        executor = context.executor
        labels = [_label(each, executor.cluster) for each in self.topics]
        counts = Counter(labels)
        outcomes = [
            _judged(each.name, partial(self._find, each, label, context, counts))
            for each, label in zip(self.topics, labels, strict=True)
        ]
        deleted = {outcome.topic.name: outcome.topic for outcome in outcomes if outcome.topic}
        await executor.request_deletions(deleted.values())
        ended = [executor.deletions.ended(name, executor.cluster.alive) for name in deleted]
        return CommandResult(outcomes, ended + executor.channels.acknowledged() if deleted else [])

    def _find(
        self,
        deletion: TopicToDelete,
        label: str | None,
        context: CommandContext,
        counts: Counts,
    ) -> Topic:
        check_deletable(deletion, context.config)
        if label is not None:
            check_once(label, counts)
        return find_deletable(deletion, context.executor.cluster)


class ShutDownBroker(NamedTuple):
    """Move the leaders of a broker that is about to stop. It may not lead or join an ISR again."""

    request: ControlledShutdownRequest

    async def carry_out(self, context: CommandContext) -> ControlledShutdownResponse:
        """STALE_BROKER_EPOCH for the request of an earlier registration, or without an epoch."""
        request, cluster = self.request, context.executor.cluster
        live = cluster.brokers.get(request.broker_id)
        if live is None or request.broker_epoch < live.epoch:
            error = Error.BROKER_NOT_AVAILABLE if live is None else Error.STALE_BROKER_EPOCH
            return ControlledShutdownResponse(error_code=error, remaining_partitions=[])
        cluster.shutting_down[live.id] = request.broker_epoch
        remaining = await context.executor.move_leaders(live.id)
        logger.info("broker %d wants to stop, and still leads %d", live.id, len(remaining))
        return ControlledShutdownResponse(
            error_code=Error.NONE,
            remaining_partitions=[
                RemainingPartition(topic_name=each.topic, partition_index=each.partition)
                for each in remaining
            ],
        )


def _label(deletion: TopicToDelete, cluster: ControllerContext) -> str | None:
    """What `check_once` counts an entry by: the topic's name, or the id if no topic has it.

    None for an entry with both name and id, which is refused anyway.
    """
    if deletion.topic_id == ZERO_UUID:
        return deletion.name
    if deletion.name is not None:
        return None
    topic = cluster.topic_with(deletion.topic_id)
    return topic.name if topic else format_uuid(deletion.topic_id)


def _judged(name: str | None, plan: Callable[[], Topic]) -> Outcome:
    try:
        topic = plan()
    except ApiError as error:
        return Outcome(name, error.error, error.detail)
    return Outcome(topic.name, topic=topic)


async def _with_leaders(
    outcomes: list[Outcome], executor: Executor, is_trial: bool
) -> CommandResult:
    """Elect leaders for the new partitions of all topics together, in the same writes."""
    done = [outcome.topic for outcome in outcomes if outcome.topic]
    if is_trial or not done:
        return CommandResult(outcomes, [])
    await executor.elect_first(each for topic in done for each in topic.partitions)
    return CommandResult(outcomes, executor.channels.acknowledged())
