"""What a seed draws before its history begins: the cluster's shape, its settings, its faults.

Each is drawn apart, and each fault is on or off, since a history with all of them on hides half of
what can happen: where brokers die all the time no deletion is ever under way for long.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

from kdist.model import OFFSETS_TOPIC
from tests.simulator.aiming import AIMS
from tests.simulator.faults import EMPTY_DISK, KINDS

TOPIC = "clicks"  # it stays; the others are deleted and created again
MORTAL = ("views", "likes")
TALLIES = "tallies"  # compacted; in some seeds (`compacting.py`)
_AIMS_SHARE = 0.4
_SELDOM_SHARE = 0.4  # of topics that are flushed before records are exposed
MESSAGE_BYTES_MAX = 8_000  # less than any segment


class TopicShape(NamedTuple):
    """How a topic is created; `settings` are its own."""

    replication_factor: int
    min_insync: int
    is_flushed: bool  # before records are exposed
    own: Mapping[str, str] = MappingProxyType({})
    delete_retention_s: float = 0.0

    @property
    def is_compacted(self) -> bool:
        return "compact" in self.own.get("cleanup.policy", "")

    @property
    def settings(self) -> dict[str, str]:
        return {
            "min.insync.replicas": str(self.min_insync),
            "flush.before.expose": str(self.is_flushed).lower(),
            "flush.ms": "500" if self.is_flushed else "9223372036854775807",
            **self.own,
        }


class Shape(NamedTuple):
    """One seed's."""

    hosts: dict[int, str]  # of the brokers, which lose power together
    partitions: dict[str, int]  # of the topics that there are at first
    topics: dict[str, TopicShape]  # of all that there may be
    kinds: tuple[str, ...]  # of faults
    pause_s: float  # between faults, on average
    faults_s: float  # for which they go on
    settings: dict[str, str]  # of all brokers
    producers: int
    members: int  # of the group, most of the time
    strategy: str
    lag_ms: int  # of ZooKeeper's followers, from the beginning
    has_core: bool  # some brokers are well again before the others
    tallies: int = 0  # partitions of the compacted topic
    leaves_behind: bool = False  # a follower of it stays away for longer than tombstones do
    aims: tuple[str, ...] = ()  # of faults at moments of the code

    @property
    def broker_ids(self) -> list[int]:
        return list(self.hosts)

    @property
    def session_s(self) -> float:
        return int(self.settings["zookeeper.session.timeout.ms"]) / 1000

    @property
    def fetch_wait_s(self) -> float:
        return int(self.settings["replica.fetch.wait.max.ms"]) / 1000

    @property
    def lag_s(self) -> float:
        return int(self.settings["replica.lag.time.max.ms"]) / 1000


def draw_shape(rng: random.Random) -> Shape:
    """A seed's shape."""
    # Few at a time: a cluster that is never well for a while does not get far.
    kinds = tuple(rng.sample(sorted(KINDS), rng.choice((1, 2, 3, 4, 8))))
    mortal = {name: rng.randint(1, 3) for name in MORTAL if rng.random() < 0.5}
    hosts = _draw_hosts(rng)
    # A partition all of whose disks were replaced is offline for good. So it is if one is, while
    # the others are away, unless there must be two at least.
    least = 2 if EMPTY_DISK in kinds else 1
    names = (TOPIC, *MORTAL, OFFSETS_TOPIC)
    topics = {name: draw_topic(rng, len({*hosts.values()}), least) for name in names}
    return Shape(
        hosts=hosts,
        partitions={TOPIC: rng.randint(1, 3)} | mortal,
        topics=topics,
        kinds=kinds,
        pause_s=rng.uniform(0.8, 4),
        faults_s=rng.choice((12.0, 20.0, 35.0)),
        settings=_settings(rng, topics[OFFSETS_TOPIC]),
        producers=rng.randint(1, 3),
        members=rng.randint(1, 3),
        strategy=rng.choice(("range", "roundrobin", "sticky", "cooperative-sticky")),
        lag_ms=rng.choice((0, 0, 50, 1_000)),
        has_core=rng.random() < 0.4,
    )


def draw_retention(rng: random.Random, topics: Mapping[str, TopicShape]) -> dict[str, TopicShape]:
    """The topics, of which some delete by time while the history lasts. Of a stream of its own, as
    are the aims."""
    found = dict(topics)
    for name in (TOPIC, *MORTAL):
        retention_ms = rng.choice((*[None] * 3, 5_000, 10_000))
        if retention_ms is not None:
            found[name] = found[name]._replace(own={"retention.ms": str(retention_ms)})
    return found


def draw_flushes(rng: random.Random, topics: Mapping[str, TopicShape]) -> dict[str, TopicShape]:
    """The topics, of which some are hardly ever flushed but for who waits for it."""
    found = dict(topics)
    for name in (TOPIC, *MORTAL):
        if rng.random() < _SELDOM_SHARE and found[name].is_flushed:
            found[name] = found[name]._replace(own={**found[name].own, "flush.ms": "20000"})
    return found


def draw_aims(rng: random.Random) -> tuple[str, ...]:
    """Which kinds of them are on."""
    return tuple(each for each in AIMS if rng.random() < _AIMS_SHARE)


def _draw_hosts(rng: random.Random) -> dict[int, str]:
    """Two to four brokers, of which two may share a host."""
    count = rng.choice((2, 3, 3, 3, 4))
    shared = rng.random() < 0.3 and count > 2
    return {each: f"h{1 if shared and each == count else each}" for each in range(1, count + 1)}


def draw_topic(rng: random.Random, hosts: int, least: int) -> TopicShape:
    """How a topic is created that has `least` replicas at least."""
    factor = max(least, min(hosts, rng.choice((1, 2, 3, 3, 3))))
    min_insync = max(least, min(factor, rng.choice((1, 2, 2))))
    return TopicShape(factor, min_insync, rng.random() < 0.4)


def _settings(rng: random.Random, offsets: TopicShape) -> dict[str, str]:
    return {
        "auto.create.topics.enable": "false",  # `Operating` alone creates them
        "message.max.bytes": str(MESSAGE_BYTES_MAX),
        "log.segment.bytes": str(rng.choice((10_000, 40_000, 1 << 30))),
        "log.retention.check.interval.ms": str(rng.choice((500, 3_000))),
        "log.retention.bytes": str(rng.choice((-1, -1, -1, 1_000))),
        "log.segment.delete.delay.ms": str(rng.choice((0, 500, 3_000))),
        "max.incremental.fetch.session.cache.slots": str(rng.choice((1, 2, 1_000))),
        "log.message.timestamp.type": rng.choice(("CreateTime", "CreateTime", "LogAppendTime")),
        "compression.type": rng.choice(("producer", "producer", "gzip")),
        "zookeeper.session.timeout.ms": str(rng.choice((2_000, 4_000, 6_000, 10_000))),
        "replica.lag.time.max.ms": str(rng.choice((1_000, 3_000, 10_000))),
        "replica.fetch.wait.max.ms": str(rng.choice((20, 100, 500, 500))),
        "replica.socket.timeout.ms": str(rng.choice((1_000, 5_000, 30_000))),
        "offsets.topic.replication.factor": str(offsets.replication_factor),
        "min.insync.replicas": str(offsets.min_insync),
        "log.flush.before.expose": str(offsets.is_flushed).lower(),
        "log.flush.interval.messages": str(rng.choice((1, 10, 1 << 40, 1 << 40))),
    } | ({"log.flush.interval.ms": "500"} if offsets.is_flushed else {})
