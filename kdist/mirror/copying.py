"""Creates a source's topics in the target, and adds partitions to them.

A topic is created with the settings that the source's topic overrides. Later changes of settings
are not copied, nor are settings of a topic that the target already had: `topic_settings.py` tells.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import NamedTuple

from kdist.client.admin.outcomes import SomeFailed
from kdist.client.admin.settings import OF_TOPIC, Setting, Settings, describe_topic_configs
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
_CREATED_AT_ONCE = 50  # few enough that the first of thousands need not wait for long


class Refused(NamedTuple):
    """Why the target refuses, by topic of the source: to have it, or to add partitions to it.

    `larger` has the topics of which the target has more partitions: nothing is refused there.
    """

    topics: dict[str, str]
    partitions: dict[str, str]
    larger: dict[str, str]


async def count_partitions(cluster: Cluster) -> dict[str, int]:
    """The number of partitions of every topic that is not internal."""
    topics = await list_topics(cluster)
    return {each.name: len(each.partitions) for each in topics if not each.is_internal}


async def follow_topics(
    source: Cluster,
    target: Cluster,
    names: Mapping[str, str],
    counts: Mapping[str, int],
    on_ready: Callable[[Collection[str]], None],
) -> Refused:
    """Create the topics that the target lacks, and add partitions to those that have too few.

    `names` maps the source's names to the target's, `counts` has the source's partitions. Returns
    what the target refused. `on_ready` is called with topics as soon as the target has them.
    `ApiError` for an error that may be transient; if it is of some topics, then once the others
    are done.
    """
    return await _follow(source, target, names, counts, on_ready, validate_only=False)


async def refused_topics(
    source: Cluster, target: Cluster, names: Mapping[str, str], counts: Mapping[str, int]
) -> Refused:
    """As `follow_topics`, but changes nothing: what the target would refuse."""
    return await _follow(source, target, names, counts, lambda _: None, validate_only=True)


async def _follow(
    source: Cluster,
    target: Cluster,
    names: Mapping[str, str],
    counts: Mapping[str, int],
    on_ready: Callable[[Collection[str]], None],
    *,
    validate_only: bool,
) -> Refused:
    existing = await count_partitions(target)
    has = {topic: existing[name] for topic, name in names.items() if name in existing}
    on_ready([topic for topic, count in has.items() if count >= counts[topic]])
    short = {names[topic]: counts[topic] for topic, count in has.items() if count < counts[topic]}
    not_grown = await _grow(target, short, validate_only)
    on_ready(has)
    not_created: dict[str, ApiError] = {}
    missing = [topic for topic in names if topic not in has]
    for start in range(0, len(missing), _CREATED_AT_ONCE):
        some = missing[start : start + _CREATED_AT_ONCE]
        new = {topic: NewTopic(names[topic], counts[topic]) for topic in some}
        not_created |= await _create(source, target, new, validate_only)
        on_ready([topic for topic in some if topic not in not_created])
    for error in (*not_grown.values(), *not_created.values()):
        if error.error.retriable:
            raise error
    return Refused(
        {topic: error.detail for topic, error in not_created.items()},
        {
            topic: f"partitions {count} to {counts[topic] - 1} are not mirrored: the target"
            f" refuses to add them: {not_grown[names[topic]].detail}"
            for topic, count in has.items()
            if names[topic] in not_grown
        },
        {
            topic: f"it has {counts[topic]} partitions in the source and {count} in the target"
            for topic, count in has.items()
            if count > counts[topic]
        },
    )


async def _grow(
    target: Cluster, wanted: Mapping[str, int], validate_only: bool
) -> dict[str, ApiError]:
    """Add partitions to the target's topics, up to these numbers; the errors of some."""
    if not wanted:
        return {}
    work = create_partitions(target, wanted, validate_only=validate_only)
    failed = await _failed(wanted, work)
    if any(each.error is Error.INVALID_PARTITIONS for each in failed.values()):
        now = await count_partitions(target)  # which another mirror may have added
        failed = {name: why for name, why in failed.items() if now.get(name, 0) < wanted[name]}
    for name, count in wanted.items():
        if name not in failed and not validate_only:
            logger.info("%s of the target has %d partitions now", name, count)
    return failed


async def _create(
    source: Cluster, target: Cluster, wanted: Mapping[str, NewTopic], validate_only: bool
) -> dict[str, ApiError]:
    """Create topics with the settings of those of the source; the errors of some, by the latter."""
    own, failed = await _own_settings(source, wanted)
    if not own:
        return failed
    new = {topic: wanted[topic]._replace(settings=settings) for topic, settings in own.items()}
    work = create_topics(target, new.values(), validate_only=validate_only)
    refused = await _failed([each.name for each in new.values()], work)
    for topic, each in new.items():
        if (error := refused.get(each.name)) is None:
            if not validate_only:
                _tell_created(each)
        elif error.error is not Error.TOPIC_ALREADY_EXISTS:  # which another mirror has created
            failed[topic] = ApiError(
                error.error, f"the target refuses to create it: {error.detail}"
            )
    return failed


def _tell_created(topic: NewTopic) -> None:
    said = ", ".join(f"{key}={value}" for key, value in sorted(topic.settings.items()))
    logger.info(
        "created %s with %d partitions%s", topic.name, topic.partitions, said and f" and {said}"
    )


async def _failed(names: Collection[str], work: Awaitable[object]) -> dict[str, ApiError]:
    """The errors of a request for these topics. `ApiError` if it may succeed later, as a whole."""
    try:
        await work
    except SomeFailed as error:
        return error.failed
    except ApiError as error:
        if error.error.retriable:
            raise
        return dict.fromkeys(names, error)
    return {}


async def _own_settings(
    source: Cluster, topics: Collection[str]
) -> tuple[dict[str, dict[str, str | None]], dict[str, ApiError]]:
    """The settings that the topics override, none if the broker is too old to tell; and errors."""
    found: Mapping[str, Settings] = {}
    failed: dict[str, ApiError] = {}
    try:
        found = await describe_topic_configs(source, topics)
    except SomeFailed as error:
        found = error.done
        failed = {
            topic: ApiError(each.error, f"the source does not tell its settings: {each.detail}")
            for topic, each in error.failed.items()
        }
    except ApiError as error:
        if error.error is not Error.UNSUPPORTED_VERSION:
            raise
        logger.warning(
            "the source cannot tell its topics' settings: %s get the defaults", ", ".join(topics)
        )
    own = {topic: _overridden(found.get(topic, {})) for topic in topics if topic not in failed}
    return own, failed


def _overridden(settings: Settings) -> dict[str, str | None]:
    return {
        each.name: each.value
        for each in settings.values()
        if each.source == OF_TOPIC and is_copied(each)
    }


def is_copied(setting: Setting) -> bool:
    """Whether a new topic in the target gets what the source's topic overrides."""
    return setting.name not in _NOT_COPIED and not setting.is_secret
