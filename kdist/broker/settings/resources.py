"""The resources that config requests name: topics, this broker, and all brokers together.

    resource      own settings in             effective settings
    a topic       /config/topics/<topic>      its own, else this broker's
    this broker   /config/brokers/<id>        its own, else those of all brokers, else its file's
    all brokers   /config/brokers/<default>   its own only; requests name it with an empty name

A setting found in none of these has its default. Requests about a broker must go to that broker,
since only it knows its file; those about a topic or all brokers may go to any.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Set
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

from kdist.broker.metadata_cache import MetadataCache
from kdist.broker.settings.dynamic import DynamicSettings
from kdist.broker.settings.stored import Overrides, Owner
from kdist.config.broker_config import DYNAMIC_NAMES, describe_given
from kdist.config.faults import ConfigError, pick_usable
from kdist.config.layers import Described, Layer, Source, layer_of
from kdist.config.load import fixed_names
from kdist.controller.topics import check_settings, check_size
from kdist.errors import ApiError, Error
from kdist.model import topic_name_fault
from kdist.protocol.describe_configs import ALL_BROKERS, BROKER, BROKER_LOGGER, TOPIC
from kdist.zk import znodes
from kdist.zk.values import EntitySettings
from kdist.zk.znodes import ZnodeRow


@dataclass(frozen=True)
class Resource(ABC):
    """One resource. `source` is the layer of its own settings, `row` where they are stored."""

    dynamic: DynamicSettings
    name: str
    source: ClassVar[Source]
    row: ClassVar[ZnodeRow[EntitySettings]]
    is_followed: ClassVar[bool] = False
    """Whether this broker keeps its own settings up to date, so they need not be read."""

    @property
    def owner(self) -> Owner:
        return Owner(self.row, (self.name,))

    @abstractmethod
    def describe(self, own: Overrides) -> Iterable[Described]:
        """Its effective settings; last its invalid ones, so that a user can see and remove them.

        `own`: its own settings as read from ZooKeeper; not used if `is_followed`.
        """

    @abstractmethod
    def beneath(self) -> Iterable[Described]:
        """Its effective settings if it had none of its own."""

    @abstractmethod
    def check(self, overrides: Overrides) -> None:
        """Raise ApiError with every fault if these are not allowed as its own settings."""

    @abstractmethod
    def usable(self, stored: Overrides) -> Overrides:
        """Those of its own settings that are valid, and so in force."""


class TopicResource(Resource):
    """A topic that this broker knows; another may have changed its settings a moment ago."""

    source = Source.DYNAMIC_TOPIC_CONFIG
    row = znodes.TOPIC_SETTINGS

    def describe(self, own: Overrides) -> Iterable[Described]:
        usable = self.usable(own)
        in_force = self.dynamic.config.describe_topic(usable)
        return _with_left_out(in_force, layer_of(self.source, own), own.keys() - usable)

    def beneath(self) -> Iterable[Described]:
        return self.dynamic.config.describe_topic({})

    def check(self, overrides: Overrides) -> None:
        check_settings(overrides, self.dynamic.config)

    def usable(self, stored: Overrides) -> Overrides:
        return pick_usable(stored, self.dynamic.config.topic).settings


class BrokerResource(Resource):
    """This broker."""

    source = Source.DYNAMIC_BROKER_CONFIG
    row = znodes.BROKER_SETTINGS
    is_followed = True

    def describe(self, _own: Overrides) -> Iterable[Described]:
        own = self.dynamic.given[self.source]
        ignored = own.keys() - (self.usable(own).keys() & DYNAMIC_NAMES)
        in_force = self.dynamic.config.describe()
        return _with_left_out(in_force, layer_of(self.source, own), ignored)

    def beneath(self) -> Iterable[Described]:
        return self.dynamic.beneath(self.source).describe()

    def check(self, overrides: Overrides) -> None:
        """INVALID_REQUEST for a setting that is read only at start, as in Kafka."""
        try:
            self.dynamic.check(self.source, overrides)
        except ConfigError as error:
            code = Error.INVALID_REQUEST if fixed_names(overrides) else Error.INVALID_CONFIG
            raise ApiError(code, " ".join(error.faults)) from error
        check_size(overrides, "the broker's")

    def usable(self, stored: Overrides) -> Overrides:
        return pick_usable(stored, partial(self.dynamic.check, self.source)).settings


class AllBrokersResource(BrokerResource):
    """All brokers together."""

    source = Source.DYNAMIC_DEFAULT_BROKER_CONFIG
    is_followed = False

    def describe(self, own: Overrides) -> Iterable[Described]:
        return describe_given(layer_of(self.source, own), own)


def _with_left_out(
    in_force: Iterable[Described], own: Layer, left_out: Set[str]
) -> Iterator[Described]:
    """Each name once: an invalid setting is shown as it was given, so that it can be corrected."""
    yield from (each for each in in_force if each.name not in left_out)
    yield from describe_given(own, left_out)


class Resources:
    """Owner: the broker."""

    def __init__(self, cache: MetadataCache, dynamic: DynamicSettings) -> None:
        self._cache = cache
        self._dynamic = dynamic

    def find(self, kind: int, name: str) -> Resource:
        """ApiError INVALID_REQUEST, INVALID_TOPIC_EXCEPTION, UNKNOWN_TOPIC_OR_PARTITION."""
        if kind == TOPIC:
            self._check_known(name)
            return TopicResource(self._dynamic, name)
        if kind != BROKER:
            raise ApiError(
                Error.INVALID_REQUEST,
                f"resource type {kind}: only topics ({TOPIC}) and brokers ({BROKER}) have"
                f" settings here; levels of loggers ({BROKER_LOGGER}) are changed one by one",
            )
        if name == ALL_BROKERS:
            return AllBrokersResource(self._dynamic, znodes.DEFAULT_ENTITY)
        broker_id = self._dynamic.config.broker.id
        if name != str(broker_id):
            raise ApiError(
                Error.INVALID_REQUEST, f"this is broker {broker_id}, not broker {name!r}"
            )
        return BrokerResource(self._dynamic, name)

    def _check_known(self, topic: str) -> None:
        fault = topic_name_fault(topic)
        if fault is not None:
            raise ApiError(Error.INVALID_TOPIC_EXCEPTION, f"the topic's name {fault}")
        if topic not in self._cache.topics:
            raise ApiError(Error.UNKNOWN_TOPIC_OR_PARTITION, f"there is no topic {topic}")
