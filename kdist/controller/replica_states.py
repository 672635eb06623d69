"""The states of replicas, which follow from those of their brokers, partitions and topics (pure).

    state                what it is                          its broker is sent     leaves for
    NON_EXISTENT         not assigned, or all is deleted     nothing                NEW
    NEW                  its partition has no state yet      nothing                ONLINE, OFFLINE,
                                                                                    DELETION_*
    ONLINE               its broker is alive                 LeaderAndIsr, at each  OFFLINE,
                                                             change                 DELETION_*
    OFFLINE              its broker is gone, or about to     if about to stop:      ONLINE,
                         stop                                StopReplica once it    DELETION_*
                                                             is out of the ISR
    DELETION_STARTED     its topic is queued for deletion,   StopReplica, with      DELETION_*,
                         its broker alive                    deletion, until it is  NON_EXISTENT
                                                             answered
    DELETION_SUCCESSFUL  the broker has deleted it: waits    nothing                NON_EXISTENT
                         for the topic's others
    DELETION_INELIGIBLE  its topic is queued for deletion,   nothing, until it is   NON_EXISTENT,
                         its broker is gone                  back                   DELETION_STARTED

There is nothing to write or to forget: a controller that takes over finds every replica in the
state that it was in. Only what brokers have deleted it asks again.
Source: Apache Kafka's `ReplicaStateMachine`.
"""

from __future__ import annotations

import enum

from kdist.controller.context import ControllerContext
from kdist.controller.deletions import Deletions
from kdist.model import TopicPartition


class ReplicaState(enum.Enum):
    """A replica's state; the value is its name in log lines."""

    NON_EXISTENT = "non-existent"
    NEW = "new"
    ONLINE = "online"
    OFFLINE = "offline"
    DELETION_STARTED = "deletion started"
    DELETION_SUCCESSFUL = "deletion successful"
    DELETION_INELIGIBLE = "deletion ineligible"


(
    NON_EXISTENT,
    NEW,
    ONLINE,
    OFFLINE,
    DELETION_STARTED,
    DELETION_SUCCESSFUL,
    DELETION_INELIGIBLE,
) = ReplicaState

ALLOWED: dict[ReplicaState, frozenset[ReplicaState]] = {
    NON_EXISTENT: frozenset({NEW}),
    NEW: frozenset({ONLINE, OFFLINE, DELETION_STARTED, DELETION_INELIGIBLE}),
    ONLINE: frozenset({OFFLINE, DELETION_STARTED, DELETION_INELIGIBLE}),
    OFFLINE: frozenset({ONLINE, DELETION_STARTED, DELETION_INELIGIBLE}),
    DELETION_STARTED: frozenset({DELETION_SUCCESSFUL, DELETION_INELIGIBLE, NON_EXISTENT}),
    DELETION_SUCCESSFUL: frozenset({NON_EXISTENT}),
    DELETION_INELIGIBLE: frozenset({DELETION_STARTED, NON_EXISTENT}),
}


def replica_state(
    cluster: ControllerContext, deletions: Deletions, partition: TopicPartition, broker_id: int
) -> ReplicaState:
    """The state of the partition's replica on a broker, by the table above."""
    if broker_id not in cluster.replicas(partition):
        return NON_EXISTENT
    if partition.topic in cluster.queued_for_deletion:
        if not deletions.is_left(partition, broker_id):
            return DELETION_SUCCESSFUL
        return DELETION_STARTED if broker_id in cluster.brokers else DELETION_INELIGIBLE
    if cluster.leader_and_isr(partition) is None:
        return NEW
    return ONLINE if cluster.is_electable(broker_id) else OFFLINE
