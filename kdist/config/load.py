"""A broker's configuration from a file's text or a mapping, with all faults at once.

It takes text, not a path: opening files is left to the caller.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from kdist.config import broker_rules, topic_rules
from kdist.config.broker import BrokerSettings, DiskSettings, ZooKeeperSettings
from kdist.config.broker_config import (
    BROKER_CLASSES,
    BROKER_NAMES,
    BROKER_TABLE,
    DYNAMIC_NAMES,
    BrokerConfig,
)
from kdist.config.declare import Settings
from kdist.config.faults import Given, broken, raise_if_any
from kdist.config.foreign import judge_names
from kdist.config.groups import GroupSettings
from kdist.config.layers import Layer, Source, resolve
from kdist.config.network import NetworkSettings
from kdist.config.replication import ReplicationSettings
from kdist.config.storage import StorageSettings
from kdist.config.texts import parse_properties
from kdist.config.topic import TopicSettings

S = TypeVar("S", bound=Settings)

_OWN = {row.name for row in BROKER_TABLE}
_INSTEAD = {  # from a synonym to the name by which the setting can be changed
    synonym.name: row.broker_names[0].name
    for row in TopicSettings.TABLE
    for synonym in row.broker_names[1:]
    if synonym.name not in _OWN
}


def load_broker(text: str, source: str) -> BrokerConfig:
    """The configuration in the text of a .properties file; `source` names the file in messages.

    Raises `ConfigError` with all faults.
    """
    properties = parse_properties(text, source)
    return _read(properties.given, source, file_faults=properties.faults)


def broker_from(given: Mapping[str, str], source: str = "") -> BrokerConfig:
    """The configuration in a mapping. As `load_broker`."""
    return _read({name: Given(text, source) for name, text in given.items()}, source)


def with_dynamic(config: BrokerConfig, dynamic: Sequence[Layer]) -> BrokerConfig:
    """The same file's configuration with dynamic settings on top, highest precedence first.

    Raises `ConfigError` with all faults of the dynamic settings, including names of settings that
    cannot be changed while a broker runs.
    """
    for layer in dynamic:
        others = {name: each for name, each in layer.given.items() if name not in BROKER_NAMES}
        refused = judge_names(others, DYNAMIC_NAMES).refused
        fixed = (_fixed(name, layer.given[name]) for name in fixed_names(layer.given))
        raise_if_any((*fixed, *refused.values()))
    return _read(config.layers[-1].given, "", dynamic)


def fixed_names(given: Iterable[str]) -> list[str]:
    """The names of broker settings that cannot be changed while the broker runs."""
    return [name for name in given if name in BROKER_NAMES - DYNAMIC_NAMES]


def _fixed(name: str, given: Given) -> str:
    claim = f"{name} cannot be changed while a broker runs"
    other = _INSTEAD.get(name)
    advice = f"use {other}" if other else "change its file, and restart it"
    return given.sentence(f"{claim}: {advice}")


class _Reader:
    """Reads several classes from the same layers, and collects faults and overruled names."""

    def __init__(self, layers: tuple[Layer, ...], source: str) -> None:
        self.faults: dict[str, str] = {}
        self.used: set[str] = set()
        self.overruled: dict[str, str] = {}
        self._layers = layers
        self._source = source
        self._values: dict[type[Settings], dict[str, Any]] = {}

    def read(self, cls: type[Settings]) -> None:
        outcome = resolve(cls.TABLE, self._layers, self._source)
        self.faults = outcome.faults | self.faults  # the first fault of a name is kept
        self.used |= outcome.used
        self.overruled |= outcome.overruled
        self._values[cls] = outcome.values

    def made(self, cls: type[S]) -> S:
        return cls(**self._values[cls])


def _read(
    given: Mapping[str, Given],
    source: str,
    dynamic: Sequence[Layer] = (),
    file_faults: Iterable[str] = (),
) -> BrokerConfig:
    layers = (*dynamic, Layer(Source.STATIC_BROKER_CONFIG, given))
    reader = _Reader(layers, source)
    for cls in (*BROKER_CLASSES, TopicSettings):
        reader.read(cls)
    judged = judge_names(given, BROKER_NAMES)
    raise_if_any((*file_faults, *_in_order(given, judged.refused | reader.faults)))
    topic_defaults = reader.made(TopicSettings)
    config = BrokerConfig(
        broker=reader.made(BrokerSettings),
        disk=reader.made(DiskSettings),
        zookeeper=reader.made(ZooKeeperSettings),
        network=reader.made(NetworkSettings),
        groups=reader.made(GroupSettings),
        storage=reader.made(StorageSettings),
        replication=reader.made(ReplicationSettings),
        topic_defaults=topic_defaults,
        layers=layers,
        warnings=(
            *_in_order(given, judged.ignored | _without_effect(given, reader)),
            *broken(topic_rules.WARNS, topic_defaults, source),
        ),
    )
    raise_if_any(
        (
            *broken(broker_rules.REFUSES, config, source),
            *broken(topic_rules.REFUSES, topic_defaults, source),
        )
    )
    warnings = broken(broker_rules.WARNS, config, source)
    return replace(config, warnings=(*config.warnings, *warnings))


def _without_effect(given: Mapping[str, Given], reader: _Reader) -> dict[str, str]:
    """A sentence for each name that is overruled by another and not used by any other setting."""
    return {
        name: given[name].sentence(f"{name} has no effect, as {winner} is given too")
        for name, winner in reader.overruled.items()
        if name not in reader.used
    }


def _in_order(given: Mapping[str, Given], sentences: Mapping[str, str]) -> Iterator[str]:
    """The sentences in the order of the file; last, those about missing settings."""
    yield from (sentences[name] for name in given if name in sentences)
    yield from (sentence for name, sentence in sentences.items() if name not in given)
