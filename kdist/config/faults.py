"""Faults in settings: one sentence for each, and all of them reported at once."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple, TypeVar

from kdist.errors import UserError

T = TypeVar("T")

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


def broken(rules: Iterable[Callable[[T], str | None]], values: T, where: str) -> Iterator[str]:
    """A sentence for each rule that the values break: it returns a claim, or None."""
    return (sentence_at(where, claim) for rule in rules if (claim := rule(values)))


def raise_if_any(faults: Iterable[str]) -> None:
    """Raise `ConfigError` with the faults, without duplicates, if there are any."""
    found = tuple(dict.fromkeys(faults))
    if found:
        raise ConfigError(found)
