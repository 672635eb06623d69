"""What the controller is asked: about topics, leaders, moves, and a broker that is to stop.

Each topic of a request succeeds or fails by itself. All are validated first; the valid ones are
then written together: a hundred topics take a few transactions, not one each. Of moves, whoever
asked last about a partition is obeyed: a client, by AlterPartitionReassignments (KIP-455), or an
old tool, by writing `/admin/reassign_partitions`, whose entries are removed as they are done with.
"""

from __future__ import annotations

import asyncio
import logging
import random
import uuid
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import NamedTuple, Protocol, TypeVar

from kdist.config.broker_config import BrokerConfig
from kdist.controller.context import Assigned, ControllerContext, Topic
from kdist.controller.elections import plan_for_preferred, plan_for_unclean
from kdist.controller.executor import Executor
from kdist.controller.reassignments import MoveStep, MoveSteps, Target, plan_begin, plan_cancel
from kdist.controller.topics import (
    Counts,
    Planned,
    check_deletable,
    check_once,
    find_deletable,
    plan_new_partitions,
    plan_topic,
)
from kdist.errors import ApiError, Error
from kdist.model import ZERO_UUID, TopicPartition, flat, format_uuid
from kdist.protocol.controlled_shutdown import (
    ControlledShutdownRequest,
    ControlledShutdownResponse,
    RemainingPartition,
)
from kdist.protocol.create_partitions import GrownTopic
from kdist.protocol.create_topics import NewTopic
from kdist.protocol.delete_topics import TopicToDelete
from kdist.protocol.elect_leaders import PREFERRED
from kdist.storage.names import some_of

logger = logging.getLogger(__name__)

Result = TypeVar("Result", covariant=True)


class TopicOutcome(NamedTuple):
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
    """Outcomes in the order of the request; `acknowledgements` are done once the brokers know."""

    outcomes: list[TopicOutcome]
    acknowledgements: list[asyncio.Future[None]]


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


class CreatePartitions(NamedTuple):
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
        made = planned[grown.name] = plan_new_partitions(grown, cluster)
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


PartitionErrors = dict[TopicPartition, ApiError | None]
"""None for a partition that is now, or is becoming, what was asked for."""


class LeadersElected(NamedTuple):
    """The outcomes; `acknowledgements` are done once the brokers know."""

    outcomes: PartitionErrors
    acknowledgements: list[asyncio.Future[None]]


class ElectLeaders(NamedTuple):
    """Elect preferred leaders, or unclean ones for partitions that nobody leads.

    These partitions, or all; `election_type` as in the request.

        the partition                                    answer
        does not exist                                   UNKNOWN_TOPIC_OR_PARTITION
        is being deleted                                 INVALID_TOPIC_EXCEPTION
        is led by the preferred replica; unclean:        ELECTION_NOT_NEEDED
        by anybody alive
        has another leader now than was wanted           PREFERRED_LEADER_NOT_AVAILABLE,
                                                         ELIGIBLE_LEADERS_NOT_AVAILABLE
        is led as wanted, by this election               NONE

    A client orders it by a request (KIP-183, 460), an old tool by
    `/admin/preferred_replica_election`, and the controller itself from time to time, as far as
    `choose_imbalanced` says. Source: Apache Kafka's `KafkaController.processReplicaLeaderElection`.
    """

    partitions: Sequence[TopicPartition] | None
    election_type: int

    async def carry_out(self, context: CommandContext) -> LeadersElected:
        """Of all partitions only those that needed an election are answered."""
        executor, is_preferred = context.executor, self.election_type == PREFERRED
        cluster = executor.cluster
        of_all = cluster.tally.imbalanced if is_preferred else cluster.tally.offline
        asked = list(of_all if self.partitions is None else self.partitions)
        faults = {each: _fault(cluster, each, is_preferred) for each in asked}
        open_ones = [each for each, fault in faults.items() if fault is None]
        if open_ones:
            how = "preferred" if is_preferred else "unclean"
            logger.info("%s leaders are to be elected for %s", how, some_of(open_ones))
        await executor.elect(open_ones, plan_for_preferred if is_preferred else plan_for_unclean)
        named = open_ones if self.partitions is None else asked
        outcomes = {each: faults[each] or _failure(cluster, each, is_preferred) for each in named}
        return LeadersElected(outcomes, executor.channels.acknowledged())


