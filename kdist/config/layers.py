"""Where a setting's value comes from: layers of given values, highest precedence first (pure).

A topic's setting is looked up in the topic's overrides by its own name, then in each of the
broker's layers by its broker name and synonyms; a broker's setting in the broker's layers only. The
first value found wins; the default comes last. The order of layers and synonyms is Kafka's
(KIP-226), and so are the names of the sources.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from kdist.config.declare import Setting, Synonym
from kdist.config.faults import HIDDEN, Given, sentence_at
from kdist.config.kinds import show_text


class Source(enum.IntEnum):
    """DescribeConfigs' `ConfigSource`."""

    DYNAMIC_TOPIC_CONFIG = 1
    DYNAMIC_BROKER_CONFIG = 2
    DYNAMIC_DEFAULT_BROKER_CONFIG = 3
    STATIC_BROKER_CONFIG = 4
    DEFAULT_CONFIG = 5


class Layer(NamedTuple):
    """Values given in one place, by name. Settings are looked up with `prefix` before their names.

    So one place makes several layers: for a listener, `listener.name.<listener>.` is above "".
    """

    source: Source
    given: Mapping[str, Given]
    prefix: str = ""

    def names_of(self, row: Setting) -> tuple[Synonym, ...]:
        names = row.names if self.source is Source.DYNAMIC_TOPIC_CONFIG else row.broker_names
        return tuple(each._replace(name=self.prefix + each.name) for each in names)


def prefixed(layers: Sequence[Layer], prefixes: Iterable[str]) -> tuple[Layer, ...]:
    """The layers looked up with each prefix; whatever its place, the first prefix wins."""
    return tuple(layer._replace(prefix=prefix) for prefix in prefixes for layer in layers)


def layer_of(source: Source, settings: Mapping[str, str], where: str = "") -> Layer:
    """A layer whose values all come from one place."""
    return Layer(source, {name: Given(text, where) for name, text in settings.items()})


class Origin(NamedTuple):
    """One source of a setting's value, winning or not: a "synonym" in DescribeConfigs."""

    name: str
    text: str | None
    source: Source


class Described(NamedTuple):
    """A setting with its value as text, the value's source, and all sources that have one.

    `name` is its name in the highest layer: `segment.bytes` for a topic, `log.segment.bytes` for a
    broker. The text is None if there is no value and no default; a secret's is hidden.
    """

    row: Setting
    name: str
    text: str | None
    source: Source
    origins: tuple[Origin, ...]


class Resolved(NamedTuple):
    """Values by attribute, a sentence for each faulty name, and the names whose values won.

    `overruled` maps each given name that lost to another name to the winner.
    """

    values: dict[str, Any]
    faults: dict[str, str]
    used: set[str]
    overruled: dict[str, str]

    def or_else(self, faultless: Mapping[str, Any]) -> dict[str, Any]:
        """The values, with these where there is none: for further checks beside the faults."""
        absent = (None, dataclasses.MISSING)
        given = {name: each for name, each in self.values.items() if each not in absent}
        return {**self.values, **faultless, **given}


def resolve(table: Iterable[Setting], layers: Sequence[Layer], where: str = "") -> Resolved:
    """Every row's value. All given texts are checked, also those that are overruled.

    `where` is the place named in the fault of a required setting that is missing.
    """
    outcome = Resolved({}, {}, set(), {})
    for row in table:
        winner = _check_all(row, layers, outcome)
        if winner is None:
            _take_default(row, outcome, where)
    return outcome


def describe(table: Iterable[Setting], layers: Sequence[Layer]) -> Iterator[Described]:
    """Every row with its value and source, for layers in which `resolve` found no fault."""
    for row in table:
        origins = tuple(_origins(row, layers))
        name = layers[0].names_of(row)[0].name
        source = origins[0].source if origins else Source.DEFAULT_CONFIG
        yield Described(row, name, _text(row, layers), source, origins)


def names_in(table: Iterable[Setting], *, of_broker: bool) -> Iterator[str]:
    """All names of these settings, in a broker's file or in a topic's overrides."""
    for row in table:
        yield from (name for name, _ in (row.broker_names if of_broker else row.names))


def _candidates(row: Setting, layers: Sequence[Layer]) -> Iterator[tuple[Synonym, Given, Source]]:
    for layer in layers:
        for synonym in layer.names_of(row):
            if synonym.name in layer.given:
                yield synonym, layer.given[synonym.name], layer.source


def _check_all(row: Setting, layers: Sequence[Layer], outcome: Resolved) -> str | None:
    """Set the row's value from the first name that is given; returns that name, or None."""
    winner = None
    for synonym, given, _ in _candidates(row, layers):
        value = None
        try:
            value = row.read(given.text, synonym.factor)
        except ValueError as allowed:
            outcome.faults[synonym.name] = _fault(row, synonym.name, given, str(allowed))
        if winner is None:
            winner = synonym.name
            outcome.values[row.attribute] = value
            outcome.used.add(winner)
        elif synonym.name != winner:
            outcome.overruled[synonym.name] = winner
    return winner


def _take_default(row: Setting, outcome: Resolved, where: str) -> None:
    if row.is_required:
        claim = f"{row.name} must be given: {row.doc[0].lower()}{row.doc[1:-1]}"
        outcome.faults[row.name] = sentence_at(where, claim)
    outcome.values[row.attribute] = row.default


def _fault(row: Setting, name: str, given: Given, allowed: str) -> str:
    text = HIDDEN if row.is_secret else repr(given.text)
    return given.sentence(f"{name} is {text}, but must be {allowed}")


def _origins(row: Setting, layers: Sequence[Layer]) -> Iterator[Origin]:
    for synonym, given, source in _candidates(row, layers):
        yield Origin(synonym.name, HIDDEN if row.is_secret else given.text, source)
    if not (row.is_required or row.is_default_of_synonym):
        yield Origin(
            (row.broker_names or row.names)[0].name, _shown(row, row.default), Source.DEFAULT_CONFIG
        )


def _text(row: Setting, layers: Sequence[Layer]) -> str | None:
    for synonym, given, _ in _candidates(row, layers):
        return _shown(row, row.read(given.text, synonym.factor))
    return _shown(row, row.default)


def _shown(row: Setting, value: Any) -> str | None:
    if value is None:
        return None
    return HIDDEN if row.is_secret else show_text(value)
