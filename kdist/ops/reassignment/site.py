"""What a plan of moves starts from and ends with: brokers with their disks, and partitions.

A broker has one disk, so balance over disks is balance over brokers; a host has several.
`read_site` asks the brokers, and looks for a moment how fast partitions grow; all else is pure.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from kdist.client.admin.asking import ask_brokers
from kdist.client.admin.brokers import describe_cluster
from kdist.client.admin.disks import LogDirectory, log_directories
from kdist.client.admin.reassignments import Reassignment
from kdist.client.admin.topics import list_topics
from kdist.client.cluster import Cluster
from kdist.errors import ApiError, UserError
from kdist.model import TopicPartition
from kdist.ops.gate import PROBE_PREFIX

Sizes = dict[TopicPartition, int]

_PATIENCE_S = 10.0


class Disk(NamedTuple):
    """A broker and its disk. `room_bytes`: what its logs take now, and what is free beside them."""

    broker: int
    host: str
    rack: str | None
    room_bytes: int


class Placed(NamedTuple):
    """A partition: its replicas, the preferred leader first, and the size of each.

    `bytes_per_second` is what is written to it. If nobody leads it, nothing can be copied from it.
    """

    partition: TopicPartition
    replicas: tuple[int, ...]
    size_bytes: int
    bytes_per_second: float = 0.0
    is_led: bool = True


class Site(NamedTuple):
    """The brokers that are alive, and all partitions. Replicas may be on brokers that are not."""

    disks: Mapping[int, Disk]
    partitions: tuple[Placed, ...]

    @property
    def down(self) -> frozenset[int]:
        """The brokers that have replicas and are not alive; where they are is not known."""
        having = {broker for each in self.partitions for broker in each.replicas}
        return frozenset(having - {*self.disks})


class Share(NamedTuple):
    """What a broker has: bytes in its logs, partitions that prefer it as leader, and their rate.

    `replicas`: how many, as leader or not.
    """

    bytes: int = 0
    leads: int = 0
    bytes_per_second: float = 0.0
    replicas: int = 0


def shares(partitions: Iterable[Placed]) -> dict[int, Share]:
    """What each broker that has replicas has."""
    sizes: Counter[int] = Counter()
    leads: Counter[int] = Counter()
    counts: Counter[int] = Counter()
    rates: dict[int, float] = {}
    for each in partitions:
        for broker in each.replicas:
            sizes[broker] += each.size_bytes
            counts[broker] += 1
        leader = each.replicas[0]
        leads[leader] += 1
        rates[leader] = rates.get(leader, 0.0) + each.bytes_per_second
    return {
        each: Share(sizes[each], leads[each], rates.get(each, 0.0), counts[each]) for each in sizes
    }


def rack_count(disks: Mapping[int, Disk], replicas: Iterable[int]) -> int:
    """Over how many racks replicas are spread. Brokers without a rack share one."""
    return len({disks[each].rack for each in replicas if each in disks})


async def read_site(
    cluster: Cluster, sample_s: float, moving: Mapping[TopicPartition, Reassignment] | None = None
) -> Site:
    """The site now. A partition's rate is by how much its largest replica grows in `sample_s`.

    Partitions that are `moving` count as where they are going.
    What is deleted meanwhile makes it look slower. A broker that does not answer counts as one that
    is down: so does one that has died, until its session ends. `UserError` if a broker does not say
    how large its volume is, as Apache Kafka does from 3.3 on.
    """
    directories = await _log_directories(cluster)
    before = largest_sizes(directories)
    if sample_s:
        await asyncio.sleep(sample_s)
        directories = await _log_directories(cluster)
    sizes = largest_sizes(directories)
    brokers = [each for each in (await describe_cluster(cluster)).brokers if each.id in directories]
    is_one_host = len({each.host for each in brokers}) == 1
    disks = {}
    for each in brokers:
        # Where all are on one, as on a developer's machine, each counts as a host of its own.
        host = f"{each.host}:{each.port}" if is_one_host else each.host
        disks[each.id] = Disk(each.id, host, each.rack, _room(each.id, directories[each.id]))
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
    directories = {}
    for broker, found in answers.items():
        if not isinstance(found, ApiError):
            directories[broker] = found
        elif not found.error.retriable:
            raise found
    return directories


def largest_sizes(directories: Mapping[int, list[LogDirectory]]) -> Sizes:
    """The size of each partition's largest replica, in bytes."""
    sizes: Sizes = {}
    for of_broker in directories.values():
        for each in (one for directory in of_broker for one in directory.replicas):
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
