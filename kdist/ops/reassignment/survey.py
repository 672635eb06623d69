"""Reads a site from its brokers: disks, partitions, and for a moment how fast these grow."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from kdist.client.admin.asking import ask_brokers
from kdist.client.admin.brokers import describe_cluster
from kdist.client.admin.disks import LogDirectory, log_directories
from kdist.client.admin.reassignments import Reassignment
from kdist.client.admin.topics import list_topics
from kdist.client.cluster import Cluster
from kdist.errors import ApiError, UserError
from kdist.model import TopicPartition
from kdist.ops.gate import PROBE_PREFIX
from kdist.ops.reassignment.site import Disk, Placed, Site

Sizes = dict[TopicPartition, int]

_PATIENCE_S = 10.0


async def read_site(
    cluster: Cluster, sample_s: float, moving: Mapping[TopicPartition, Reassignment] | None = None
) -> Site:
    """The site now. A partition's rate is by how much its largest replica grows in `sample_s`.

    Partitions that are `moving` count as where they are going.
    What is deleted meanwhile makes it look slower. A broker that does not answer counts as one that
    is down: so does one that has died, until its session ends. `UserError` if a broker does not say
    how large its volume is, as Apache Kafka does from 3.3 on.
    """
    told = await _log_directories(cluster)
    before = largest_sizes(told)
    if sample_s:
        await asyncio.sleep(sample_s)
        told = await _log_directories(cluster)
    sizes = largest_sizes(told)
    brokers = [each for each in (await describe_cluster(cluster)).brokers if each.id in told]
    is_one_host = len({each.host for each in brokers}) == 1
    disks = {}
    for each in brokers:
        # Where all are on one, as on a developer's machine, each counts as a host of its own.
        host = f"{each.host}:{each.port}" if is_one_host else each.host
        disks[each.id] = Disk(each.id, host, each.rack, _room(each.id, told[each.id]))
    partitions = []
    for topic in await list_topics(cluster):
        if topic.name.startswith(PROBE_PREFIX):
            continue
        for found in topic.partitions:
            partition = TopicPartition(topic.name, found.number)
            size = sizes.get(partition, 0)
            grown = max(size - before.get(partition, size), 0)
            rate = grown / sample_s if sample_s else 0.0
            is_led = found.leader is not None
            move = moving.get(partition) if moving else None
            replicas = move.target if move else found.replicas
            partitions.append(Placed(partition, replicas, size, rate, is_led))
    return Site(disks, tuple(partitions))


async def _log_directories(cluster: Cluster) -> dict[int, list[LogDirectory]]:
    """Those of each broker that answers. `ApiError` if one answers with an error."""
    answers = await ask_brokers(
        cluster, lambda broker: log_directories(cluster, broker), patience_s=_PATIENCE_S
    )
    told = {}
    for broker, found in answers.items():
        if not isinstance(found, ApiError):
            told[broker] = found
        elif not found.error.retriable:
            raise found
    return told


def largest_sizes(told: Mapping[int, list[LogDirectory]]) -> Sizes:
    """The size of each partition's largest replica, in bytes."""
    sizes: Sizes = {}
    for directories in told.values():
        for each in (one for directory in directories for one in directory.replicas):
            if not each.is_future:
                sizes[each.partition] = max(each.size_bytes, sizes.get(each.partition, 0))
    return sizes


def _room(broker: int, directories: list[LogDirectory]) -> int:
    room = 0
    for each in directories:
        if each.error is not None:
            continue  # an Apache Kafka broker goes on without it
        if each.usable_bytes is None:
            raise UserError(f"broker {broker} does not say how much room its disk has")
        room += each.size_bytes + each.usable_bytes
    return room
