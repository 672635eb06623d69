"""What a seed draws before its history begins: the cluster's shape, its settings, its faults.

Each is drawn apart, and each fault is on or off, since a history with all of them on hides half of
what can happen: where brokers die all the time no deletion is ever under way for long.
"""

from __future__ import annotations

import random
from typing import NamedTuple

from tests.simulator.faults import KINDS

TOPIC = "clicks"  # it stays; the others are deleted and created again
MORTAL = ("views", "likes")
MESSAGE_BYTES_MAX = 8_000  # less than any segment


class Shape(NamedTuple):
    """One seed's."""

    broker_ids: range
    partitions: dict[str, int]  # of the topics that there are at first
    kinds: tuple[str, ...]  # of faults
    pause_s: float  # between faults, on average
    faults_s: float  # for which they go on
    is_flushed: bool  # before records are exposed
    settings: dict[str, str]  # of all brokers
    producers: int
    members: int  # of the group, most of the time
    strategy: str
    lag_ms: int  # of ZooKeeper's followers, from the beginning


def draw_shape(rng: random.Random) -> Shape:
    """A seed's shape."""
    is_flushed = rng.random() < 0.5
    # Few at a time: a cluster that is never well for a while does not get far.
    kinds = tuple(rng.sample(sorted(KINDS), rng.choice((1, 2, 3, 4, 8))))
    mortal = {name: rng.randint(1, 3) for name in MORTAL if rng.random() < 0.5}
    return Shape(
        broker_ids=range(1, rng.choice((1, 2, 3, 3, 4)) + 1),
        partitions={TOPIC: rng.randint(1, 3)} | mortal,
        kinds=kinds,
        pause_s=rng.uniform(0.8, 4),
        faults_s=rng.choice((12.0, 20.0, 35.0)),
        is_flushed=is_flushed,
        settings=_settings(rng, is_flushed),
        producers=rng.randint(1, 3),
        members=rng.randint(1, 3),
        strategy=rng.choice(("range", "roundrobin", "sticky", "cooperative-sticky")),
        lag_ms=rng.choice((0, 0, 50, 1_000)),
    )


def _settings(rng: random.Random, is_flushed: bool) -> dict[str, str]:
    settings = {
        "auto.create.topics.enable": "false",  # `Operating` alone creates them
        "message.max.bytes": str(MESSAGE_BYTES_MAX),
        "log.segment.bytes": str(rng.choice((10_000, 40_000, 1 << 30))),
        "log.segment.delete.delay.ms": str(rng.choice((0, 500, 3_000))),
        "max.incremental.fetch.session.cache.slots": str(rng.choice((1, 2, 1_000))),
        "log.message.timestamp.type": rng.choice(("CreateTime", "CreateTime", "LogAppendTime")),
        "compression.type": rng.choice(("producer", "producer", "gzip")),
    }
    if is_flushed:
        settings |= {"log.flush.before.expose": "true", "log.flush.interval.ms": "500"}
    elif rng.random() < 0.3:
        settings["log.flush.interval.messages"] = str(rng.randint(1, 20))
    return settings
