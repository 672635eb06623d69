"""Who leads a partition, and what changes when brokers come and go (pure).

Only a replica in the ISR may lead, the first of the assigned ones that is alive. If none is, the
leader is -1 and the ISR stays, so that one of it can lead again when it is back. Each change raises
the leader epoch. A broker that registered anew ("bounced") counts as gone and back: what it wrote
after its start must not share an epoch with what it may have lost.

A plan maps partitions to their next state, whose zk version is the one that the write will give.
Source: Apache Kafka's `Election` and `ReplicaStateMachine`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import NamedTuple

from kdist.controller.cluster import FIRST_ZK_VERSION, Cluster, Topic
from kdist.model import NO_LEADER, LeaderAndIsr, TopicPartition

Plan = dict[TopicPartition, LeaderAndIsr]


class Seats(NamedTuple):
    """A leader and an ISR."""

    leader: int
    isr: tuple[int, ...]


def plan_for_broker_change(
    cluster: Cluster, controller_epoch: int, bounced: Collection[int] = ()
) -> Plan:
    """What changes now that the brokers alive are others, `bounced` having registered anew."""
    return plan_for_partitions(cluster, cluster.partitions(), controller_epoch, bounced)


def plan_for_partitions(
    cluster: Cluster,
    partitions: Iterable[TopicPartition],
    controller_epoch: int,
    bounced: Collection[int] = (),
) -> Plan:
    """The same for some partitions. New ones get their first state."""
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
    """The state that a new partition begins with, offline if no replica is alive.

    Kafka writes none then, and clients count one partition less. All replicas are empty, so that
    any of them may lead later.
    """
    isr = tuple(replica for replica in assigned if replica in alive)
    leader = isr[0] if isr else NO_LEADER
    return LeaderAndIsr(leader, 0, isr or assigned, controller_epoch, FIRST_ZK_VERSION)


def seat(before: Seats, assigned: Sequence[int], alive: Collection[int]) -> Seats:
    """Leader and ISR once only `alive` are left, or back."""
    isr = tuple(replica for replica in before.isr if replica in alive)
    if before.leader in isr:
        return Seats(before.leader, isr)
    leader = next((replica for replica in assigned if replica in isr), NO_LEADER)
    return Seats(leader, before.isr if leader == NO_LEADER else isr)


def _review(
    state: LeaderAndIsr,
    assigned: Sequence[int],
    views: Iterable[Collection[int]],
    controller_epoch: int,
) -> LeaderAndIsr | None:
    """The next state after the brokers alive were each of `views` in turn; None: as it is."""
    seats = before = Seats(state.leader, state.isr)
    is_same = True
    for alive in views:
        seats = seat(seats, assigned, alive)
        is_same = is_same and seats == before
    if is_same:
        return None
    epoch, version = state.leader_epoch + 1, state.zk_version + 1
    return LeaderAndIsr(seats.leader, epoch, seats.isr, controller_epoch, version)