def _fault(
    cluster: ControllerContext, partition: TopicPartition, is_preferred: bool
) -> ApiError | None:
    state = cluster.leader_and_isr(partition)
    if state is None or not cluster.replicas(partition):
        return ApiError(Error.UNKNOWN_TOPIC_OR_PARTITION, "The partition does not exist.")
    if partition.topic in cluster.queued_for_deletion:
        return ApiError(Error.INVALID_TOPIC_EXCEPTION, "The topic is being deleted.")
    is_led = _is_led(cluster, partition, is_preferred)
    return ApiError(Error.ELECTION_NOT_NEEDED) if is_led else None


def _is_led(cluster: ControllerContext, partition: TopicPartition, is_preferred: bool) -> bool:
    state = cluster.leader_and_isr(partition)
    assert state is not None, "faults come first"
    if is_preferred:
        return state.leader == cluster.replicas(partition)[0]
    return state.leader in cluster.alive


def _failure(
    cluster: ControllerContext, partition: TopicPartition, is_preferred: bool
) -> ApiError | None:
    if _is_led(cluster, partition, is_preferred):
        return None
    replicas = cluster.replicas(partition)
    if is_preferred:
        why = f"Broker {replicas[0]} is not in the ISR, or not alive."
        return ApiError(Error.PREFERRED_LEADER_NOT_AVAILABLE, why)
    who = ", ".join(map(str, replicas))
    why = f"None of the brokers {who} is alive."
    return ApiError(Error.ELIGIBLE_LEADERS_NOT_AVAILABLE, why)


class AlterReassignments(NamedTuple):
    """Begin to move these partitions, or cancel their moves: None for a target.

    If a term ends before it answers, the next one carries the command out again. `cancelled` are
    those whose moves the first try may have cancelled.
    """

    targets: Mapping[TopicPartition, Target | None]
    cancelled: set[TopicPartition]

    async def carry_out(self, context: CommandContext) -> PartitionErrors:
        """Written once this returns; the moves themselves take as long as they take."""
        executor = context.executor
        steps: MoveSteps = {}
        outcomes: PartitionErrors = {}
        for partition, target in self.targets.items():
            try:
                step = self._plan(partition, target, context)
            except ApiError as error:
                outcomes[partition] = error
                continue
            outcomes[partition] = None
            if step is not None:
                steps[partition] = step
        await executor.move(steps)
        await executor.complete_moves(steps)
        await executor.trim_reassignment_request()
        return outcomes

    def _plan(
        self, partition: TopicPartition, target: Target | None, context: CommandContext
    ) -> MoveStep | None:
        cluster, epoch = context.executor.cluster, context.executor.controller_epoch
        if target is not None:
            return plan_begin(cluster, partition, target, epoch)
        if partition in self.cancelled and not cluster.is_moving(partition):
            return None
        step = plan_cancel(cluster, partition, epoch)
        self.cancelled.add(partition)
        return step


class ListReassignments(NamedTuple):
    """The moves under way, of these partitions or of all."""

    partitions: Sequence[TopicPartition] | None

    async def carry_out(self, context: CommandContext) -> dict[TopicPartition, Assigned]:
        cluster = context.executor.cluster
        asked = None if self.partitions is None else {*self.partitions}
        return {
            each: cluster.topics[each.topic].assigned(each.partition)
            for each in cluster.moving()
            if asked is None or each in asked
        }


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


def _judged(name: str | None, plan: Callable[[], Topic]) -> TopicOutcome:
    try:
        topic = plan()
    except ApiError as error:
        return TopicOutcome(name, error.error, error.detail)
    return TopicOutcome(topic.name, topic=topic)


async def _with_leaders(
    outcomes: list[TopicOutcome], executor: Executor, is_trial: bool
) -> CommandResult:
    """Elect leaders for the new partitions of all topics together, in the same writes."""
    done = [outcome.topic for outcome in outcomes if outcome.topic]
    if is_trial or not done:
        return CommandResult(outcomes, [])
    await executor.elect_first(each for topic in done for each in topic.partitions)
    return CommandResult(outcomes, executor.channels.acknowledged())
