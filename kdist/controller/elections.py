"""Who leads a partition, and what changes when brokers come and go (pure).

The leader is the first assigned replica that is in the ISR and alive. If there is none, the leader
is -1 and the ISR stays as it is, so that one of its members can lead again when it is back. Each
change raises the leader epoch. A broker that has re-registered ("bounced") counts as gone and back:
what it writes after its restart must not share an epoch with what it may have lost.

A plan maps partitions to their next state, with the zk version that writing it will produce.
Source: Apache Kafka's `Election` and `ReplicaStateMachine`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import NamedTuple

from kdist.controller.context import FIRST_ZK_VERSION, ControllerContext, Topic
from kdist.model import NO_LEADER, LeaderAndIsr, TopicPartition

Plan = dict[TopicPartition, LeaderAndIsr]


class Election(NamedTuple):
    """The leader and ISR that an election gives."""

    leader: int
    isr: tuple[int, ...]


def plan_for_broker_change(
    cluster: ControllerContext, controller_epoch: int, bounced: Collection[int] = ()
) -> Plan:
    """What changes now that the set of live brokers has; `bounced` are those re-registered."""
    return plan_for_partitions(cluster, cluster.partitions(), controller_epoch, bounced)


def plan_for_partitions(
    cluster: ControllerContext,
    partitions: Iterable[TopicPartition],
    controller_epoch: int,
    bounced: Collection[int] = (),
) -> Plan:
    """As `plan_for_broker_change`, for these partitions. New ones get their first state."""
    alive = cluster.alive
    steady = alive.difference(bounced)
    plan: Plan = {}
    for partition in partitions:
        assigned, state = cluster.replicas(partition), cluster.leader_and_isr(partition)
        if state is None:
            plan[partition] = first_state(assigned, alive, controller_epoch)
        elif after := _review(state, assigned, (steady, alive), controller_epoch):
            plan[partition] = after
    return plan


def plan_for_new(topics: Iterable[Topic], alive: Collection[int], controller_epoch: int) -> Plan:
    """The first states of all partitions of topics that are about to be created."""
    return {
        partition: first_state(topic.assignment[partition.partition], alive, controller_epoch)
        for topic in topics
        for partition in topic.partitions
    }


def first_state(
    assigned: tuple[int, ...], alive: Collection[int], controller_epoch: int
) -> LeaderAndIsr:
    """The first state of a new partition, which is offline if no replica is alive.

    Kafka writes no state in that case, and clients see one partition too few. All replicas are then
    in the ISR: they are empty, so any of them may lead later.
    """
    isr = tuple(replica for replica in assigned if replica in alive)
    leader = isr[0] if isr else NO_LEADER
    return LeaderAndIsr(leader, 0, isr or assigned, controller_epoch, FIRST_ZK_VERSION)


def elect(before: Election, assigned: Sequence[int], alive: Collection[int]) -> Election:
    """Leader and ISR when exactly the brokers in `alive` are."""
    isr = tuple(replica for replica in before.isr if replica in alive)
    if before.leader in isr:
        return Election(before.leader, isr)
    leader = next((replica for replica in assigned if replica in isr), NO_LEADER)
    return Election(leader, before.isr if leader == NO_LEADER else isr)


def _review(
    state: LeaderAndIsr,
    assigned: Sequence[int],
    views: Iterable[Collection[int]],
    controller_epoch: int,
) -> LeaderAndIsr | None:
    """The state after the live brokers were each of `views` in turn; None if nothing changes."""
    elected = before = Election(state.leader, state.isr)
    is_same = True
    for alive in views:
        elected = elect(elected, assigned, alive)
        is_same = is_same and elected == before
    if is_same:
        return None
    epoch, version = state.leader_epoch + 1, state.zk_version + 1
    return LeaderAndIsr(elected.leader, epoch, elected.isr, controller_epoch, version)
