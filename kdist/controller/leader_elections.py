"""ElectLeaders: preferred leaders, or unclean ones for partitions that nobody leads.

    the partition                                    answer
    does not exist                                   UNKNOWN_TOPIC_OR_PARTITION
    is being deleted                                 INVALID_TOPIC_EXCEPTION
    is led by the preferred replica; unclean:        ELECTION_NOT_NEEDED
    by anybody alive
    has another leader now than was wanted           PREFERRED_LEADER_NOT_AVAILABLE,
                                                     ELIGIBLE_LEADERS_NOT_AVAILABLE
    is led as wanted, by this election               NONE

A client orders it by a request (KIP-183, 460), an old tool by `/admin/preferred_replica_election`,
and the controller itself from time to time, as far as `choose_imbalanced` says.
Source: Apache Kafka's `KafkaController.processReplicaLeaderElection`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Sequence
from itertools import chain, islice, zip_longest
from typing import NamedTuple

from kdist.controller.commands import CommandContext
from kdist.controller.context import ControllerContext
from kdist.controller.elections import (
    may_lead_by_preference,
    plan_for_preferred,
    plan_for_unclean,
)
from kdist.errors import ApiError, Error
from kdist.model import TopicPartition
from kdist.protocol.elect_leaders import PREFERRED
from kdist.storage.names import some_of

logger = logging.getLogger(__name__)


Outcomes = dict[TopicPartition, ApiError | None]
"""Each partition's error; None if it got its leader."""


class LeadersElected(NamedTuple):
    """The outcomes; `settling` are done once the brokers know."""

    outcomes: Outcomes
    settling: list[asyncio.Future[None]]


class ElectLeaders(NamedTuple):
    """Elect leaders for these partitions, or for all; `election_type` as in the request."""

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


def choose_imbalanced(
    cluster: ControllerContext, percentage: int, most: int
) -> list[TopicPartition]:
    """The partitions to give back to their preferred replicas, at most so many (pure).

    Those of each broker that lacks more than `percentage` of the partitions that it should lead;
    the brokers take turns.
    """
    should, moving = {**cluster.tally.preferred}, cluster.tally.moving
    for partition in moving:  # a target's first replica may still be empty
        should[cluster.replicas(partition)[0]] -= 1
    lacking: dict[int, list[TopicPartition]] = {}
    for partition in sorted(imbalanced(cluster)):
        lacking.setdefault(cluster.replicas(partition)[0], []).append(partition)
    found: list[list[TopicPartition]] = []
    for broker_id, partitions in sorted(lacking.items()):
        if 100 * len(partitions) > percentage * should[broker_id]:
            found.append([each for each in partitions if _can_be_given_back(cluster, each)])
    turns: Iterable[TopicPartition | None] = chain.from_iterable(zip_longest(*found))
    return list(islice((each for each in turns if each is not None), most))


def imbalanced(cluster: ControllerContext) -> set[TopicPartition]:
    """Those not led by their preferred replica, nor on their way to another one."""
    return cluster.tally.imbalanced.keys() - cluster.tally.moving.keys()


def _can_be_given_back(cluster: ControllerContext, partition: TopicPartition) -> bool:
    state = cluster.leader_and_isr(partition)
    return state is not None and may_lead_by_preference(cluster, partition, state)
