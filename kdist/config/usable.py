"""Which of the settings that are stored can be used (pure).

They were checked when they were given, but a person or another version may have written anything.
What cannot be used is left out, and the others are in force without it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from kdist.config.faults import ConfigError


class Usable(NamedTuple):
    """Settings that can be used, and a sentence for each fault of those that cannot."""

    settings: Mapping[str, str]
    faults: tuple[str, ...]


def pick_usable(given: Mapping[str, str], check: Callable[[Mapping[str, str]], object]) -> Usable:
    """All, if `check` takes them; else, in their order, each that it takes beside those before.

    `check` raises `ConfigError` for what cannot be used.
    """
    try:
        check(given)
        return Usable(given, ())
    except ConfigError:  # so one by one, which tells what is at fault
        pass
    settings: dict[str, str] = {}
    faults: list[str] = []
    for name, text in given.items():
        try:
            check({**settings, name: text})
            settings[name] = text
        except ConfigError as error:
            faults += error.faults
    return Usable(settings, tuple(faults))
