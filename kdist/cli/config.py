"""`kdist config`: check a broker's file, and show every setting with its value and its source."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

import click

from kdist.cli.shared.click_groups import CommandGroup
from kdist.cli.shared.files import complete_files, read_settings_file, readonly_files
from kdist.cli.shared.options import json_option, not_empty, print_json
from kdist.cli.shared.settings import pick
from kdist.cli.shared.show import show_count
from kdist.cli.shared.table import Field, print_rows
from kdist.errors import UserError

if TYPE_CHECKING:
    from kdist.config.broker_config import BrokerConfig
    from kdist.config.declare import Setting

_SOURCES = {  # the only two sources that settings read from a file can have
    "STATIC_BROKER_CONFIG": "file",
    "DEFAULT_CONFIG": "default",
}
_MUST_BE_GIVEN = "must be given"


@click.group(cls=CommandGroup)
def config() -> None:
    """Check a broker's file, or show every setting with its value."""


# check


@config.command()
@click.argument("path", metavar="FILE", callback=not_empty, shell_complete=complete_files)
@click.option(
    "--for",
    "kind",
    type=click.Choice(["broker", "agent"]),
    default="broker",
    show_default=True,
    help="Whose file it is.",
)
@json_option
def check(path: str, kind: str, as_json: bool) -> int:
    """Say whether a broker, or an agent, would start with FILE; exit with 1 if not.

    All mistakes are printed at once, each with its line. What is allowed but odd is a warning.
    The JSON has the digest of a broker's settings, which it shows on /health when it runs.
    """
    from kdist.client.security import client_security
    from kdist.config.agent import load_agent
    from kdist.config.faults import ConfigError
    from kdist.config.load import load_broker
    from kdist.config.texts import parse_properties

    text = read_settings_file(path)
    faults: Sequence[str] = ()
    warnings: Sequence[str] = ()
    count = len(parse_properties(text, path).given)
    digest: str | None = None
    try:
        if kind == "agent":
            client_security(load_agent(text, path))
        else:
            loaded = load_broker(text, path)
            warnings, digest = loaded.warnings, loaded.digest()
    except ConfigError as error:
        faults = error.faults
    except UserError as error:  # of what is secured
        faults = (str(error),)
    if as_json:
        found = {"file": path, "is_good": not faults}
        said = {"faults": list(faults), "warnings": list(warnings)}
        print_json({**found, "digest": digest, **said})
    else:
        _print_verdict(path, count, faults, warnings)
    return 1 if faults else 0


def _print_verdict(path: str, count: int, faults: Sequence[str], warnings: Sequence[str]) -> None:
    for fault in faults:
        click.echo(click.style("fault    ", fg="red") + fault)
    for warning in warnings:
        click.echo(click.style("warning  ", fg="yellow") + warning)
    if faults:
        click.echo(f"{path} is refused, with {show_count(len(faults), 'fault')}.")
    else:
        click.echo(f"{path} is good: {show_count(count, 'setting')} given.")


# describe


class Line(NamedTuple):
    """A setting with its value; None if it is not set."""

    setting: Setting
    name: str
    value: str | None
    source: str

    @property
    def default(self) -> str | None:
        """As text; None if there is none."""
        from kdist.config.kinds import show_text

        if self.setting.is_required or self.setting.default is None:
            return None
        return show_text(self.setting.default)


@config.command()
@click.argument(
    "arguments",
    metavar="[FILE] [NAME...]",
    nargs=-1,
    callback=not_empty,
    shell_complete=complete_files,
)
@json_option
def describe(arguments: tuple[str, ...], as_json: bool) -> None:
    """Show settings with value, source, default and meaning; secrets are hidden.

    With FILE, shows the values that a broker started with it would have; without, the defaults.
    With NAMEs, shows those settings only, by any of their names; `*` in a NAME matches any text.

    \b
    Examples:
      kdist config describe server.properties
      kdist config describe server.properties log.retention.ms 'flush.*'
      kdist config describe segment.bytes
    """
    files = readonly_files()
    first = arguments[0] if arguments else ""
    has_file = "/" in first or first.endswith(".properties") or files.exists(first)
    names = arguments[1:] if has_file else arguments
    lines = list(_lines_of_file(first) if has_file else _defaults())
    print_rows(
        _LINES, pick(lines, names, _names), as_json=as_json, below=lambda line: (_meaning(line), "")
    )


def _lines_of_file(path: str) -> Iterator[Line]:
    from kdist.config.load import load_broker

    loaded: BrokerConfig = load_broker(read_settings_file(path), path)
    for row, name, text, source, _ in loaded.describe():
        yield Line(row, name, text, _SOURCES[source.name])


def _defaults() -> Iterator[Line]:
    from kdist.config.broker_config import BROKER_TABLE
    from kdist.config.topic import TopicSettings

    for row in (*BROKER_TABLE, *TopicSettings.TABLE):
        line = Line(row, (row.broker_names or row.names)[0].name, None, "default")
        yield line._replace(value=line.default)


def _names(line: Line) -> list[str]:
    both = (*line.setting.broker_names, *line.setting.names)
    return list(dict.fromkeys(synonym.name for synonym in both))


def _text(line: Line, value: str | None) -> str:
    if value is None:
        return _MUST_BE_GIVEN if line.setting.is_required else "-"
    return value or '""'


def _meaning(line: Line) -> str:
    """The setting's sentence, its unit, and the value in readable units if that differs."""
    from kdist.config.declare import show_human

    row = line.setting
    notes = [row.unit] if row.unit else []
    if line.value is not None and not row.is_secret:
        human = show_human(row, row.read(line.value))
        if human not in (line.value, "not set"):
            notes.append(f"here {human}")
    return f"    {row.doc}" + (f" ({', '.join(notes)})" if notes else "")


_LINES: tuple[Field[Line], ...] = (
    Field("NAME", lambda line: line.name, "name"),
    Field("", lambda line: _names(line), "names"),
    Field("VALUE", lambda line: _text(line, line.value)),
    Field("", lambda line: line.value, "value"),
    Field("SOURCE", lambda line: line.source, "source"),
    Field("DEFAULT", lambda line: _text(line, line.default)),
    Field("", lambda line: line.default, "default"),
    Field("", lambda line: line.setting.is_required, "is_required"),
    Field("", lambda line: line.setting.is_secret, "is_secret"),
    Field("", lambda line: line.setting.unit, "unit"),
    Field("", lambda line: line.setting.allowed(), "allowed"),
    Field("", lambda line: line.setting.doc, "doc"),
)
