"""Moving partitions to other replicas: what each step makes of assignment and state (pure).

    step       when                               assignment            leader and ISR, anew
    begin      asked for, perhaps while another   target, then the      as they are
               move is under way                  rest of the origin
    (wait)     not all of the target are in sync, as it is              as they are
               or none of it may lead
    complete   all of the target are in sync      target                those of the target
    cancel     asked for, and as many of the      origin, in its order  those of the origin
               origin are in sync as there must
    turn back  asked for, and there are fewer     origin, then who is   as they are
                                                  in sync besides
    resume     another controller takes over      as it is              as they are

The origin is the assignment before the first move; a turned back one has it as its target. A step
writes the topic's znode and the states together, so that a controller may die between steps, but
not amid one. A new epoch has all brokers take the new assignment, those of Apache Kafka too.

Invariant: no step takes replicas out of an ISR so that fewer than `min.insync.replicas` are left.
Who leaves the assignment is `removed` until its broker has deleted the log, even if it is down now.
Source: KIP-455. Its encoding forgets the origin's order, which is kept in a field of kdist's own.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

from kdist.controller.context import Assigned, ControllerContext
from kdist.controller.elections import Election, Plan, next_state
from kdist.errors import ApiError, Error
from kdist.model import NO_LEADER, LeaderAndIsr, TopicPartition

Target = tuple[int, ...]


class MoveStep(NamedTuple):
    """What is written of one partition; `state` is None if it has none yet."""

    assigned: Assigned
    state: LeaderAndIsr | None


MoveSteps = dict[TopicPartition, MoveStep]


def plan_begin(
    cluster: ControllerContext, partition: TopicPartition, target: Target, controller_epoch: int
) -> MoveStep | None:
    """Begin to move the partition; None if it is there, or on its way, already.

    `ApiError` if there is no such partition, or the target is none.
    """
    assigned = _assigned(cluster, partition)
    _check_target(cluster, assigned, target)
    if assigned.target == target:
        return None
    state = cluster.leader_and_isr(partition)
    origin = assigned.origin
    rest = tuple(each for each in origin if each not in target)
    if not _may_drop(cluster, partition, state, {*target, *rest}):
        rest += _in_sync_besides(assigned, state, {*target, *rest})
    adding = tuple(each for each in target if each not in origin)
    is_moving = bool(adding or rest)
    after = _becoming(assigned, (*target, *rest), adding, rest, origin if is_moving else ())
    return _step(cluster, after, state, controller_epoch)


def plan_cancel(
    cluster: ControllerContext, partition: TopicPartition, controller_epoch: int
) -> MoveStep:
    """Cancel the partition's move. `ApiError` if none is under way."""
    assigned = _assigned(cluster, partition)
    if not assigned.is_moving:
        raise ApiError(Error.NO_REASSIGNMENT_IN_PROGRESS)
    state, origin = cluster.leader_and_isr(partition), assigned.origin
    rest: Target = ()
    if not _may_drop(cluster, partition, state, origin):
        rest = _in_sync_besides(assigned, state, origin)
    after = _becoming(assigned, (*origin, *rest), (), rest, origin if rest else ())
    return _step(cluster, after, state, controller_epoch)


def plan_completions(
    cluster: ControllerContext, partitions: Iterable[TopicPartition], controller_epoch: int
) -> MoveSteps:
    """Complete those moves whose targets are in sync."""
    steps: MoveSteps = {}
    for partition in partitions:
        assigned, state = _assigned(cluster, partition), cluster.leader_and_isr(partition)
        target = assigned.target
        if not assigned.is_moving or state is None or not {*target} <= {*state.isr}:
            continue
        if _leader_among(cluster, state, target) != NO_LEADER:
            after = _becoming(assigned, target, (), (), ())
            steps[partition] = _step(cluster, after, state, controller_epoch)
    return steps


def plan_new_epochs(
    cluster: ControllerContext, partitions: Iterable[TopicPartition], controller_epoch: int
) -> Plan:
    """The same leaders and ISRs in new epochs."""
    states = {each: cluster.leader_and_isr(each) for each in partitions}
    return {
        each: next_state(state, Election.of(state), controller_epoch)
        for each, state in states.items()
        if state is not None
    }


