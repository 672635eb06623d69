"""Which of the settings that are stored can be used (pure).

They were checked when they were given, but a person or another version may have written anything.
What cannot be used is left out, and the others are in force without it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Generic, NamedTuple, TypeVar

from kdist.config.faults import ConfigError

T = TypeVar("T")


class Usable(NamedTuple, Generic[T]):
    """Settings that can be used, what was made of them, a sentence for each fault of the others."""

    settings: Mapping[str, str]
    made: T
    faults: tuple[str, ...]


def pick_usable(given: Mapping[str, str], make: Callable[[Mapping[str, str]], T]) -> Usable[T]:
    """All, if `make` takes them; else, in their order, each that it takes beside those before.

    `make` raises `ConfigError` for what cannot be used; it must take an empty mapping.
    """
    try:
        return Usable(given, make(given), ())
    except ConfigError:  # so one by one, which tells what is at fault
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
