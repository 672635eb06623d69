"""AlterPartition: the ISRs that leaders propose, judged against the controller context.

    what is wrong, in the order of the checks                       answer
    the sender is not registered with exactly this broker epoch     STALE_BROKER_EPOCH, for all
    no topic has the id; no such partition, or it is being deleted  UNKNOWN_TOPIC_ID,
                                                                    UNKNOWN_TOPIC_OR_PARTITION
    its leader epoch is newer: a later controller made it leader    NOT_CONTROLLER
    its leader epoch is older                                       FENCED_LEADER_EPOCH
    nothing: the state is as proposed, as when an answer was lost   success (KAFKA-14144)
    its partition epoch is newer, older                             NOT_CONTROLLER,
                                                                    INVALID_UPDATE_VERSION
    the sender does not lead; the ISR lacks the leader, or has a    INVALID_REQUEST
    broker that is no replica; a leader that is recovering has
    others in its ISR; one that has recovered is recovering again
    a member is dead or has registered anew; it is about to stop,   INELIGIBLE_REPLICA (KAFKA-14140)
    and not in the ISR yet

Otherwise the ISR is written, and the answer has the partition's new epoch. The leader epoch stays:
an ISR change is no election. Members that leave an ISR below its minimum stay eligible. Source:
Apache Kafka's `KafkaController.processAlterPartition`; for INVALID_REQUEST and newer partition
epochs its `ReplicationControlManager`; KIP-497, 704, 841, 903, 966.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from functools import partial
from typing import NamedTuple

from kdist.controller.commands import CommandContext
from kdist.controller.context import ControllerContext
from kdist.controller.elections import Plan, eligible_after
from kdist.errors import Error
from kdist.model import NO_EPOCH, ZERO_UUID, LeaderAndIsr, TopicPartition
from kdist.protocol.alter_partition import (
    RECOVERED,
    RECOVERING,
    AlteredPartition,
    AlteredPartitionResult,
    AlteredTopic,
    AlteredTopicResult,
    AlterPartitionRequest,
    AlterPartitionResponse,
)


class IsrProposal(NamedTuple):
    """An ISR, with its members' broker epochs, -1 where the sender does not know (before v3)."""

    leader: int  # who sent it
    leader_epoch: int
    isr: Mapping[int, int]
    partition_epoch: int
    recovery_state: int = RECOVERED


class AlterPartition(NamedTuple):
    """Write the ISRs that a leader proposes, as far as `judge` accepts them."""

    request: AlterPartitionRequest

    async def carry_out(self, context: CommandContext) -> AlterPartitionResponse:
        """Each partition is answered by what the controller context has in the end."""
        request, cluster = self.request, context.executor.cluster
        live = cluster.brokers.get(request.broker_id)
        if live is None or live.epoch != request.broker_epoch:
            return AlterPartitionResponse(error_code=Error.STALE_BROKER_EPOCH)
        names = names_in(request, cluster)
        proposals = proposals_in(request, names)
        await context.executor.alter_isrs(proposals, partial(plan_for_proposals, proposals))
        response = response_to(request, names, cluster)
        await context.executor.complete_moves(proposals)  # in epochs that the answer is not of
        return response


def judge(
    proposal: IsrProposal, partition: TopicPartition, cluster: ControllerContext
) -> Error | LeaderAndIsr:
    """The error to answer, or the state to write; the present state if that is as proposed."""
    state, replicas = cluster.leader_and_isr(partition), cluster.replicas(partition)
    if state is None or not replicas or partition.topic in cluster.queued_for_deletion:
        return Error.UNKNOWN_TOPIC_OR_PARTITION
    if proposal.leader_epoch != state.leader_epoch:
        is_newer = proposal.leader_epoch > state.leader_epoch
        return Error.NOT_CONTROLLER if is_newer else Error.FENCED_LEADER_EPOCH
    is_recovering = proposal.recovery_state != RECOVERED
    if (proposal.leader, is_recovering) == (state.leader, state.is_recovering) and (
        proposal.isr.keys() == set(state.isr)
    ):
        return state
    if proposal.partition_epoch != state.zk_version:
        is_newer = proposal.partition_epoch > state.zk_version
        return Error.NOT_CONTROLLER if is_newer else Error.INVALID_UPDATE_VERSION
    if proposal.leader != state.leader or proposal.leader not in proposal.isr:
        return Error.INVALID_REQUEST
    if not proposal.isr.keys() <= {*replicas, *state.isr}:
        return Error.INVALID_REQUEST
    if is_recovering and (len(proposal.isr) > 1 or not state.is_recovering):
        return Error.INVALID_REQUEST
    if not all(_is_eligible(*each, state.isr, cluster) for each in proposal.isr.items()):
        return Error.INELIGIBLE_REPLICA
    isr, min_isr = tuple(proposal.isr), cluster.min_isr(partition)
    return state._replace(
        isr=isr,
        zk_version=state.zk_version + 1,
        eligible=eligible_after(state, isr, replicas, min_isr),
        lossy=tuple(each for each in state.lossy if each not in isr),
        is_recovering=is_recovering,
    )


