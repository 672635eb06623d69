"""Moves of partitions, in scenarios of the controller: replicas that get in sync, and who asks."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import suppress

from controller_states import controller_of, state_of
from controller_world import Cluster

from kdist.controller.reassignments import Target
from kdist.errors import ApiError
from kdist.model import TopicPartition
from kdist.protocol.alter_partition import (
    AlteredPartition,
    AlteredTopic,
    AlterPartitionRequest,
    IsrMember,
)
from kdist.zk.topic_values import TopicAssignment

SYNC_S = 0.05


class Leaders:
    """What the leaders of a topic do: propose each replica that is alive, one at a time."""

    def __init__(self, cluster: Cluster, name: str) -> None:
        self._cluster = cluster
        self._name = name
        self.held_back: set[int] = set()  # replicas that do not get in sync
        self.isrs: list[tuple[int, ...]] = []  # that the topic's first partition has had
        self.task = asyncio.create_task(self._run())

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(SYNC_S)
            if self._name not in self._cluster.topics():
                continue
            topic = self._cluster.topic(self._name)
            for index in topic.partitions:
                with suppress(ApiError):
                    await self._propose(TopicPartition(self._name, index), topic)

    async def _propose(self, partition: TopicPartition, topic: TopicAssignment) -> None:
        cluster = self._cluster
        state, version = state_of(cluster, partition)
        if partition.partition == 0 and (not self.isrs or self.isrs[-1] != state.isr):
            self.isrs.append(state.isr)
        registered = cluster.registered()
        replicas = topic.partitions[partition.partition]
        coming = [
            each
            for each in replicas
            if each not in state.isr and each in registered and each not in self.held_back
        ]
        is_led = state.leader in registered and cluster.nodes[state.leader].is_up
        if not coming or not is_led or cluster.controller is None or topic.topic_id is None:
            return
        members = [*state.isr, coming[0]]
        proposed = AlteredPartition(
            partition_index=partition.partition,
            leader_epoch=state.leader_epoch,
            new_isr_with_epochs=[IsrMember(broker_id=each) for each in members],
            partition_epoch=version,
        )
        answer = await cluster.controller.alter_partition(
            AlterPartitionRequest(
                broker_id=state.leader,
                broker_epoch=registered[state.leader],
                topics=[AlteredTopic(topic_id=topic.topic_id, partitions=[proposed])],
            )
        )
        if answer.topics and not answer.topics[0].partitions[0].error_code:
            self._note(partition, state.leader_epoch, tuple(members))

    def _note(self, partition: TopicPartition, epoch: int, isr: tuple[int, ...]) -> None:
        """Leaders learn of an ISR by the answer, and other replicas need not."""
        for node in self._cluster.nodes.values():
            known = node.peer.led.get(partition)
            if known is not None and known.leader_epoch == epoch:
                node.peer.led[partition] = known._replace(isr=isr)


async def move(cluster: Cluster, targets: Mapping[TopicPartition, Target | None]) -> list[str]:
    """Ask the controller; the names of the errors, in order."""
    outcomes = await controller_of(cluster).alter_reassignments(targets, 20_000)
    return ["NONE" if each is None else each.error.name for each in outcomes.values()]


def is_moving(cluster: Cluster, name: str) -> bool:
    topic = cluster.topic(name)
    return bool(topic.adding or topic.removing)


async def moved(cluster: Cluster, name: str) -> TopicAssignment:
    """Until nothing of the topic moves any more, and nothing is left behind."""
    await cluster.until(lambda: not is_moving(cluster, name))
    await cluster.until(lambda: not cluster.topic(name).removed)
    await cluster.converge()
    return cluster.topic(name)
