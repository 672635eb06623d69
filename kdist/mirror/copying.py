"""Creates a source's topics in the target, and adds partitions to them.

A topic is created with the settings that the source's topic overrides. Later changes of settings
are not copied, nor are settings of a topic that the target already had.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import NamedTuple

from kdist.client.admin.settings import OF_TOPIC, describe_topic_configs
from kdist.client.admin.topics import NewTopic, create_partitions, create_topics, list_topics
from kdist.client.cluster import Cluster
from kdist.errors import ApiError, Error

logger = logging.getLogger(__name__)

_NOT_COPIED = (
    "message.timestamp.type",  # batches keep the timestamps that they have in the source
    "follower.replication.throttled.replicas",  # these name brokers
    "leader.replication.throttled.replicas",
    "min.insync.replicas",  # fits the source's number of replicas
)


class Refused(NamedTuple):
    """Why the target refuses, by topic of the source: to have it, or to add partitions to it."""

    topics: dict[str, str]
    partitions: dict[str, str]


async def count_partitions(cluster: Cluster) -> dict[str, int]:
    """The number of partitions of every topic that is not internal."""
    topics = await list_topics(cluster)
    return {each.name: len(each.partitions) for each in topics if not each.is_internal}


async def follow_topics(
    source: Cluster, target: Cluster, names: Mapping[str, str], counts: Mapping[str, int]
) -> Refused:
    """Create the topics that the target lacks, and add partitions to those that have too few.

    `names` maps the source's names to the target's, `counts` has the source's partitions. Returns
    what the target refused. `ApiError` for an error that may be transient.
    """
    return await _follow(source, target, names, counts, validate_only=False)


async def refused_topics(
    source: Cluster, target: Cluster, names: Mapping[str, str], counts: Mapping[str, int]
) -> Refused:
    """As `follow_topics`, but changes nothing: what the target would refuse."""
    return await _follow(source, target, names, counts, validate_only=True)


async def _follow(
    source: Cluster,
    target: Cluster,
    names: Mapping[str, str],
    counts: Mapping[str, int],
    *,
    validate_only: bool,
) -> Refused:
    existing = await count_partitions(target)
    refused = Refused({}, {})
    for topic, name in names.items():
        count = counts[topic]
        try:
            if name not in existing:
                await _create(source, target, topic, NewTopic(name, count), validate_only)
            elif existing[name] < count:
                await create_partitions(target, {name: count}, validate_only=validate_only)
                if not validate_only:
                    logger.info("%s of the target has %d partitions now", name, count)
        except ApiError as error:
            if error.error.retriable:
                raise
            if name in existing:
                which = f"partitions {existing[name]} to {count - 1} are not mirrored"
                why = f"{which}: the target refuses to add them: {error.detail}"
                refused.partitions[topic] = why
            else:
                refused.topics[topic] = f"the target refuses to create it: {error.detail}"
    return refused


async def _create(
    source: Cluster, target: Cluster, topic: str, new: NewTopic, validate_only: bool
) -> None:
    own = await _own_settings(source, topic)
    try:
        wanted = [new._replace(settings=own)]
        await create_topics(target, wanted, validate_only=validate_only)
    except ApiError as error:
        if error.error is not Error.TOPIC_ALREADY_EXISTS:  # which another mirror has created
            raise
    else:
        said = ", ".join(f"{key}={value}" for key, value in sorted(own.items()))
        if not validate_only:
            logger.info(
                "created %s with %d partitions%s",
                new.name,
                new.partitions,
                said and f" and {said}",
            )


async def _own_settings(source: Cluster, topic: str) -> dict[str, str | None]:
    """The settings that the topic overrides; none if the broker is too old to tell."""
    try:
        found = (await describe_topic_configs(source, [topic]))[topic]
    except ApiError as error:
        if error.error is not Error.UNSUPPORTED_VERSION:
            raise
        logger.warning("the source cannot tell the settings of %s: it gets the defaults", topic)
        return {}
    return {
        each.name: each.value
        for each in found.values()
        if each.source == OF_TOPIC and each.name not in _NOT_COPIED and not each.is_secret
    }
