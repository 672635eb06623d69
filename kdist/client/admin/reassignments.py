"""Moves of partitions to other replicas: have them begin, cancelled, or listed."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from kdist.client.admin.asking import TIMEOUT_MS, ask_controller
from kdist.client.admin.outcomes import fault_of, settled
from kdist.client.admin.topics import Partition, Topic
from kdist.client.cluster import Cluster, in_topics, raise_for
from kdist.errors import ApiError
from kdist.model import TopicPartition
from kdist.protocol.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ReassignablePartition,
    ReassignableTopic,
)
from kdist.protocol.list_partition_reassignments import (
    AskedReassignmentTopic,
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
)

_PATIENCE_S = 5.0


class Reassignment(NamedTuple):
    """A move under way: all replicas that there are now, and those that it adds and removes."""

    replicas: tuple[int, ...]
    adding: tuple[int, ...]
    removing: tuple[int, ...]

    @property
    def target(self) -> tuple[int, ...]:
        """The replicas that there will be."""
        return tuple(each for each in self.replicas if each not in self.removing)


async def alter_partition_reassignments(
    cluster: Cluster, targets: Mapping[TopicPartition, Sequence[int] | None]
) -> None:
    """Begin to move partitions to these brokers, the preferred leader first; None cancels a move.

    It returns once the moves have begun. `SomeFailed` with those that could not:
    INVALID_REPLICA_ASSIGNMENT, UNKNOWN_TOPIC_OR_PARTITION, NO_REASSIGNMENT_IN_PROGRESS.
    """

    def one(key: TopicPartition) -> ReassignablePartition:
        replicas = targets[key]
        asked = None if replicas is None else [*replicas]
        return ReassignablePartition(partition_index=key.partition, replicas=asked)

    topics = in_topics(ReassignableTopic, targets, one)
    request = AlterPartitionReassignmentsRequest(timeout_ms=TIMEOUT_MS, topics=topics)
    settled(await ask_controller(cluster, request, _outcomes))


async def list_partition_reassignments(
    cluster: Cluster, partitions: Iterable[TopicPartition] | None = None
) -> dict[TopicPartition, Reassignment]:
    """The moves under way, of these partitions or of all."""
    topics = None
    if partitions is not None:
        topics = in_topics(
            AskedReassignmentTopic, partitions, lambda key: key.partition, rows="partition_indexes"
        )
    request = ListPartitionReassignmentsRequest(timeout_ms=TIMEOUT_MS, topics=topics)
    return await ask_controller(cluster, request, _moves)


async def with_moves(cluster: Cluster, topics: Iterable[Topic]) -> list[Topic]:
    """The topics, with what is being moved of their partitions.

    As they are where nobody can tell: brokers before Kafka 2.4, or no controller for the moment.
    """
    found = list(topics)
    if cluster.controller_id not in cluster.brokers:
        return found
    try:
        async with asyncio.timeout(_PATIENCE_S):
            moves = await list_partition_reassignments(cluster)
    except (ApiError, TimeoutError):
        return found

    def moved(topic: Topic, each: Partition) -> Partition:
        move = moves.get(TopicPartition(topic.name, each.number))
        return each if move is None else each._replace(adding=move.adding, removing=move.removing)

    return [
        topic._replace(partitions=tuple(moved(topic, each) for each in topic.partitions))
        for topic in found
    ]


def _outcomes(
    answer: AlterPartitionReassignmentsResponse,
) -> dict[TopicPartition, bool | ApiError]:
    raise_for(answer.error_code)
    return {
        (partition := TopicPartition(topic.name, each.partition_index)): (
            fault_of(each.error_code, str(partition), each.error_message) or True
        )
        for topic in answer.responses
        for each in topic.partitions
    }


def _moves(answer: ListPartitionReassignmentsResponse) -> dict[TopicPartition, Reassignment]:
    raise_for(answer.error_code)
    return {
        TopicPartition(topic.name, each.partition_index): Reassignment(
            tuple(each.replicas), tuple(each.adding_replicas), tuple(each.removing_replicas)
        )
        for topic in answer.topics
        for each in topic.partitions
    }
