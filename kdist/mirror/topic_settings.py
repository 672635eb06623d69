"""What a flow's topics are set to: how long the source keeps them, and what differs in the target.

A mirror that is further behind than the source keeps records has lost some. Settings that were
changed since a topic was copied are not copied, but told. The clusters are asked now and then only:
a topic's settings seldom change, and an answer has all of them.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator, Mapping
from math import inf

from kdist.client.admin.outcomes import SomeFailed
from kdist.client.admin.settings import OF_TOPIC, Setting, Settings, describe_topic_configs
from kdist.client.cluster import Cluster, NoBroker
from kdist.errors import ApiError
from kdist.mirror.copying import is_copied

logger = logging.getLogger(__name__)

_EVERY_MS = 600_000


class TopicSettings:
    """Owner: the flow."""

    def __init__(self, source: Cluster, target: Cluster) -> None:
        self.differing: dict[str, str] = {}  # by topic: which settings its copy has otherwise
        self._source = source
        self._target = target
        self._retention_s: dict[str, float] = {}
        self._asked_ms = -inf

    async def look(self, names: Mapping[str, str], now_ms: int) -> None:
        """Ask for the settings of topics, if some are new or it is time; `names` has their copies'.

        Of topics of which a cluster does not say, because it is too old or does not allow it, what
        is known stays so.
        """
        if self._retention_s.keys() >= set(names) and now_ms < self._asked_ms + _EVERY_MS:
            return
        self._asked_ms = now_ms
        found = await _described(self._source, names)
        self._retention_s = {
            topic: _retention_s(found[topic]) if topic in found else self.retention_s(topic)
            for topic in names
        }
        before, copies = self.differing, await _described(self._target, names.values())
        self.differing = {topic: why for topic, why in before.items() if topic in names}
        self.differing |= _differing(names, found, copies)
        self.differing = {topic: why for topic, why in self.differing.items() if why}
        for topic, why in self.differing.items():
            if before.get(topic) != why:
                logger.warning("topic %s differs from its copy: %s", topic, why)

    def retention_s(self, topic: str) -> float:
        """Infinite for a topic whose records stay for good, or that nothing is known of."""
        return self._retention_s.get(topic, inf)


async def ask_differing(
    source: Cluster, target: Cluster, names: Mapping[str, str]
) -> dict[str, str]:
    """Which settings the copies of topics have otherwise, for those that both clusters tell."""
    found = await _described(source, names)
    copies = await _described(target, [names[topic] for topic in found])
    return {topic: why for topic, why in _differing(names, found, copies).items() if why}


def merged(*told: Mapping[str, str]) -> dict[str, str]:
    """What each of these tells of a topic, in one sentence."""
    topics = dict.fromkeys(topic for each in told for topic in each)
    return {topic: "; ".join(each[topic] for each in told if topic in each) for topic in topics}


async def _described(cluster: Cluster, topics: Collection[str]) -> Mapping[str, Settings]:
    """The settings of those topics of which the cluster tells them."""
    if not topics:
        return {}
    try:
        return await describe_topic_configs(cluster, topics)
    except (ApiError, NoBroker) as error:
        logger.debug("settings of topics are unknown: %s", error)
        return error.done if isinstance(error, SomeFailed) else {}


def _differing(
    names: Mapping[str, str], found: Mapping[str, Settings], copies: Mapping[str, Settings]
) -> dict[str, str]:
    """What differs, perhaps nothing, by topic of which both are known."""
    return {
        topic: "; ".join(_differences(found[topic], copies[name]))
        for topic, name in names.items()
        if topic in found and name in copies
    }


def _differences(source: Settings, target: Settings) -> Iterator[str]:
    """Of settings that either topic overrides: brokers' defaults may be what they like."""
    for name in sorted(source.keys() & target.keys()):
        here, there = source[name], target[name]
        is_set = OF_TOPIC in (here.source, there.source)
        if is_set and is_copied(here) and _value(here) != _value(there):
            yield f"{name} is {here.value} in the source and {there.value} in the target"


def _value(setting: Setting) -> list[str]:
    """The value, lists of words in order: `delete,compact` is `compact,delete`."""
    return sorted((setting.value or "").replace(" ", "").split(","))


def _retention_s(settings: Settings) -> float:
    values = {name: settings[name].value or "" for name in settings}
    retention_ms = int(values.get("retention.ms") or -1)
    deletes = "delete" in values.get("cleanup.policy", "delete")
    return retention_ms / 1000 if deletes and retention_ms >= 0 else inf
