"""Automatic creation of topics: those that a client asks for, and `__consumer_offsets`.

Any broker may be asked; the controller creates the topic. No request waits for that: clients get a
retriable error, and try again. A creation in progress is not requested twice.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from kdist.broker.metadata_cache import MetadataCache
from kdist.config.broker_config import BrokerConfig
from kdist.controller.topics import BROKER_DEFAULT, completed
from kdist.errors import ApiError, Error
from kdist.metrics.broker import BrokerMetrics
from kdist.model import OFFSETS_TOPIC, TRANSACTIONS_TOPIC
from kdist.protocol.create_topics import NewTopic

logger = logging.getLogger(__name__)

TIMEOUT_MS = 30_000

Create = Callable[[NewTopic, int], Awaitable[Error]]
"""Have the controller create a topic within so many ms. ApiError if it cannot be reached."""


class AutoCreation:
    """Owner: the broker."""

    def __init__(
        self,
        cache: MetadataCache,
        config: Callable[[], BrokerConfig],
        create: Create,
        metrics: BrokerMetrics,
    ) -> None:
        self._cache = cache
        self._config = config
        self._create = create
        self._metrics = metrics
        self._under_way: dict[str, asyncio.Task[None]] = {}

    def ask_for(self, name: str, may_create: bool) -> Error:
        """The error to answer for an unknown topic with a valid name, which may be created now."""
        if name == TRANSACTIONS_TOPIC:
            return Error.UNKNOWN_TOPIC_OR_PARTITION
        if not may_create or not self._config().broker.auto_create_topics_enable:
            return Error.UNKNOWN_TOPIC_OR_PARTITION
        if self._cache.collides(name):  # asking again would not help
            return Error.INVALID_TOPIC_EXCEPTION
        self._begin(name)
        return Error.LEADER_NOT_AVAILABLE

    def create_offsets_topic(self) -> None:
        """Create `__consumer_offsets`, whether or not `auto.create.topics.enable` is on."""
        self._begin(OFFSETS_TOPIC)

    def cancel(self) -> None:
        """Stop waiting for creations; the controller may still carry them out."""
        for task in self._under_way.values():
            task.cancel()

    def _begin(self, name: str) -> None:
        if name not in self._under_way:
            task = asyncio.ensure_future(self._carry_out(_topic(name, self._config())))
            self._under_way[name] = task

    async def _carry_out(self, new: NewTopic) -> None:
        try:
            error = await self._create(new, TIMEOUT_MS)
        except ApiError as failure:
            error = failure.error
        finally:
            del self._under_way[new.name]
        if error is Error.NONE:
            self._metrics.created_topics += 1
        elif error is not Error.TOPIC_ALREADY_EXISTS:  # expected if two brokers request it
            logger.warning("topic %s is not created: %s", new.name, error.sentence)


def _topic(name: str, config: BrokerConfig) -> NewTopic:
    new = NewTopic(
        name=name,
        num_partitions=BROKER_DEFAULT,
        replication_factor=BROKER_DEFAULT,
        assignments=[],
        configs=[],
    )
    return completed(new, config)
