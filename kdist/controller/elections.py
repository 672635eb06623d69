"""Who leads a partition, and what changes when brokers come, go or want to go (pure).

    election             who may lead, by order of assignment    ISR after it      if nobody may
    broker change        ISR members that are alive, and not     the members       leader -1, the
                         about to stop; a living leader stays    that are alive    ISR stays
    controlled shutdown  ISR members that are alive, and not     without those     all stays as
                         about to stop                           about to stop     it was

So an ISR never becomes empty: one of its last members can lead again when it is back. Each change
raises the leader epoch. A broker that has re-registered ("bounced") counts as gone and back: what
it writes after its restart must not share an epoch with what it may have lost.

A plan maps partitions to their next state, with the zk version that writing it will produce.
Source: Apache Kafka's `Election` and `ReplicaStateMachine`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import NamedTuple

from kdist.controller.context import FIRST_ZK_VERSION, ControllerContext, Topic
from kdist.model import NO_LEADER, LeaderAndIsr, TopicPartition

Plan = dict[TopicPartition, LeaderAndIsr]
Planner = Callable[[ControllerContext, Iterable[TopicPartition], int], Plan]
"""Plans for these partitions, in this controller epoch. One that needs no change is left out."""


class Election(NamedTuple):
    """The leader and ISR that an election gives."""

    leader: int
    isr: tuple[int, ...]


def plan_for_broker_change(
    cluster: ControllerContext, partitions: Iterable[TopicPartition], controller_epoch: int
) -> Plan:
    """What changes now that the set of live brokers has. New partitions get their first state."""
    alive, electable = cluster.alive, cluster.electable
    plan: Plan = {}
    for partition in partitions:
        assigned, state = cluster.replicas(partition), cluster.leader_and_isr(partition)
        if state is None:
            plan[partition] = first_state(assigned, electable, controller_epoch)
            continue
        elected = before = Election(state.leader, state.isr)
        bounced = cluster.bounced(partition)
        if bounced:
            elected = elect(before, assigned, alive - bounced, electable - bounced)
        after = elect(elected, assigned, alive, electable)
        if (elected, after) != (before, before) or state.zk_version < FIRST_ZK_VERSION:
            plan[partition] = _next_state(state, after, controller_epoch)
    return plan


def plan_for_shutdown(
    cluster: ControllerContext, partitions: Iterable[TopicPartition], controller_epoch: int
) -> Plan:
    """What changes so that brokers about to stop neither lead nor hold up acknowledgements."""
    electable = cluster.electable
    plan: Plan = {}
    for partition in partitions:
        state = cluster.leader_and_isr(partition)
        if state is None:
            continue
        before = Election(state.leader, state.isr)
        after = elect(before, cluster.replicas(partition), electable, electable)
        if after.leader != NO_LEADER and after != before:
            plan[partition] = _next_state(state, after, controller_epoch)
    return plan


def plan_for_new(
    topics: Iterable[Topic], electable: Collection[int], controller_epoch: int
) -> Plan:
    """The first states of all partitions of topics that are about to be created."""
    return {
        partition: first_state(topic.assignment[partition.partition], electable, controller_epoch)
        for topic in topics
        for partition in topic.partitions
    }


def first_state(
    assigned: tuple[int, ...], electable: Collection[int], controller_epoch: int
) -> LeaderAndIsr:
    """The first state of a new partition, which is offline if no replica is alive.

    Kafka writes no state in that case, and clients see one partition too few. All replicas are then
    in the ISR: they are empty, so any of them may lead later.
    """
    isr = tuple(replica for replica in assigned if replica in electable)
    leader = isr[0] if isr else NO_LEADER
    return LeaderAndIsr(leader, 0, isr or assigned, controller_epoch, FIRST_ZK_VERSION)


def elect(
    before: Election, assigned: Sequence[int], alive: Collection[int], electable: Collection[int]
) -> Election:
    """Leader and ISR when exactly the brokers in `alive` are, and those in `electable` may lead."""
    isr = tuple(replica for replica in before.isr if replica in alive)
    if before.leader in isr:
        return Election(before.leader, isr)
    candidates = (each for each in assigned if each in isr and each in electable)
    leader = next(candidates, NO_LEADER)
    return Election(leader, before.isr if leader == NO_LEADER else isr)


def _next_state(state: LeaderAndIsr, after: Election, controller_epoch: int) -> LeaderAndIsr:
    epoch, version = state.leader_epoch + 1, state.zk_version + 1
    return LeaderAndIsr(after.leader, epoch, after.isr, controller_epoch, version)
