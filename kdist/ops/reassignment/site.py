"""What a plan of moves starts from and ends with: brokers with their disks, and partitions (pure).

A broker has one disk, so balance over disks is balance over brokers; a host has several.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from kdist.model import TopicPartition


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
