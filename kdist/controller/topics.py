"""Requests to create, grow or delete topics, validated against the controller context (pure).

A `plan_` function returns the topic as it will be, or raises the `ApiError` that refuses it.
Source: Apache Kafka's `ZkAdminManager` and `AdminZkClient`; KIP-195 for partitions.
"""

from __future__ import annotations

import dataclasses
import random
import uuid
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from kdist.config.broker_config import BrokerConfig
from kdist.config.faults import ConfigError
from kdist.controller.context import FIRST_ZK_VERSION, ControllerContext, Topic
from kdist.controller.placement import Assignment, check_explicit, interleave, place, start_of
from kdist.errors import ApiError, Error
from kdist.model import (
    INTERNAL_TOPICS,
    OFFSETS_TOPIC,
    ZERO_UUID,
    flat,
    topic_name_fault,
)
from kdist.protocol.create_partitions import GrownTopic
from kdist.protocol.create_topics import NewTopic, TopicSetting
from kdist.protocol.delete_topics import TopicToDelete

OFFSETS_REPLICAS = 3  # of `__consumer_offsets`, as far as there are hosts
PARTITIONS_MAX = 10_000  # per topic: fits its znode within ZooKeeper's limit, with a margin
SETTINGS_BYTES_MAX = 32_767  # per topic or broker: fits a string of a response, and a znode
BROKER_DEFAULT = -1  # partitions or replication factor, in a request (KIP-464)

Counts = Mapping[str | None, int]
"""How often a request names each topic; None: by an id."""


class Planned(NamedTuple):
    """A topic to create, with its own settings."""

    topic: Topic
    configs: dict[str, str]


def plan_topic(
    new: NewTopic,
    cluster: ControllerContext,
    config: BrokerConfig,
    rng: random.Random,
    taken: Mapping[str, str],
) -> Planned:
    """The topic that `new` asks for, with a new id and placed on live brokers.

    `taken` maps the `flat` name of every topic to its name, also of those created along with it.
    """
    _check_new_name(new.name, cluster, taken)
    configs = _configs(new.configs, config)
    chosen = _chosen(new, cluster) if new.assignments else None
    assignment = chosen or _placed(new, cluster, config, rng)
    return Planned(Topic(new.name, new_topic_id(rng), assignment, FIRST_ZK_VERSION), configs)


def completed(new: NewTopic, config: BrokerConfig) -> NewTopic:
    """Fill in the brokers' defaults for `__consumer_offsets`; other topics are returned unchanged.

    Kafka does not do this if a user creates the topic, which then gets the default retention
    and would lose what groups have committed.
    """
    if new.name != OFFSETS_TOPIC:
        return new
    groups = config.groups
    settings = {
        "cleanup.policy": "compact",
        "compression.type": "producer",
        "segment.bytes": str(groups.offsets_topic_segment_bytes),
    }
    given = {each.name for each in new.configs}
    left = [TopicSetting(name=n, value=value) for n, value in settings.items() if n not in given]
    made = dataclasses.replace(new, configs=[*new.configs, *left])
    if not new.assignments and new.num_partitions == BROKER_DEFAULT:
        made.num_partitions = groups.offsets_topic_num_partitions
    factor = groups.offsets_topic_replication_factor
    if not new.assignments and new.replication_factor == BROKER_DEFAULT and factor is not None:
        made.replication_factor = factor
    return made


def plan_new_partitions(grown: GrownTopic, cluster: ControllerContext) -> Topic:
    """The topic with partitions added; existing partitions are unchanged."""
    topic = _known(grown.name, cluster)
    if topic.name in INTERNAL_TOPICS:
        raise _unusable("an internal topic's partition count is fixed: it determines where keys go")
    if topic.name in cluster.queued_for_deletion:
        raise _unusable("the topic is being deleted")
    count = _count(topic)
    if grown.count <= count:
        there = f"{count} partition{'s' * (count != 1)}"
        raise ApiError(Error.INVALID_PARTITIONS, f"the topic has {there} already")
    _check_count(grown.count)
    added = _added(grown, topic, cluster)
    return topic._replace(assignment={**topic.assignment, **added})


def check_deletable(deletion: TopicToDelete, config: BrokerConfig) -> None:
    """ApiError unless deletion is enabled and the entry has either a name or an id, not both."""
    if not config.broker.delete_topic_enable:
        raise ApiError(Error.TOPIC_DELETION_DISABLED)
    if (deletion.name is None) == (deletion.topic_id == ZERO_UUID):
        raise ApiError(Error.INVALID_REQUEST, "a topic is named by either its name or its id")


def find_deletable(deletion: TopicToDelete, cluster: ControllerContext) -> Topic:
    """The topic to delete, by name or id; it may be queued already."""
    if deletion.name is not None:
        topic = _known(deletion.name, cluster)
    elif (found := cluster.topic_with(deletion.topic_id)) is not None:
        topic = found
    else:
        raise ApiError(Error.UNKNOWN_TOPIC_ID)
    if topic.name in INTERNAL_TOPICS:
        raise _unusable("an internal topic cannot be deleted")
    return topic


def new_topic_id(rng: random.Random) -> uuid.UUID:
    """An id that no topic has (KIP-516)."""
    return uuid.UUID(int=rng.getrandbits(128), version=4)


def check_once(name: str, counts: Counts) -> None:
    """ApiError INVALID_REQUEST if a request names the topic more than once."""
    if counts[name] > 1:
        raise ApiError(Error.INVALID_REQUEST, f"the request names topic {name} more than once")


