"""The settings in force, this broker's and topics': dynamic ones in ZooKeeper, then the file's.

Invalid ones in ZooKeeper are ignored: a person or another program may have written anything.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial

from kdist.broker.settings.stored import Overrides, decode_stored
from kdist.config.broker_config import BROKER_NAMES, TOPIC_NAMES, BrokerConfig
from kdist.config.faults import ConfigError, pick_usable
from kdist.config.foreign import ignored_in
from kdist.config.layers import Layer, Source, layer_of
from kdist.config.load import with_dynamic
from kdist.config.topic import TopicSettings
from kdist.zk import znodes
from kdist.zk.client import Znode, ZooKeeper
from kdist.zk.watching import DataWatcher

logger = logging.getLogger(__name__)

_READS_AT_ONCE = 200


class DynamicSettings:
    """This broker's. Owner: the broker. `config` is in force; `apply` is called with each new one.

    Settings stored for this broker take precedence over those stored for all brokers, and both over
    the file (KIP-226). Both znodes are read before the logs are opened, after every change, and
    after every reconnection, so that no change is missed however long ZooKeeper was unreachable.
    `given` is what ZooKeeper holds for this broker and for all brokers, invalid settings included.
    """

    def __init__(
        self, zk: ZooKeeper, config: BrokerConfig, apply: Callable[[BrokerConfig], None]
    ) -> None:
        self._zk = zk
        self._apply = apply
        self._paths = {
            Source.DYNAMIC_BROKER_CONFIG: znodes.BROKER_SETTINGS.path(config.broker.id),
            Source.DYNAMIC_DEFAULT_BROKER_CONFIG: znodes.BROKER_SETTINGS.path(
                znodes.DEFAULT_ENTITY
            ),
        }
        self._watchers: list[DataWatcher] = []
        self.given: dict[Source, Overrides] = {source: {} for source in self._paths}
        self.config = config

    async def load(self) -> None:
        znodes_read = await self._zk.get_many(list(self._paths.values()))
        for source, znode in zip(self._paths, znodes_read, strict=True):
            self._take(source, znode)

    def watch(self) -> None:
        """Apply every change in ZooKeeper from now on."""
        self._watchers = [
            DataWatcher(self._zk, path, partial(self._take, source))
            for source, path in self._paths.items()
        ]

    def stop(self) -> None:
        for watcher in self._watchers:
            watcher.stop()

    # Changes to come

    def beneath(self, source: Source) -> BrokerConfig:
        """The configuration without this layer and those above it."""
        return with_dynamic(self.config, [each for each in self._layers() if each.source > source])

    def check(self, source: Source, given: Overrides) -> None:
        """Raise `ConfigError` with every fault if these settings are not allowed in this layer."""
        others = [each for each in self._layers() if each.source != source]
        with_dynamic(self.config, sorted([*others, layer_of(source, given)]))

    def _layers(self) -> tuple[Layer, ...]:
        return self.config.layers[:-1]

    # What ZooKeeper holds

    def _take(self, source: Source, znode: Znode | None) -> None:
        path = self._paths[source]
        given = decode_stored(znodes.BROKER_SETTINGS, path, znode)
        if given == self.given[source]:
            return
        self.given[source] = given
        self.config = self._usable()
        logger.info("%s gives the broker %s", path, ", ".join(given) or "nothing")
        for sentence in ignored_in(layer_of(source, given, path), BROKER_NAMES):
            logger.warning("%s", sentence)
        self._apply(self.config)

    def _usable(self) -> BrokerConfig:
        """The file, overridden by all valid dynamic settings."""
        layers = [layer_of(s, self.given[s], path) for s, path in self._paths.items()]
        try:
            return with_dynamic(self.config, layers)
        except ConfigError:
            config = with_dynamic(self.config, [])
        for source, path in reversed(self._paths.items()):
            usable = pick_usable(self.given[source], partial(_above, config, source, path))
            for fault in usable.faults:
                logger.warning("ignored a dynamic setting of the broker: %s", fault)
            config = usable.made
        return config


def _above(config: BrokerConfig, source: Source, path: str, given: Overrides) -> BrokerConfig:
    return with_dynamic(config, [layer_of(source, given, path), *config.layers[:-1]])


class TopicOverrides:
    """Topics' own settings, from `/config/topics`: at start, for new topics, and as they change.

    A topic's settings, read or set by `expect`, hold until a notification. Owner: the broker.
    """

    def __init__(
        self, zk: ZooKeeper, broker: DynamicSettings, apply: Callable[[str, TopicSettings], None]
    ) -> None:
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
