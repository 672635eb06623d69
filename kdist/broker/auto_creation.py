"""Topics that are created because somebody asked for them, and the internal ones when needed.

Any broker may be asked; the controller creates. Nobody waits for it here: clients are told to ask
again, and do. A topic that is being created already is not asked for twice.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from kdist.broker.metadata_cache import MetadataCache
from kdist.config.broker_config import BrokerConfig
from kdist.errors import ApiError, Error
from kdist.metrics.broker import BrokerMetrics
from kdist.model import OFFSETS_TOPIC, TRANSACTIONS_TOPIC
from kdist.protocol.create_topics import NewTopic, TopicSetting

logger = logging.getLogger(__name__)

TIMEOUT_MS = 30_000

Create = Callable[[NewTopic, int], Awaitable[Error]]
"""Have the controller create a topic within so many ms. ApiError if it cannot be reached."""

_BROKER_DEFAULT = -1


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
        """What to answer whoever asks for a topic, by a valid name, that is not known."""
        if name == TRANSACTIONS_TOPIC:
            return Error.UNKNOWN_TOPIC_OR_PARTITION
        if not may_create or not self._config().broker.auto_create_topics_enable:
            return Error.UNKNOWN_TOPIC_OR_PARTITION
        if self._cache.collides(name):  # asking again would not help
            return Error.INVALID_TOPIC_EXCEPTION
        if name == OFFSETS_TOPIC:
            self.create_offsets_topic()
        else:
            self._begin(_plain_topic(name))
        return Error.LEADER_NOT_AVAILABLE

    def create_offsets_topic(self) -> None:
        """Groups need `__consumer_offsets`, whatever the settings say of other topics."""
        self._begin(_offsets_topic(self._config()))

    def cancel(self) -> None:
        """Wait for no creation any more; those under way may still happen."""
        for task in self._under_way.values():
            task.cancel()

    def _begin(self, new: NewTopic) -> None:
        if new.name not in self._under_way:
            task = asyncio.ensure_future(self._carry_out(new))
            self._under_way[new.name] = task

    async def _carry_out(self, new: NewTopic) -> None:
        try:
            error = await self._create(new, TIMEOUT_MS)
        except ApiError as failure:
            error = failure.error
        finally:
            del self._under_way[new.name]
        if error is Error.NONE:
            self._metrics.created_topics += 1
        elif error is not Error.TOPIC_ALREADY_EXISTS:  # as it does when two brokers are asked
            logger.warning("topic %s is not created: %s", new.name, error.sentence)


def _plain_topic(name: str) -> NewTopic:
    return NewTopic(
        name=name,
        num_partitions=_BROKER_DEFAULT,
        replication_factor=_BROKER_DEFAULT,
        assignments=[],
        configs=[],
    )


def _offsets_topic(config: BrokerConfig) -> NewTopic:
    groups = config.groups
    settings = {
        "cleanup.policy": "compact",
        "compression.type": "producer",
        "segment.bytes": str(groups.offsets_topic_segment_bytes),
    }
    return NewTopic(
        name=OFFSETS_TOPIC,
        num_partitions=groups.offsets_topic_num_partitions,
        replication_factor=groups.offsets_topic_replication_factor,
        assignments=[],
        configs=[TopicSetting(name=name, value=value) for name, value in settings.items()],
    )
