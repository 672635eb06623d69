"""This broker's effective settings: those of its file, overridden by dynamic ones in ZooKeeper.

Settings stored for this broker take precedence over those stored for all brokers, and both over the
file (KIP-226). Both znodes are read before the logs are opened, after every change, and after every
reconnection, so that no change is missed however long ZooKeeper was unreachable. Invalid settings
in them are ignored: a person or another program may have written anything.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial

from kdist.broker.settings.stored import Overrides, decode_stored
from kdist.config.broker_config import BROKER_NAMES, BrokerConfig
from kdist.config.faults import ConfigError
from kdist.config.foreign import ignored_in
from kdist.config.layers import Layer, Source, layer_of
from kdist.config.load import with_dynamic
from kdist.config.usable import pick_usable
from kdist.zk import znodes
from kdist.zk.client import Znode, ZooKeeper
from kdist.zk.watching import DataWatcher

logger = logging.getLogger(__name__)

Apply = Callable[[BrokerConfig], None]


class DynamicSettings:
    """Owner: the broker. `config` is in force; `apply` is called with each new one.

    `given` is what ZooKeeper holds for this broker and for all brokers, invalid settings included.
    """

    def __init__(self, zk: ZooKeeper, config: BrokerConfig, apply: Apply) -> None:
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
            self._hear(source, znode)

    def watch(self) -> None:
        """Apply every change in ZooKeeper from now on."""
        self._watchers = [
            DataWatcher(self._zk, path, partial(self._hear, source))
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

    def _hear(self, source: Source, znode: Znode | None) -> None:
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
