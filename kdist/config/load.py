"""A broker's configuration from a file's text or a mapping, with all faults at once.

It takes text, not a path: opening files is left to the caller.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from typing import TypeVar

from kdist.config import broker_rules, listener_rules, topic_rules
from kdist.config.addresses import listener_protocols
from kdist.config.broker import BrokerSettings, DiskSettings, ZooKeeperSettings
from kdist.config.broker_config import (
    BROKER_NAMES,
    BROKER_TABLE,
    DYNAMIC_NAMES,
    BrokerConfig,
)
from kdist.config.declare import Settings
from kdist.config.faults import Given, broken, raise_if_any
from kdist.config.foreign import judge_names
from kdist.config.groups import GroupSettings
from kdist.config.layers import Layer, Source, prefixed, resolve
from kdist.config.network import NetworkSettings
from kdist.config.replication import ReplicationSettings
from kdist.config.security import (
    OF_LISTENERS,
    AuthenticationSettings,
    AuthorizationSettings,
    ListenerLimits,
    ListenerSecurity,
    MechanismSettings,
    SaslSettings,
    TlsSettings,
    is_prefixed,
    names_of_listener,
    prefix_of,
    row_of_prefixed,
)
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
        fixed = {name: _fixed(name, layer.given[name]) for name in fixed_names(layer.given)}
        known = BROKER_NAMES.union(fixed)
        others = {name: each for name, each in layer.given.items() if name not in known}
        raise_if_any((*fixed.values(), *judge_names(others, DYNAMIC_NAMES).refused.values()))
    return _read(config.layers[-1].given, "", dynamic)


def fixed_names(given: Iterable[str]) -> list[str]:
    """The names of broker settings that cannot be changed while the broker runs."""
    fixed = BROKER_NAMES - DYNAMIC_NAMES
    return [name for name in given if name in fixed or is_prefixed(name)]


def _fixed(name: str, given: Given) -> str:
    claim = f"{name} cannot be changed while a broker runs"
    other = _INSTEAD.get(name)
    advice = f"use {other}" if other else "change its file, and restart it"
    return given.sentence(f"{claim}: {advice}")


class _Reader:
    """Reads several classes from the same layers, and collects faults and overruled names.

    `prefixes` are a listener's, the longest first.
    """

    def __init__(self, layers: tuple[Layer, ...], source: str) -> None:
        self.faults: dict[str, str] = {}
        self.used: set[str] = set()
        self.overruled: dict[str, str] = {}
        self._layers = layers
        self._source = source

    def read(self, cls: type[S], *prefixes: str) -> S:
        """The settings; where one is faulty or missing, they must not be used."""
        layers = prefixed(self._layers, prefixes or ("",))
        outcome = resolve(cls.TABLE, layers, self._source)
        self.faults = outcome.faults | self.faults  # the first fault of a name is kept
        self.used |= outcome.used
        self.overruled |= outcome.overruled
        return cls(**outcome.values)


def _read_listener(
    reader: _Reader, name: str, protocol: str, given: Container[str]
) -> ListenerSecurity:
    """A listener's settings, each with its prefix or, for most, without one."""
    own = prefix_of(name)
    has_tls, has_sasl = protocol.endswith("SSL"), protocol.startswith("SASL")
    tls = reader.read(TlsSettings, own, "") if has_tls else None
    if tls is not None and has_sasl and f"{own}ssl.client.auth" not in given:
        tls = replace(tls, client_auth="none")
    sasl = reader.read(SaslSettings, own, "") if has_sasl else None
    enabled = (sasl.enabled_mechanisms or ()) if sasl else ()  # None if it is faulty
    return ListenerSecurity(
        name=name,
        protocol=protocol,
        limits=reader.read(ListenerLimits, own),
        tls=tls,
        sasl=sasl,
        mechanisms={
            each: reader.read(MechanismSettings, prefix_of(name, each), own, "") for each in enabled
        },
    )


def _read(
    given: Mapping[str, Given],
    source: str,
    dynamic: Sequence[Layer] = (),
    file_faults: Iterable[str] = (),
) -> BrokerConfig:
    layers = (*dynamic, Layer(Source.STATIC_BROKER_CONFIG, given))
    reader = _Reader(layers, source)
    broker = reader.read(BrokerSettings)
    topic_defaults = reader.read(TopicSettings)
    for cls in OF_LISTENERS:
        reader.read(cls)
    listeners = {
        name: _read_listener(reader, name, protocol, given)
        for name, protocol in _protocols(broker).items()
    }
    config = BrokerConfig(
        broker=broker,
        disk=reader.read(DiskSettings),
        zookeeper=reader.read(ZooKeeperSettings),
        network=reader.read(NetworkSettings),
        authentication=reader.read(AuthenticationSettings),
        authorization=reader.read(AuthorizationSettings),
        listeners=listeners,
        groups=reader.read(GroupSettings),
        storage=reader.read(StorageSettings),
        replication=reader.read(ReplicationSettings),
        topic_defaults=topic_defaults,
        layers=layers,
        warnings=(),
    )
    names = BROKER_NAMES.union(*map(names_of_listener, listeners))
    judged = judge_names(given, names)
    misplaced = _misplaced(given, listeners.values())
    raise_if_any((*file_faults, *_in_order(given, judged.refused | misplaced | reader.faults)))
    warnings = (
        *_in_order(given, judged.ignored | _without_effect(given, reader)),
        *_left_out(given, listeners.values()),
        *broken(topic_rules.WARNS, topic_defaults, source),
    )
    raise_if_any(
        (
            *broken(broker_rules.REFUSES, config, source),
            *chain.from_iterable(
                broken(listener_rules.REFUSES, each, source) for each in listeners.values()
            ),
            *broken(topic_rules.REFUSES, topic_defaults, source),
        )
    )
    return replace(config, warnings=(*warnings, *broken(broker_rules.WARNS, config, source)))


def _protocols(broker: BrokerSettings) -> dict[str, str]:
    """Each listener's protocol; none if they cannot be read, which a rule says then."""
    try:
        return listener_protocols(broker.listeners, broker.listener_security_protocol_map)
    except ValueError:
        return {}


def _misplaced(given: Mapping[str, Given], listeners: Iterable[ListenerSecurity]) -> dict[str, str]:
    """A sentence for each setting of TLS or SASL for a listener that has none: it may be meant to
    have it, and must not be open instead."""
    found = {}
    for listener in listeners:
        own = prefix_of(listener.name)
        lacking = {"ssl.": listener.tls, "sasl.": listener.sasl}
        absent = tuple(prefix for prefix, settings in lacking.items() if settings is None)
        for name in (each for each in given if each.startswith(own)):
            row = row_of_prefixed(name)
            if row is not None and row.name.startswith(absent):
                claim = f"{name} is given, but the protocol of {listener.name} is"
                found[name] = given[name].sentence(f"{claim} {listener.protocol}")
    return found


def _left_out(given: Mapping[str, Given], listeners: Iterable[ListenerSecurity]) -> Iterator[str]:
    """A sentence if `ssl.client.auth` does not hold for a listener, since that has SASL too."""
    auth = given.get("ssl.client.auth", Given("none"))
    for listener in listeners:
        own = f"{prefix_of(listener.name)}ssl.client.auth"
        if listener.tls and listener.sasl and auth.text.strip() != "none" and own not in given:
            claim = f"ssl.client.auth does not hold for {listener.name}, which has SASL: give {own}"
            yield auth.sentence(claim)


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
