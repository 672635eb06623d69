"""Faults in settings: one sentence for each, and all of them reported at once."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from kdist.errors import UserError

HIDDEN = "(hidden)"


class Given(NamedTuple):
    """The text given for a setting, and where: 'server.properties, line 3'."""

    text: str
    where: str = ""

    def sentence(self, claim: str, end: str = ".") -> str:
        """`claim` as a sentence that names the place."""
        return sentence_at(self.where, claim, end)


class ConfigError(UserError):
    """Settings that kdist does not accept; `faults` has one sentence for each thing to correct."""

    def __init__(self, faults: Iterable[str]) -> None:
        self.faults = tuple(faults)
        super().__init__("\n".join(self.faults))


def sentence_at(where: str, claim: str, end: str = ".") -> str:
    """`claim` as a sentence that names the place `where`, if that is known."""
    return f"{claim} ({where}){end}" if where else f"{claim}{end}"


def raise_if_any(faults: Iterable[str]) -> None:
    """Raise `ConfigError` with the faults, without duplicates, if there are any."""
    found = tuple(dict.fromkeys(faults))
    if found:
        raise ConfigError(found)
