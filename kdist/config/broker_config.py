"""A broker's whole configuration, one object for each package, and the settings of its topics."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

from kdist.config import topic_rules
from kdist.config.broker import BrokerSettings, DiskSettings, ZooKeeperSettings
from kdist.config.declare import Setting, Settings
from kdist.config.faults import broken, raise_if_any
from kdist.config.foreign import ignored_row, judge_names
from kdist.config.groups import GroupSettings
from kdist.config.layers import (
    Described,
    Layer,
    Origin,
    Source,
    describe,
    layer_of,
    names_in,
    resolve,
)
from kdist.config.network import NetworkSettings
from kdist.config.replication import ReplicationSettings
from kdist.config.storage import StorageSettings
from kdist.config.topic import TopicSettings

BROKER_CLASSES: tuple[type[Settings], ...] = (
    BrokerSettings,
    DiskSettings,
    ZooKeeperSettings,
    NetworkSettings,
    GroupSettings,
    StorageSettings,
    ReplicationSettings,
)
BROKER_TABLE: tuple[Setting, ...] = tuple(chain.from_iterable(c.TABLE for c in BROKER_CLASSES))
_EVERY = (*BROKER_TABLE, *(row for row in TopicSettings.TABLE if row.broker_names))
BROKER_NAMES = frozenset(names_in(_EVERY, of_broker=True))
DYNAMIC_NAMES = frozenset(row.broker_names[0].name for row in _EVERY if row.is_dynamic)
TOPIC_NAMES = frozenset(names_in(TopicSettings.TABLE, of_broker=False))


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerConfig:
    """A broker's settings, and the defaults of its topics.

    `layers` are where they came from, highest precedence first: dynamic settings, then the file.
    `warnings` has a sentence for each thing that is allowed but unusual.
    """

    broker: BrokerSettings
    disk: DiskSettings
    zookeeper: ZooKeeperSettings
    network: NetworkSettings
    groups: GroupSettings
    storage: StorageSettings
    replication: ReplicationSettings
    topic_defaults: TopicSettings
    layers: tuple[Layer, ...]
    warnings: tuple[str, ...]

    def topic(self, overrides: Mapping[str, str], where: str = "") -> TopicSettings:
        """A topic's settings; `ConfigError` with all faults of its overrides."""
        return resolve_topic(self.layers, overrides, where)

    def describe(self) -> Iterator[Described]:
        """Every setting of the broker with value and source, including topic defaults."""
        return describe(_EVERY, self.layers)

    def digest(self) -> str:
        """The digest of every value that the file gives, or leaves at its default.

        Comments, order, synonyms and spelling do not change it, nor do dynamic settings. A broker
        that runs with the same digest has nothing to gain from a restart.
        """
        file = self.layers[-1:]
        lines = [
            f"{row.broker_names[0].name}={resolve((row,), file).values[row.attribute]!r}"
            for row in _EVERY
        ]
        return hashlib.sha256("\n".join(lines).encode()).hexdigest()

    def describe_topic(self, overrides: Mapping[str, str]) -> Iterator[Described]:
        """Every setting of a topic with value and source.

        Overrides given by a synonym or without effect come last, so that they can be seen and
        removed.
        """
        layer = layer_of(Source.DYNAMIC_TOPIC_CONFIG, overrides)
        yield from describe(TopicSettings.TABLE, (layer, *self.layers))
        own = {row.name for row in TopicSettings.TABLE}
        yield from describe_given(layer, overrides.keys() - own)


def describe_given(layer: Layer, names: Iterable[str]) -> Iterator[Described]:
    """One layer's values for these names, whether or not another layer overrides them."""
    for name in sorted(names):
        rows = (*BROKER_TABLE, *TopicSettings.TABLE)
        named = (row for row in rows if name in (each.name for each in layer.names_of(row)))
        origin = Origin(name, layer.given[name].text, layer.source)
        row = next(named, None) or ignored_row(name)
        yield Described(row, name, origin.text, layer.source, (origin,))


def resolve_topic(
    broker: Sequence[Layer], overrides: Mapping[str, str], where: str = ""
) -> TopicSettings:
    """A topic's settings: its override, else the broker's `log.*` value, else the default.

    `where` names the overrides in messages. Raises `ConfigError` with all faults of theirs.
    """
    own = layer_of(Source.DYNAMIC_TOPIC_CONFIG, overrides, where)
    outcome = resolve(TopicSettings.TABLE, (own, *broker))
    refused = judge_names(own.given, TOPIC_NAMES).refused
    raise_if_any((*refused.values(), *outcome.faults.values()))
    topic = TopicSettings(**outcome.values)
    raise_if_any(broken(topic_rules.REFUSES, topic, where))
    return topic
