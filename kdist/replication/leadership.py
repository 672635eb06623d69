"""A broker's role in a partition, and what a request of the controller makes of it (pure).

A role is a value: the partition's leader in an epoch, or a follower in one. Work that spans ticks
keeps the role it began in, and ends when that is no longer the partition's.

What is done about one partition of a LeaderAndIsr or StopReplica request:

    hosted here   log on disk        the controller sends         then
    yes           -                  another topic id             REPLACE (nothing is deleted)
    yes           -                  an older state               STALE_CONTROLLER_EPOCH
    yes           -                  the same or a newer one      UPDATE
    no            of this topic      anything                     OPEN
    no            of another topic   anything                     REPLACE
    no            none               anything                     CREATE

A topic's name is not reused before every broker has deleted the old topic's logs. So a log with
another topic id was never meant to be deleted: ZooKeeper was restored from a backup, or the topic's
znodes were removed by hand. It is set aside as a stray, even if it is hosted: Kafka's refusal,
INCONSISTENT_TOPIC_ID, would leave clients writing to a log that is not the topic's.

Source: KIP-516, KIP-570, Kafka's `ReplicaManager.becomeLeaderOrFollower` and `stopReplicas`.
"""

from __future__ import annotations

import enum
import uuid
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from kdist.errors import Error
from kdist.model import NO_EPOCH, ZERO_UUID, LeaderAndIsr, TopicPartition, topic_name_fault
from kdist.protocol.alter_partition import RECOVERING
from kdist.protocol.leader_and_isr import (
    LeaderAndIsrPartition,
    LeaderAndIsrPartitionResult,
    LeaderAndIsrRequest,
    LeaderAndIsrResponse,
    LeaderAndIsrTopicResult,
)
from kdist.protocol.stop_replica import (
    StoppedPartitionResult,
    StopReplicaRequest,
    StopReplicaResponse,
)
from kdist.protocol.update_metadata import UpdateMetadataRequest

_EPOCH_DURING_DELETE = -2
_FIRST_VERSION_OF_TOPIC_IDS = 5  # of LeaderAndIsr


class Leading(NamedTuple):
    """This broker leads the partition, and has led it without a break since the epoch `since`."""

    epoch: int
    since: int


class Following(NamedTuple):
    """Another broker leads the partition, or none (-1)."""

    epoch: int
    leader: int


Role = Leading | Following


def still_leads(role: Role, now: Role) -> bool:
    """Whether a broker that had `role` has led ever since, in whatever epochs.

    Then nothing was cut off its log: what it appended in that role is at the same offsets.
    """
    return isinstance(role, Leading) and isinstance(now, Leading) and now.since == role.since


class HostingPlan(enum.Enum):
    """What to do to host a partition."""

    UPDATE = "take the new state"
    OPEN = "host the log that is on disk"
    REPLACE = "set the log aside that is on disk, then create one"
    CREATE = "create a log"


class StateUpdate(NamedTuple):
    """One partition of a LeaderAndIsr request."""

    key: TopicPartition
    topic_id: uuid.UUID
    state: LeaderAndIsr
    replicas: tuple[int, ...]
    adding: tuple[int, ...] = ()


class Stopped(NamedTuple):
    """One partition of a StopReplica request."""

    key: TopicPartition
    leader_epoch: int
    is_delete: bool


class Hosted(NamedTuple):
    """What the broker knows of a partition that it hosts."""

    topic_id: uuid.UUID
    state: LeaderAndIsr


def plan_leadership(
    update: StateUpdate,
    broker_id: int,
    hosted: Hosted | None,
    *,
    has_log: bool,
    log_topic_id: uuid.UUID,
) -> HostingPlan | Error:
    """What to do, or the error to answer. A topic id of zeros means unknown."""
    if topic_name_fault(update.key.topic) or update.key.partition < 0:
        return Error.INVALID_TOPIC_EXCEPTION
    if broker_id not in update.replicas:
        return Error.UNKNOWN_TOPIC_OR_PARTITION
    if hosted is not None:
        if not _may_be_same(update.topic_id, hosted.topic_id):
            return HostingPlan.REPLACE
        if _age(update.state) < _age(hosted.state):
            return Error.STALE_CONTROLLER_EPOCH
        return HostingPlan.UPDATE
    if not has_log:
        return HostingPlan.CREATE
    return HostingPlan.OPEN if _may_be_same(update.topic_id, log_topic_id) else HostingPlan.REPLACE