def check_settings(settings: Mapping[str, str], config: BrokerConfig) -> None:
    """ApiError INVALID_CONFIG, listing every fault, unless these are valid for a topic."""
    if not settings:
        return  # the broker's defaults were checked when it started
    try:
        config.topic(settings)
    except ConfigError as error:
        raise ApiError(Error.INVALID_CONFIG, " ".join(error.faults)) from error
    check_size(settings, "the topic's")


def check_size(settings: Mapping[str, str], whose: str) -> None:
    """ApiError INVALID_CONFIG if these take more than `SETTINGS_BYTES_MAX`."""
    size = sum(len(name.encode()) + len(value.encode()) for name, value in settings.items())
    if size > SETTINGS_BYTES_MAX:
        reason = f"{whose} settings take {size} bytes; the limit is {SETTINGS_BYTES_MAX}"
        raise ApiError(Error.INVALID_CONFIG, reason)


def _check_new_name(name: str, cluster: ControllerContext, taken: Mapping[str, str]) -> None:
    fault = topic_name_fault(name)
    if fault:
        raise _unusable(f"the topic's name {fault}")
    if name in cluster.topics:
        end = "is being deleted" if name in cluster.queued_for_deletion else "exists already"
        raise ApiError(Error.TOPIC_ALREADY_EXISTS, f"topic {name} {end}")
    if name in cluster.unreadable:
        reason = f"topic {name} exists, but its znodes in ZooKeeper are corrupt"
        raise ApiError(Error.TOPIC_ALREADY_EXISTS, reason)
    other = taken.get(flat(name))
    if other is not None:
        raise _unusable(f"topic {name} collides with topic {other}: '.' and '_' count as the same")


def _configs(settings: Iterable[TopicSetting], config: BrokerConfig) -> dict[str, str]:
    configs: dict[str, str] = {}
    for setting in settings:
        if setting.value is None:
            raise ApiError(Error.INVALID_CONFIG, f"{setting.name} has no value")
        configs[setting.name] = setting.value
    check_settings(configs, config)
    return configs


def _chosen(new: NewTopic, cluster: ControllerContext) -> Assignment:
    if (new.num_partitions, new.replication_factor) != (BROKER_DEFAULT, BROKER_DEFAULT):
        raise ApiError(
            Error.INVALID_REQUEST,
            "with an assignment, partitions and replication factor must both be -1",
        )
    _check_count(len(new.assignments))
    assignment = {each.partition_index: each.broker_ids for each in new.assignments}
    if len(assignment) < len(new.assignments):
        raise ApiError(Error.INVALID_REPLICA_ASSIGNMENT, "a partition is assigned twice")
    return _checked(assignment, 0, cluster)


def _placed(
    new: NewTopic, cluster: ControllerContext, config: BrokerConfig, rng: random.Random
) -> Assignment:
    count, factor = new.num_partitions, new.replication_factor
    if count == BROKER_DEFAULT:
        count = config.broker.num_partitions
    _check_count(count)
    order = interleave(live.placed for live in cluster.brokers.values())
    if factor == BROKER_DEFAULT and new.name == OFFSETS_TOPIC:  # and the setting is unset
        factor = max(1, min(OFFSETS_REPLICAS, len({broker.host for broker in order})))
    elif factor == BROKER_DEFAULT:
        factor = config.broker.default_replication_factor
    start = rng.randrange(len(order)) if order else 0
    return place(order, range(count), factor, start)


def _added(grown: GrownTopic, topic: Topic, cluster: ControllerContext) -> Assignment:
    first = _count(topic)
    if grown.assignments is None:
        order = interleave(live.placed for live in cluster.brokers.values())
        start = start_of(order, topic.targets)
        factor = max((len(replicas) for replicas in topic.targets.values()), default=1)
        return place(order, range(first, grown.count), factor, start)
    if len(grown.assignments) != grown.count - first:
        raise ApiError(
            Error.INVALID_REPLICA_ASSIGNMENT,
            f"{len(grown.assignments)} assignments for {grown.count - first} new partitions",
        )
    factors = {len(replicas) for replicas in topic.targets.values()}
    if not {len(each.broker_ids) for each in grown.assignments} <= factors:
        raise ApiError(
            Error.INVALID_REPLICA_ASSIGNMENT,
            f"the new partitions' replicas must be {' or '.join(map(str, sorted(factors)))} in"
            " number, as the topic's others are",
        )
    chosen = {first + at: each.broker_ids for at, each in enumerate(grown.assignments)}
    return _checked(chosen, first, cluster)


def _checked(
    assignment: dict[int, list[int]], first: int, cluster: ControllerContext
) -> Assignment:
    brokers = {live.id: live.placed for live in cluster.brokers.values()}
    return check_explicit(assignment, first, brokers)


def _count(topic: Topic) -> int:
    """The next partition's number; another tool may have written a topic with gaps."""
    return max(topic.assignment, default=-1) + 1


def _check_count(count: int) -> None:
    if not 1 <= count <= PARTITIONS_MAX:
        raise ApiError(
            Error.INVALID_PARTITIONS, f"{count} partitions: a topic has 1 to {PARTITIONS_MAX}"
        )


def _known(name: str, cluster: ControllerContext) -> Topic:
    topic = cluster.topics.get(name)
    if topic is None:
        raise ApiError(Error.UNKNOWN_TOPIC_OR_PARTITION)
    return topic


def _unusable(detail: str) -> ApiError:
    return ApiError(Error.INVALID_TOPIC_EXCEPTION, detail)
