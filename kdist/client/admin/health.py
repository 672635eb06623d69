"""Cluster health: what the brokers report, judged by a list of rules.

`examine` asks the brokers; `judge` is pure. It judges what clients see. The gate of a rolling
restart (gate.py) reads ZooKeeper instead, since a broker that is cut off has stale metadata.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Literal, NamedTuple

from kdist.client.admin.asking import ask_brokers
from kdist.client.admin.brokers import (
    ClusterView,
    VersionRange,
    describe_cluster,
    describe_versions,
)
from kdist.client.admin.disks import LogDirectory, log_directories
from kdist.client.admin.reassignments import with_moves
from kdist.client.admin.settings import describe_topic_configs
from kdist.client.admin.topics import Partition, Topic, list_topics
from kdist.client.cluster import Cluster
from kdist.errors import ApiError, Error

PATIENCE_S = 5.0  # a broker that takes longer to answer counts as not serving
FREE_SHARE_MIN = 0.1  # of a volume; less free space than this is a warning

_MIN_ISR = "min.insync.replicas"
_Level = Literal["bad", "warning"]


class Finding(NamedTuple):
    """A problem, and the items it concerns; `name` is that of the matching alert."""

    level: _Level
    name: str
    sentence: str
    items: Sequence[str] = ()


class Examined(NamedTuple):
    """What the brokers report. `min_isr` is by topic; empty if brokers are too old to say."""

    view: ClusterView
    versions: Mapping[int, Mapping[str, VersionRange] | ApiError]
    topics: Sequence[Topic]
    min_isr: Mapping[str, int]
    disks: Mapping[int, Sequence[LogDirectory] | ApiError]


async def examine(cluster: Cluster) -> list[Finding]:
    """All problems, the bad ones first; none if the cluster is healthy."""
    topics = await with_moves(cluster, await list_topics(cluster))
    examined = Examined(
        await describe_cluster(cluster),
        await describe_versions(cluster, PATIENCE_S),
        topics,
        await _min_isr(cluster, topics),
        await _disks(cluster),
    )
    return sorted(judge(examined), key=lambda each: each.level)


async def missing_brokers(cluster: Cluster) -> list[int]:
    """The brokers that have replicas, and are not there."""
    topics = await list_topics(cluster)
    alive = {each.id for each in (await describe_cluster(cluster)).brokers}
    return sorted(_assigned(topics) - alive)


def _assigned(topics: Sequence[Topic]) -> set[int]:
    return {broker for topic in topics for each in topic.partitions for broker in each.replicas}


async def _min_isr(cluster: Cluster, topics: Sequence[Topic]) -> dict[str, int]:
    try:
        found = await describe_topic_configs(cluster, [topic.name for topic in topics])
    except ApiError as error:
        if error.error is Error.UNSUPPORTED_VERSION:
            return {}
        raise
    return {
        topic: int(settings[_MIN_ISR].value or 1)
        for topic, settings in found.items()
        if _MIN_ISR in settings
    }


async def _disks(cluster: Cluster) -> Mapping[int, Sequence[LogDirectory] | ApiError]:
    return await ask_brokers(
        cluster, lambda broker: log_directories(cluster, broker), patience_s=PATIENCE_S
    )


def judge(examined: Examined) -> Iterator[Finding]:
    """The problems in what was examined (pure)."""
    yield from _judge_brokers(examined)
    yield from _judge_partitions(examined)
    yield from _judge_disks(examined)


def _judge_brokers(examined: Examined) -> Iterator[Finding]:
    if examined.view.controller is None:
        yield Finding("bad", "NoActiveController", "The cluster has no controller.")
    alive = {each.id for each in examined.view.brokers}
    if gone := [f"broker {each}" for each in sorted(_assigned(examined.topics) - alive)]:
        yield Finding("bad", "BrokerDown", "Brokers that have replicas are not there.", gone)
    answers = examined.versions.items()
    if silent := [f"broker {each}" for each, said in answers if isinstance(said, ApiError)]:
        yield Finding("bad", "BrokerNotServing", "Brokers do not answer.", silent)
    spoken = {
        each: tuple(sorted(said.items())) for each, said in answers if isinstance(said, Mapping)
    }
    if len(set(spoken.values())) > 1:
        items = [f"broker {each}" for each in spoken]
        yield Finding("warning", "MixedReleases", "Brokers are of different releases.", items)


_OF_PARTITIONS: Mapping[str, tuple[_Level, str]] = {
    "OfflinePartitions": ("bad", "Partitions have no leader."),
    "PartitionsUnderMinIsr": (
        "bad",
        "Partitions have fewer replicas in sync than min.insync.replicas.",
    ),
    "UnderReplicatedPartitions": ("warning", "Partitions have replicas that are not in sync."),
    "LeadersNotPreferred": (
        "warning",
        "Partitions are led by another than their preferred replica.",
    ),
    "Reassigning": ("warning", "Partitions are being moved."),
}


def _judge_partitions(examined: Examined) -> Iterator[Finding]:
    found: dict[str, list[str]] = {each: [] for each in _OF_PARTITIONS}
    for topic, each in _partitions(examined):
        for name in _faults_of(each, examined.min_isr.get(topic, 1)):
            found[name].append(f"{topic}-{each.number}")
    for name, (level, sentence) in _OF_PARTITIONS.items():
        if found[name]:
            yield Finding(level, name, sentence, found[name])


def _faults_of(each: Partition, min_isr: int) -> Iterator[str]:
    """What there is to say of a partition. Replicas that a move adds need not be in sync yet."""
    wanted = len(each.settled)
    if each.leader is None:
        yield "OfflinePartitions"
    elif len(each.isr) < min(min_isr, wanted):
        yield "PartitionsUnderMinIsr"
    elif len(each.isr) < wanted:
        yield "UnderReplicatedPartitions"
    if each.is_moving:
        yield "Reassigning"
    elif each.leader not in (None, each.replicas[0]):
        yield "LeadersNotPreferred"


def _partitions(examined: Examined) -> Iterator[tuple[str, Partition]]:
    return ((topic.name, each) for topic in examined.topics for each in topic.partitions)


def _judge_disks(examined: Examined) -> Iterator[Finding]:
    failed, full = [], []
    for broker, found in examined.disks.items():
        for each in () if isinstance(found, ApiError) else found:  # reported as not serving
            if each.error is not None:
                failed.append(f"broker {broker}: {each.path}")
            elif _free_share(each) < FREE_SHARE_MIN:
                full.append(f"broker {broker}: {each.path}")
    if failed:
        yield Finding("bad", "DiskFailed", "Log directories have failed.", failed)
    if full:
        yield Finding("warning", "DiskNearlyFull", "Volumes have less than a tenth free.", full)


def _free_share(each: LogDirectory) -> float:
    if not each.total_bytes or each.usable_bytes is None:
        return 1.0  # not known
    return each.usable_bytes / each.total_bytes
