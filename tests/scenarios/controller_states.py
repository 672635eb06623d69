"""Partitions with several replicas, in scenarios of the controller: what ZooKeeper has of them.

Topics get their replicas from a tool that writes the topic's znode.
"""

from __future__ import annotations

from typing import Any

from controller_world import Cluster

from kdist.controller.controller import Controller
from kdist.model import TopicPartition
from kdist.zk import znodes
from kdist.zk.client import Create, Set
from kdist.zk.values import PartitionState, TopicAssignment, VettedDisk


async def assign(cluster: Cluster, name: str, *replicas: tuple[int, ...]) -> None:
    """Write a topic with these replicas, and wait until the controller has made it whole."""
    zk = cluster.nodes[1].zk
    assert zk is not None
    data = znodes.TOPIC.encode(TopicAssignment(dict(enumerate(replicas)), None))
    await zk.multi([Create(znodes.TOPIC.path(name), data)])
    await cluster.until(lambda: name in cluster.topics() and all(cluster.states().values()))
    await cluster.converge()


def state_of(cluster: Cluster, partition: TopicPartition) -> tuple[PartitionState, int]:
    """The state in ZooKeeper, and its version."""
    path = znodes.PARTITION_STATE.path(*partition)
    data, stat = cluster.ensemble.tree.get(path)
    return znodes.PARTITION_STATE.decode(path, data), stat.version


def overwrite(cluster: Cluster, partition: TopicPartition, **changes: Any) -> None:
    """Write a state as if someone else had, who respects nothing but the controller epoch."""
    state, _ = state_of(cluster, partition)
    path = znodes.PARTITION_STATE.path(*partition)
    cluster.ensemble.tree.write((Set(path, state._replace(**changes).encode()),), 0, 0)


def controller_of(cluster: Cluster) -> Controller:
    assert cluster.controller is not None
    return cluster.controller


def vetted(cluster: Cluster, broker_id: int) -> VettedDisk:
    path = znodes.VETTED_DISK.path(broker_id)
    return znodes.VETTED_DISK.decode(path, cluster.ensemble.tree.get(path).data)


async def settle(cluster: Cluster) -> None:
    """Until all is registered, and the controller has judged what that means."""
    await cluster.until(lambda: len(cluster.registered()) == len(cluster.alive))
    await cluster.until(
        lambda: all(
            vetted(cluster, node.id) == VettedDisk(node.disk, node.content)
            for node in cluster.alive
        )
    )
