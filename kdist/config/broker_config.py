"""A broker's whole configuration, one object for each package, and the settings of its topics."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

from kdist.config import topic_rules
from kdist.config.broker import BrokerSettings, DiskSettings, ZooKeeperSettings
from kdist.config.declare import Setting, Settings
from kdist.config.faults import HIDDEN, broken, raise_if_any
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
from kdist.config.security import (
    OF_LISTENERS,
    AuthenticationSettings,
    AuthorizationSettings,
    ListenerSecurity,
    is_prefixed,
    row_of_prefixed,
)
from kdist.config.storage import StorageSettings
from kdist.config.topic import TopicSettings

BROKER_CLASSES: tuple[type[Settings], ...] = (
    BrokerSettings,
    DiskSettings,
    ZooKeeperSettings,
    NetworkSettings,
    AuthenticationSettings,
    *OF_LISTENERS,
    AuthorizationSettings,
    GroupSettings,
    StorageSettings,
    ReplicationSettings,
)
BROKER_TABLE: tuple[Setting, ...] = tuple(chain.from_iterable(c.TABLE for c in BROKER_CLASSES))
_EVERY = (*BROKER_TABLE, *(row for row in TopicSettings.TABLE if row.broker_names))
BROKER_NAMES = frozenset(names_in(_EVERY, of_broker=True))
DYNAMIC_NAMES = frozenset(row.broker_names[0].name for row in _EVERY if row.is_dynamic)
_ROUNDS = 60_000
TOPIC_NAMES = frozenset(names_in(TopicSettings.TABLE, of_broker=False))


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerConfig:
    """A broker's settings, and the defaults of its topics.

    `layers` are where they came from, highest precedence first: dynamic settings, then the file.
    `listeners` are in the order of the file. `warnings` has a sentence for each thing that is
    allowed but unusual.
    """

    broker: BrokerSettings
    disk: DiskSettings
    zookeeper: ZooKeeperSettings
    network: NetworkSettings
    authentication: AuthenticationSettings
    authorization: AuthorizationSettings
    listeners: Mapping[str, ListenerSecurity]
    groups: GroupSettings
    storage: StorageSettings
    replication: ReplicationSettings
    topic_defaults: TopicSettings
    layers: tuple[Layer, ...]
    warnings: tuple[str, ...]

    def topic(self, overrides: Mapping[str, str], where: str = "") -> TopicSettings:
        """A topic's settings; `ConfigError` with all faults of its overrides."""
        return resolve_topic(self.layers, overrides, where)

    @property
    def inter_broker_listener(self) -> str:
        """The name of the listener that brokers use among themselves."""
        broker = self.broker
        named = broker.inter_broker_listener_name or broker.security_inter_broker_protocol
        return named.upper() if named else next(iter(self.listeners))

    @property
    def inter_broker_mechanism(self) -> str | None:
        """The SASL mechanism by which brokers log in to each other; None if it is not known."""
        mechanisms = self.listener(self.inter_broker_listener).mechanisms
        only = next(iter(mechanisms)) if len(mechanisms) == 1 else None
        return self.broker.sasl_mechanism_inter_broker_protocol or only

    def listener(self, name: str) -> ListenerSecurity:
        """A listener's protocol and own settings."""
        return self.listeners[name]

    def describe(self) -> Iterator[Described]:
        """Every setting of the broker with value and source, including topic defaults.

        Last those that are given for one listener.
        """
        yield from describe(_EVERY, self.layers)
        file = self.layers[-1]
        yield from describe_given(file, filter(is_prefixed, file.given))

    def digest(self) -> str:
        """The digest of every value that the file gives, or leaves at its default.

        Comments, order, synonyms and spelling do not change it, nor do dynamic settings. A broker
        that runs with the same digest has nothing to gain from a restart. It is public: a guess at
        a secret costs so much time that trying all that are likely is no use.
        """
        file = self.layers[-1:]
        values = [
            (row, row.broker_names[0].name, resolve((row,), file).values[row.attribute])
            for row in _EVERY
        ]
        given = file[0].given
        values += [
            (row, name, row.read(given[name].text))
            for name in sorted(given)
            if (row := row_of_prefixed(name)) is not None
        ]
        return _digest_of(values)

    def describe_topic(self, overrides: Mapping[str, str]) -> Iterator[Described]:
        """Every setting of a topic with value and source.

        Overrides given by a synonym or without effect come last, so that they can be seen and
        removed.
        """
        layer = layer_of(Source.DYNAMIC_TOPIC_CONFIG, overrides)
        yield from describe(TopicSettings.TABLE, (layer, *self.layers))
        own = {row.name for row in TopicSettings.TABLE}
        yield from describe_given(layer, overrides.keys() - own)


def _digest_of(values: Iterable[tuple[Setting, str, Any]]) -> str:
    lines: dict[bool, list[str]] = {False: [], True: []}
    for row, name, value in values:
        lines[row.is_secret and value is not None].append(f"{name}={value!r}")
    told, secret = ("\n".join(lines[is_secret]).encode() for is_secret in (False, True))
    if secret:
        told += hashlib.pbkdf2_hmac("sha256", secret, told, _ROUNDS)
    return hashlib.sha256(told).hexdigest()


def describe_given(layer: Layer, names: Iterable[str]) -> Iterator[Described]:
    """One layer's values for these names, whether or not another layer overrides them."""
    for name in sorted(names):
        rows = (*BROKER_TABLE, *TopicSettings.TABLE)
        named = (row for row in rows if name in (each.name for each in layer.names_of(row)))
        row = next(named, None) or row_of_prefixed(name) or ignored_row(name)
        origin = Origin(name, HIDDEN if row.is_secret else layer.given[name].text, layer.source)
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
