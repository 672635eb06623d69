"""What is wrong with given settings: a sentence for each fault, and all faults at once."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from kdist.errors import UserError

HIDDEN = "(hidden)"


class Given(NamedTuple):
    """The text that somebody gave a setting, and where: 'server.properties, line 3'."""

    text: str
    where: str = ""

    def sentence(self, claim: str, end: str = ".") -> str:
        """`claim`, with the place it is about."""
        return sentence_at(self.where, claim, end)


class ConfigError(UserError):
    """Settings that kdist does not take; `faults` has one sentence for each thing to mend."""

    def __init__(self, faults: Iterable[str]) -> None:
        self.faults = tuple(faults)
        super().__init__("\n".join(self.faults))


def sentence_at(where: str, claim: str, end: str = ".") -> str:
    """`claim` as a sentence about the place `where`, if that is known."""
    return f"{claim} ({where}){end}" if where else f"{claim}{end}"


def raise_if_any(faults: Iterable[str]) -> None:
    """`ConfigError` with the faults, if there are any; each is said once."""
    found = tuple(dict.fromkeys(faults))
    if found:
        raise ConfigError(found)