def _assigned(cluster: ControllerContext, partition: TopicPartition) -> Assigned:
    topic = cluster.topics.get(partition.topic)
    if topic is None or partition.partition not in topic.assignment:
        raise ApiError(Error.UNKNOWN_TOPIC_OR_PARTITION, "The partition does not exist.")
    if partition.topic in cluster.queued_for_deletion:
        raise ApiError(Error.UNKNOWN_TOPIC_OR_PARTITION, "The topic is being deleted.")
    return topic.assigned(partition.partition)


def _check_target(cluster: ControllerContext, assigned: Assigned, target: Target) -> None:
    if not target or len({*target}) < len(target) or min(target) < 0:
        why = "The replicas must be at least one, each named once, by ids from 0 on."
        raise ApiError(Error.INVALID_REPLICA_ASSIGNMENT, why)
    dead = [each for each in target if each not in cluster.alive | {*assigned.replicas}]
    if dead:
        why = f"Broker {', '.join(map(str, dead))} is not alive."
        raise ApiError(Error.INVALID_REPLICA_ASSIGNMENT, why)
    hosts = [cluster.brokers[each].placed.host for each in target if each in cluster.brokers]
    if len({*hosts}) < len(hosts):
        why = "Two of the brokers are on one host, and would be lost together."
        raise ApiError(Error.INVALID_REPLICA_ASSIGNMENT, why)


def _may_drop(
    cluster: ControllerContext,
    partition: TopicPartition,
    state: LeaderAndIsr | None,
    kept: Collection[int],
) -> bool:
    """Whether all but these may leave the assignment at once."""
    if state is None or {*state.isr} <= {*kept}:
        return True
    in_sync = [each for each in state.isr if each in kept]
    wanted = min(cluster.settings_of(partition.topic).min_insync_replicas, len(kept))
    return len(in_sync) >= wanted and _leader_among(cluster, state, in_sync) != NO_LEADER


def _in_sync_besides(
    assigned: Assigned, state: LeaderAndIsr | None, kept: Collection[int]
) -> Target:
    isr = () if state is None else state.isr
    return tuple(each for each in assigned.replicas if each in isr and each not in kept)


def _leader_among(
    cluster: ControllerContext, state: LeaderAndIsr, replicas: Collection[int]
) -> int:
    """The leader if it is one of these and alive, else the first of them that may be elected."""
    if state.leader in replicas and state.leader in cluster.alive:
        return state.leader
    fit = (each for each in replicas if each in state.isr and cluster.is_electable(each))
    return next(fit, NO_LEADER)


def _becoming(
    assigned: Assigned, replicas: Target, adding: Target, removing: Target, origin: Target
) -> Assigned:
    gone = (*assigned.removed, *assigned.replicas)
    removed = tuple(each for each in dict.fromkeys(gone) if each not in replicas)
    return Assigned(replicas, adding, removing, origin, removed)


def _step(
    cluster: ControllerContext,
    assigned: Assigned,
    state: LeaderAndIsr | None,
    controller_epoch: int,
) -> MoveStep:
    if state is None:
        return MoveStep(assigned, None)
    replicas = assigned.replicas
    is_kept = state.leader == NO_LEADER or state.leader in replicas
    leader = state.leader if is_kept else _leader_among(cluster, state, replicas)

    def kept(some: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(each for each in some if each in replicas)

    isr, eligible, emptied, lossy = map(
        kept, (state.isr, state.eligible, state.emptied, state.lossy)
    )
    after = Election(leader, isr, eligible, state.is_recovering, emptied, lossy)
    return MoveStep(assigned, next_state(state, after, controller_epoch))


def left_of_request(
    cluster: ControllerContext, request: Mapping[TopicPartition, Target]
) -> dict[TopicPartition, Target]:
    """What of a tool's request is under way still: not completed, cancelled or superseded."""
    left = {}
    for partition, target in request.items():
        topic = cluster.topics.get(partition.topic)
        if topic is None or partition.topic in cluster.queued_for_deletion:
            continue
        if partition.partition in topic.assignment:
            assigned = topic.assigned(partition.partition)
            if assigned.is_moving and assigned.target == target:
                left[partition] = target
    return left
