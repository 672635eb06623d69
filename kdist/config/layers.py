"""Where a setting's value comes from: layers of given values, the nearest first (pure).

A topic's setting is looked for among the topic's overrides by its own name, then in each of the
broker's layers by its broker name and that one's synonyms; a broker's setting in the broker's
layers only. The first that is given wins; the default stands below them all. The order of layers
and of synonyms is Kafka's (KIP-226), and so are the names of the sources.
"""

from __future__ import annotations

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
    """Values given in one place, by name."""

    source: Source
    given: Mapping[str, Given]

    def names_of(self, row: Setting) -> tuple[Synonym, ...]:
        """What this layer calls a setting."""
        is_topic = self.source is Source.DYNAMIC_TOPIC_CONFIG
        return row.names if is_topic else row.broker_names


def layer_of(source: Source, settings: Mapping[str, str], where: str = "") -> Layer:
    """A layer of texts that all come from one place."""
    return Layer(source, {name: Given(text, where) for name, text in settings.items()})


class Origin(NamedTuple):
    """One place that a setting could have its value from; DescribeConfigs' "synonym"."""

    name: str
    text: str | None
    source: Source


class Described(NamedTuple):
    """A setting with its value as text, where that is from, and all it could have been from.

    `name` is what it is called in the nearest layer: a topic's `segment.bytes` is the broker's
    `log.segment.bytes`. The text is None for what is not set and has no default; a secret's is
    hidden.
    """

    row: Setting
    name: str
    text: str | None
    source: Source
    origins: tuple[Origin, ...]


class Resolved(NamedTuple):
    """The outcome: values by attribute, a sentence for each faulty name, and which names won.

    `overruled` has each given name that lost to another, with that other.
    """

    values: dict[str, Any]
    faults: dict[str, str]
    used: set[str]
    overruled: dict[str, str]


def resolve(table: Iterable[Setting], layers: Sequence[Layer], where: str = "") -> Resolved:
    """Every row's value. Each given text is checked, those that lose included.

    `where` is the place in which a setting that must be given is missed.
    """
    outcome = Resolved({}, {}, set(), {})
    for row in table:
        winner = _check_all(row, layers, outcome)
        if winner is None:
            _take_default(row, outcome, where)
    return outcome


def describe(table: Iterable[Setting], layers: Sequence[Layer]) -> Iterator[Described]:
    """Every row with its value and its source, for values that `resolve` found no fault with."""
    for row in table:
        origins = tuple(_origins(row, layers))
        name = layers[0].names_of(row)[0].name
        yield Described(row, name, _text(row, layers), origins[0].source, origins)


def names_in(table: Iterable[Setting], *, of_broker: bool) -> Iterator[str]:
    """Every name that a broker's file, or a topic's overrides, may use for these settings."""
    for row in table:
        yield from (name for name, _ in (row.broker_names if of_broker else row.names))


def _candidates(row: Setting, layers: Sequence[Layer]) -> Iterator[tuple[Synonym, Given, Source]]:
    for layer in layers:
        for synonym in layer.names_of(row):
            if synonym.name in layer.given:
                yield synonym, layer.given[synonym.name], layer.source


def _check_all(row: Setting, layers: Sequence[Layer], outcome: Resolved) -> str | None:
    """Take the value of the first that is given; the name it was given by, if any was."""
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
    if not row.is_required:
        yield Origin(row.broker_names[0].name, _shown(row, row.default), Source.DEFAULT_CONFIG)


def _text(row: Setting, layers: Sequence[Layer]) -> str | None:
    for synonym, given, _ in _candidates(row, layers):
        return _shown(row, row.read(given.text, synonym.factor))
    return _shown(row, row.default)


def _shown(row: Setting, value: Any) -> str | None:
    if value is None:
        return None
    return HIDDEN if row.is_secret else show_text(value)