def _is_eligible(member: int, epoch: int, isr: Container[int], cluster: ControllerContext) -> bool:
    """One about to stop stays in the ISR, so that its leaders can take in who will succeed them."""
    is_able = member in cluster.brokers if member in isr else cluster.is_electable(member)
    return is_able and epoch in (NO_EPOCH, cluster.brokers[member].epoch)


def plan_for_proposals(
    proposals: Mapping[TopicPartition, IsrProposal],
    cluster: ControllerContext,
    partitions: Iterable[TopicPartition],
    controller_epoch: int,
) -> Plan:
    """The states to write for those of the partitions whose proposals change them."""
    plan: Plan = {}
    for partition in partitions:
        verdict = judge(proposals[partition], partition, cluster)
        if isinstance(verdict, LeaderAndIsr) and verdict != cluster.leader_and_isr(partition):
            plan[partition] = verdict._replace(controller_epoch=controller_epoch)
    return plan


def proposals_in(
    request: AlterPartitionRequest, names: Mapping[object, str]
) -> dict[TopicPartition, IsrProposal]:
    """The proposals for known topics; `names` maps ids to names, and names to themselves."""
    return {
        TopicPartition(names[_key(topic)], each.partition_index): _proposal(request, each)
        for topic in request.topics
        if _key(topic) in names
        for each in topic.partitions
    }


def response_to(
    request: AlterPartitionRequest, names: Mapping[object, str], cluster: ControllerContext
) -> AlterPartitionResponse:
    """An error or state for each partition of the request."""
    proposals = proposals_in(request, names)
    results = []
    for topic in request.topics:
        name = names.get(_key(topic))
        unknown = Error.UNKNOWN_TOPIC_ID if topic.topic_id != ZERO_UUID else None
        verdicts = [
            (unknown or Error.UNKNOWN_TOPIC_OR_PARTITION)
            if name is None
            else judge(proposals[each], each, cluster)
            for each in (TopicPartition(name or "", p.partition_index) for p in topic.partitions)
        ]
        results.append(
            AlteredTopicResult(
                topic_name=topic.topic_name,
                topic_id=topic.topic_id,
                partitions=[
                    _result(each.partition_index, verdict)
                    for each, verdict in zip(topic.partitions, verdicts, strict=True)
                ],
            )
        )
    return AlterPartitionResponse(error_code=Error.NONE, topics=results)


def names_in(request: AlterPartitionRequest, cluster: ControllerContext) -> dict[object, str]:
    """The names of the request's topics that are known, by their ids or names."""
    names: dict[object, str] = {}
    for asked in request.topics:
        if asked.topic_id == ZERO_UUID:
            found = cluster.topics.get(asked.topic_name)
        else:
            found = cluster.topic_with(asked.topic_id)
        if found is not None:
            names[_key(asked)] = found.name
    return names


def _key(topic: AlteredTopic) -> object:
    """A topic's id, or before version 2 its name."""
    return topic.topic_id if topic.topic_id != ZERO_UUID else topic.topic_name


def _proposal(request: AlterPartitionRequest, partition: AlteredPartition) -> IsrProposal:
    isr = {each.broker_id: each.broker_epoch for each in partition.new_isr_with_epochs}
    return IsrProposal(
        request.broker_id,
        partition.leader_epoch,
        isr or dict.fromkeys(partition.new_isr, NO_EPOCH),
        partition.partition_epoch,
        partition.leader_recovery_state,
    )


def _result(index: int, verdict: Error | LeaderAndIsr) -> AlteredPartitionResult:
    if isinstance(verdict, Error):
        return AlteredPartitionResult(partition_index=index, error_code=verdict)
    return AlteredPartitionResult(
        partition_index=index,
        error_code=Error.NONE,
        leader_id=verdict.leader,
        leader_epoch=verdict.leader_epoch,
        isr=list(verdict.isr),
        leader_recovery_state=RECOVERING if verdict.is_recovering else RECOVERED,
        partition_epoch=verdict.zk_version,
        eligible_replicas=list(verdict.eligible),
    )
