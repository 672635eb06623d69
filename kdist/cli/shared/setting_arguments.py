"""Settings given on a command line as NAME=VALUE, each once, and those to unset (pure)."""

from __future__ import annotations

from collections.abc import Iterable

import click


def parse_given(texts: Iterable[str], option: str) -> dict[str, str]:
    """The settings by name; a `click.BadParameter` of `option` for a malformed or repeated one."""
    given: dict[str, str] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        name = name.strip()
        if not equals or not name:
            raise click.BadParameter(f"{text!r} is not NAME=VALUE.", param_hint=repr(option))
        if name in given:
            raise click.BadParameter(f"{name} is given twice.", param_hint=repr(option))
        given[name] = value.strip()
    return given


def require_apart(given: Iterable[str], removed: Iterable[str]) -> None:
    """`click.UsageError` for a setting that is both to be set and to be unset."""
    both = sorted(set(given) & set(removed))
    if both:
        raise click.UsageError(f"{both[0]} is both set and unset.")
