"""Settings given on a command line as NAME=VALUE, each once (pure)."""

from __future__ import annotations

from collections.abc import Iterable

import click


def parse_given(texts: Iterable[str], option: str) -> dict[str, str]:
    """The settings by name; a `click.BadParameter` about `option` if one cannot be read."""
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
