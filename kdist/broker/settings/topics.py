"""Topics' own settings, from `/config/topics`: at start, for new topics, and as they change.

`changes.py` says when they have changed.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial

from kdist.broker.settings.dynamic import DynamicSettings
from kdist.broker.settings.stored import decode_stored
from kdist.config.broker_config import TOPIC_NAMES
from kdist.config.foreign import ignored_in
from kdist.config.layers import Source, layer_of
from kdist.config.topic import TopicSettings
from kdist.config.usable import pick_usable
from kdist.zk import znodes
from kdist.zk.client import ZooKeeper

logger = logging.getLogger(__name__)

Apply = Callable[[str, TopicSettings], None]

_READS_AT_ONCE = 200


class TopicOverrides:
    """Owner: the broker. A topic's settings, read or set by `expect`, hold until a notification."""

    def __init__(self, zk: ZooKeeper, broker: DynamicSettings, apply: Apply) -> None:
        """`broker`: has the defaults of topics without settings of their own."""
        self._zk = zk
        self.broker = broker
        self._apply = apply
        self._overrides: dict[str, Mapping[str, str]] = {}
        self._ids: dict[str, uuid.UUID] = {}
        self._made: dict[str, tuple[object, object, TopicSettings]] = {}  # and of what

    def settings_of(self, topic: str) -> TopicSettings:
        """A topic's effective settings, with the broker's defaults in place of invalid ones."""
        overrides = self._overrides.get(topic)
        config = self.broker.config
        if not overrides:
            return config.topic_defaults
        made = self._made.get(topic)  # the controller asks for each partition of each event
        if made is not None and made[0] is overrides and made[1] is config:
            return made[2]
        path = znodes.TOPIC_SETTINGS.path(topic)
        usable = pick_usable(overrides, partial(config.topic, where=path))
        layer = layer_of(Source.DYNAMIC_TOPIC_CONFIG, overrides, path)
        for sentence in ignored_in(layer, TOPIC_NAMES):
            logger.info("%s", sentence)  # no warning: Kafka's topics of many years have some
        for fault in usable.faults:
            logger.warning("ignored a setting of the topic: %s", fault)
        self._made[topic] = (overrides, config, usable.made)
        return usable.made

    # Reading

    async def load_all(self) -> None:
        """Read the settings of all topics that have any."""
        names = await self._zk.children(znodes.TOPIC_SETTINGS.parent)
        topics = [znodes.TOPIC_SETTINGS.names(f"{znodes.TOPIC_SETTINGS.parent}/{n}") for n in names]
        await self._load_some([topic[0] for topic in topics if topic])

    async def load_new(self, topics: Mapping[str, uuid.UUID]) -> None:
        """Read the settings of those topics that are not known with these ids.

        A server that lags may not have them yet, and a topic without its `min.insync.replicas`
        would commit what too few replicas have.
        """
        new = [name for name in topics if self._is_new(name, topics[name])]
        if new:
            await self._zk.sync(znodes.TOPIC_SETTINGS.path(new[0]))
        await self._load_some(new)
        self._ids.update(topics)

    def _is_new(self, topic: str, topic_id: uuid.UUID) -> bool:
        # Settings read at start belong to the first id that the controller sends for the topic.
        return topic not in self._overrides or self._ids.get(topic, topic_id) != topic_id

    async def _load_some(self, topics: Sequence[str]) -> None:
        for start in range(0, len(topics), _READS_AT_ONCE):
            some = topics[start : start + _READS_AT_ONCE]
            self._overrides.update(zip(some, await self._read(some), strict=True))

    def expect(self, topic: str, topic_id: uuid.UUID, overrides: Mapping[str, str]) -> None:
        """This broker is about to create a topic with these settings, which need not be read.

        Must be called before the topic is written, else it could overwrite a change that was
        already reported. If another broker creates a topic of this name first, that has another id,
        and its settings are read.
        """
        self._overrides[topic] = overrides
        self._ids[topic] = topic_id

    def forget(self, topics: Iterable[str]) -> None:
        """Forget deleted topics: a new topic of the same name has its own settings."""
        for topic in topics:
            self._overrides.pop(topic, None)
            self._ids.pop(topic, None)
            self._made.pop(topic, None)

    async def _read(self, topics: Sequence[str]) -> list[Mapping[str, str]]:
        row = znodes.TOPIC_SETTINGS
        paths = [row.path(topic) for topic in topics]
        found = zip(paths, await self._zk.get_many(paths), strict=True)
        return [decode_stored(row, path, znode) for path, znode in found]

    # Changes

    async def reload(self, *topics: str) -> None:
        """Re-read and apply topics' settings, except of unknown topics (see `load_new`)."""
        for start in range(0, len(topics), _READS_AT_ONCE):
            some = topics[start : start + _READS_AT_ONCE]
            for topic, overrides in zip(some, await self._read(some), strict=True):
                if self._overrides.get(topic, overrides) != overrides:
                    self._overrides[topic] = overrides
                    self._apply(topic, self.settings_of(topic))
                    logger.info("topic %s has settings of its own now: %s", topic, overrides)

    async def reload_all(self) -> None:
        """Re-read and apply the settings of all known topics."""
        await self.reload(*self._overrides)
