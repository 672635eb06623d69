"""This broker's settings as they are in force: its file's, under what is changed while it runs.

What ZooKeeper holds for this broker goes before what it holds for all brokers, and that before the
file (KIP-226). Both znodes are read before the logs are opened, and again after every change and in
every new connection, so that nothing is missed however long ZooKeeper was away. What cannot be used
of them is left out: a person or another program may have written anything.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from functools import partial

from kdist.config.broker_config import BrokerConfig
from kdist.config.faults import ConfigError
from kdist.config.layers import Layer, Source, layer_of
from kdist.config.load import with_dynamic
from kdist.config.usable import pick_usable
from kdist.zk import znodes
from kdist.zk.client import Znode, ZooKeeper
from kdist.zk.errors import CorruptZnode
from kdist.zk.watching import DataWatcher

logger = logging.getLogger(__name__)

Overrides = Mapping[str, str]
Apply = Callable[[BrokerConfig], None]


class DynamicSettings:
    """Owner: the broker. `config` is what is in force; `apply` hears of each that takes its place.

    `given` is what ZooKeeper holds for this broker and for all, with what cannot be used.
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
        """Go by what ZooKeeper holds now."""
        znodes_read = await self._zk.get_many(list(self._paths.values()))
        for source, znode in zip(self._paths, znodes_read, strict=True):
            self._hear(source, znode)

    def watch(self) -> None:
        """Go by what it holds from now on."""
        self._watchers = [
            DataWatcher(self._zk, path, partial(self._hear, source))
            for source, path in self._paths.items()
        ]

    def stop(self) -> None:
        """Go by nothing new."""
        for watcher in self._watchers:
            watcher.stop()

    # Changes to come

    def beneath(self, source: Source) -> BrokerConfig:
        """What would be in force if nothing were given there, nor above."""
        return with_dynamic(self.config, [each for each in self._layers() if each.source > source])

    def check(self, source: Source, given: Overrides) -> None:
        """`ConfigError` with every fault, unless this may be given there."""
        others = [each for each in self._layers() if each.source != source]
        with_dynamic(self.config, sorted([*others, layer_of(source, given)]))

    def _layers(self) -> tuple[Layer, ...]:
        return self.config.layers[:-1]

    # What ZooKeeper holds

    def _hear(self, source: Source, znode: Znode | None) -> None:
        path = self._paths[source]
        given = _stored(path, znode)
        if given == self.given[source]:
            return
        self.given[source] = given
        self.config = self._usable()
        logger.info("%s gives the broker %s", path, ", ".join(given) or "nothing")
        self._apply(self.config)

    def _usable(self) -> BrokerConfig:
        """The file under all that is given and can be used."""
        layers = [layer_of(s, self.given[s], path) for s, path in self._paths.items()]
        try:
            return with_dynamic(self.config, layers)
        except ConfigError:
            config = with_dynamic(self.config, [])
        for source, path in reversed(self._paths.items()):
            usable = pick_usable(self.given[source], partial(_above, config, source, path))
            for fault in usable.faults:
                logger.warning("left out of the broker's settings: %s", fault)
            config = usable.made
        return config


def _above(config: BrokerConfig, source: Source, path: str, given: Overrides) -> BrokerConfig:
    return with_dynamic(config, [layer_of(source, given, path), *config.layers[:-1]])


def _stored(path: str, znode: Znode | None) -> Overrides:
    """What a znode gives; without one, nothing."""
    if znode is not None:
        try:
            return znodes.BROKER_SETTINGS.decode(path, znode.data).settings
        except CorruptZnode as error:
            logger.warning("the broker goes by its file: %s", error)
    return {}