def _may_be_same(one: uuid.UUID, other: uuid.UUID) -> bool:
    return one == other or ZERO_UUID in (one, other)


def _age(state: LeaderAndIsr) -> tuple[int, int]:
    return state.leader_epoch, state.zk_version


def stop_fault(stopped: Stopped, hosted: Hosted | None) -> Error:
    """The error if a partition must not be stopped; NONE if it may."""
    if hosted is None or stopped.leader_epoch in (NO_EPOCH, _EPOCH_DURING_DELETE):
        return Error.NONE
    if stopped.leader_epoch < hosted.state.leader_epoch:
        return Error.FENCED_LEADER_EPOCH
    return Error.NONE


def fence(
    request: LeaderAndIsrRequest | StopReplicaRequest | UpdateMetadataRequest,
    controller_epoch: int,
    broker_epoch: int,
) -> Error:
    """The error for a request of a replaced controller, or for an earlier broker registration.

    Its broker epoch may be ahead of this broker's: the controller may learn of a registration
    first. A request without one, as before KIP-380, is refused: it is not from a controller of this
    cluster, and a foreign high controller epoch would lock the real controller out.
    """
    if request.broker_epoch < broker_epoch:
        return Error.STALE_BROKER_EPOCH
    if request.controller_epoch < controller_epoch:
        return Error.STALE_CONTROLLER_EPOCH
    return Error.NONE


def updates_in(request: LeaderAndIsrRequest) -> Iterator[StateUpdate]:
    """The partitions of a request of any version."""
    for state in request.ungrouped_partition_states:
        yield _update(state.topic_name, ZERO_UUID, state)
    for topic in request.topic_states:
        for state in topic.partition_states:
            yield _update(topic.topic_name, topic.topic_id, state)


def _update(topic: str, topic_id: uuid.UUID, state: LeaderAndIsrPartition) -> StateUpdate:
    return StateUpdate(
        TopicPartition(topic, state.partition_index),
        topic_id,
        LeaderAndIsr(
            leader=state.leader,
            leader_epoch=state.leader_epoch,
            isr=tuple(state.isr),
            controller_epoch=state.controller_epoch,
            zk_version=state.partition_epoch,
            is_recovering=state.leader_recovery_state == RECOVERING,
            eligible=tuple(state.eligible_replicas),
        ),
        tuple(state.replicas),
        tuple(state.adding_replicas),
    )


def stopped_in(request: StopReplicaRequest) -> Iterator[Stopped]:
    """The partitions of a request of any version."""
    for one in request.ungrouped_partitions:
        key = TopicPartition(one.topic_name, one.partition_index)
        yield Stopped(key, NO_EPOCH, request.delete_partitions)
    for topic in request.topics:
        for index in topic.partition_indexes:
            yield Stopped(TopicPartition(topic.name, index), NO_EPOCH, request.delete_partitions)
    for states in request.topic_states:
        for state in states.partition_states:
            key = TopicPartition(states.topic_name, state.partition_index)
            yield Stopped(key, state.leader_epoch, state.delete_partition)


def leader_and_isr_response(
    request: LeaderAndIsrRequest, version: int, error: Error, errors: Mapping[TopicPartition, Error]
) -> LeaderAndIsrResponse:
    """The answer: the results by topic id since version 5, in one list before."""
    if version < _FIRST_VERSION_OF_TOPIC_IDS:
        results = [
            LeaderAndIsrPartitionResult(
                topic_name=key.topic, partition_index=key.partition, error_code=found
            )
            for key, found in errors.items()
        ]
        return LeaderAndIsrResponse(error_code=error, partition_errors=results)
    topic_ids = {each.key: each.topic_id for each in updates_in(request)}
    topics: dict[uuid.UUID, LeaderAndIsrTopicResult] = {}
    for key, found in errors.items():
        topic = topics.setdefault(
            topic_ids[key], LeaderAndIsrTopicResult(topic_id=topic_ids[key], partition_errors=[])
        )
        topic.partition_errors.append(
            LeaderAndIsrPartitionResult(partition_index=key.partition, error_code=found)
        )
    return LeaderAndIsrResponse(error_code=error, topics=list(topics.values()))


def stop_replica_response(
    error: Error, errors: Mapping[TopicPartition, Error]
) -> StopReplicaResponse:
    """The answer: an error for all of the request, or one for each partition."""
    results = [
        StoppedPartitionResult(
            topic_name=key.topic, partition_index=key.partition, error_code=found
        )
        for key, found in errors.items()
    ]
    return StopReplicaResponse(error_code=error, partition_errors=results)
