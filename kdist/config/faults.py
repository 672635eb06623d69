"""Faults in settings: one sentence for each, and all of them reported at once (pure).

Settings are checked when they are set, but a user or another version may have written anything to
ZooKeeper. Of stored ones `pick_usable` leaves out the invalid; the others take effect.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Generic, NamedTuple, TypeVar

from kdist.errors import UserError

T = TypeVar("T")

HIDDEN = "(hidden)"


class Given(NamedTuple):
    """The text given for a setting, and where: 'server.properties, line 3'."""

    text: str
    where: str = ""

    def __repr__(self) -> str:
        """Without the text, which may be a secret's."""
        return f"Given({HIDDEN}, {self.where!r})"

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
