"""Selects the valid ones among stored settings (pure).

Settings are checked when they are set, but a user or another version may have written anything to
ZooKeeper. Invalid ones are left out; the others take effect.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Generic, NamedTuple, TypeVar

from kdist.config.faults import ConfigError

T = TypeVar("T")


class Usable(NamedTuple, Generic[T]):
    """The valid settings, the object made from them, and a sentence for each fault."""

    settings: Mapping[str, str]
    made: T
    faults: tuple[str, ...]


def pick_usable(given: Mapping[str, str], make: Callable[[Mapping[str, str]], T]) -> Usable[T]:
    """All of them if `make` accepts them; else, in order, each that it accepts with those before.

    `make` raises `ConfigError` for invalid settings; it must accept an empty mapping.
    """
    try:
        return Usable(given, make(given), ())
    except ConfigError:  # try them one by one, to find the faulty ones
        pass
    settings: dict[str, str] = {}
    faults: list[str] = []
    made = make(settings)
    for name, text in given.items():
        try:
            made = make({**settings, name: text})
            settings[name] = text
        except ConfigError as error:
            faults += error.faults
    return Usable(settings, made, tuple(faults))
