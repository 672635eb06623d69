"""For how long a flow's source keeps the records of its topics, by time.

A mirror that is further behind than that has lost records. The source is asked now and then only: a
topic's settings seldom change, and the answer has all of them.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from math import inf

from kdist.client.admin.outcomes import SomeFailed
from kdist.client.admin.settings import Settings, describe_topic_configs
from kdist.client.cluster import Cluster, NoBroker
from kdist.errors import ApiError

logger = logging.getLogger(__name__)

_EVERY_MS = 600_000


class SourceRetention:
    """Owner: the flow."""

    def __init__(self, source: Cluster) -> None:
        self._source = source
        self._seconds: dict[str, float] = {}
        self._asked_ms = -inf

    async def look(self, topics: Collection[str], now_ms: int) -> None:
        """Ask for the topics' settings, if some are new or it is time.

        Of topics of which the source does not say, because it is too old or does not allow it, what
        is known stays so.
        """
        if self._seconds.keys() >= set(topics) and now_ms < self._asked_ms + _EVERY_MS:
            return
        self._asked_ms = now_ms
        found: Mapping[str, Settings] = {}
        try:
            found = await describe_topic_configs(self._source, topics)
        except (ApiError, NoBroker) as error:
            logger.debug("the source does not tell its topics' retention: %s", error)
            if isinstance(error, SomeFailed):
                found = error.done
        self._seconds = {
            topic: _seconds(found[topic]) if topic in found else self.seconds(topic)
            for topic in topics
        }

    def seconds(self, topic: str) -> float:
        """Infinite for a topic whose records stay for good, or that nothing is known of."""
        return self._seconds.get(topic, inf)


def _seconds(settings: Settings) -> float:
    values = {name: settings[name].value or "" for name in settings}
    retention_ms = int(values.get("retention.ms") or -1)
    deletes = "delete" in values.get("cleanup.policy", "delete")
    return retention_ms / 1000 if deletes and retention_ms >= 0 else inf
