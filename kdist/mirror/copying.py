"""A source's topics as they are to be in the target: partitions, and settings of their own.

Settings that a topic has by itself in its source are given to the topic that is made in the target.
Later changes are not followed, nor are the settings of a topic that was there before.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

from kdist.client.admin.settings import OF_TOPIC, describe_topic_settings
from kdist.client.admin.topics import create_topic, grow_topics, list_topics
from kdist.client.cluster import Cluster
from kdist.errors import ApiError, Error

logger = logging.getLogger(__name__)

_NOT_COPIED = (
    "message.timestamp.type",  # times pass as the source has them
    "follower.replication.throttled.replicas",  # these name brokers
    "leader.replication.throttled.replicas",
    "min.insync.replicas",  # fits the source's number of replicas
)


async def count_partitions(cluster: Cluster) -> dict[str, int]:
    """Every topic that is no internal one, and how many partitions it has."""
    topics = await list_topics(cluster)
    return {each.name: len(each.partitions) for each in topics if not each.is_internal}


async def follow_topics(
    source: Cluster, target: Cluster, names: Mapping[str, str], counts: Mapping[str, int]
) -> dict[str, str]:
    """Create the topics that the target lacks, and grow those that have too few partitions.

    `names` are the target's by the source's, `counts` the source's partitions. Why some of them
    cannot be as they should. `ApiError` for what may pass.
    """
    there = await count_partitions(target)
    refused: dict[str, str] = {}
    for topic, name in names.items():
        try:
            if name not in there:
                await _create(source, target, topic, name, counts[topic])
            elif there[name] < counts[topic]:
                await grow_topics(target, {name: counts[topic]})
                logger.info("%s of the target has %d partitions now", name, counts[topic])
        except ApiError as error:
            if error.error.retriable:
                raise
            refused[topic] = f"the target refuses to have it so: {error.detail}"
    return refused


async def _create(source: Cluster, target: Cluster, topic: str, name: str, count: int) -> None:
    own = await _own_settings(source, topic)
    try:
        await create_topic(target, name, count, settings=own)
    except ApiError as error:
        if error.error is not Error.TOPIC_ALREADY_EXISTS:  # another mirror was faster
            raise
    else:
        said = ", ".join(f"{key}={value}" for key, value in sorted(own.items()))
        logger.info("created %s with %d partitions%s", name, count, said and f" and {said}")


async def _own_settings(source: Cluster, topic: str) -> dict[str, str | None]:
    """What the topic sets itself. A broker too old to tell has none to copy."""
    try:
        found = (await describe_topic_settings(source, [topic]))[topic]
    except ApiError as error:
        if error.error is not Error.UNSUPPORTED_VERSION:
            raise
        logger.warning("the settings of %s cannot be asked for: the target's defaults hold", topic)
        return {}
    return {
        each.name: each.value
        for each in found.values()
        if each.source == OF_TOPIC and each.name not in _NOT_COPIED and not each.is_secret
    }
