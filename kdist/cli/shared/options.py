"""Shared by the commands: common options and arguments, types of times, JSON output."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any, TypeVar

import click

from kdist.cli.shared.files import complete_files
from kdist.cli.shared.show import show_count, show_size
from kdist.errors import UserError
from kdist.runtime import diagnostics

F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")

json_option = click.option(
    "--json", "as_json", is_flag=True, help="Print JSON instead of tables, with raw values."
)

codec_option = click.option(
    "--codec",
    type=click.Choice(["none", "gzip", "snappy", "lz4", "zstd"]),
    help="Compress batches; by default as compression.type says, none if nothing does.",
)
isolation_option = click.option(
    "--isolation",
    type=click.Choice(["read_uncommitted", "read_committed"]),
    help="Whether to read records of open and aborted transactions, or only committed ones; by "
    "default as isolation.level says, read_uncommitted if nothing does.",
)
_ACKS = {"0": "nobody", "1": "the leader", "all": "all in-sync replicas"}


def acks_option(*choices: str) -> Callable[[F], F]:
    """`--acks`, with the choices that a command accepts."""
    return click.option(
        "--acks",
        type=click.Choice(choices),
        help="Who must have a record before it is acknowledged: "
        + ", ".join(_ACKS[each] for each in choices)
        + "; by default as the setting acks says, all if nothing does.",
    )


def not_empty(_: click.Context, parameter: click.Parameter, value: T) -> T:
    """A callback for names and paths; `click.BadParameter` if empty, as by an unset variable."""
    words = value if isinstance(value, tuple) else (value,)
    if any(isinstance(each, str) and not each.strip() for each in words):
        raise click.BadParameter("it is empty.", param=parameter)
    return value


def names_argument(metavar: str, complete: Callable[..., Any] | None) -> Callable[[F], F]:
    """`GROUP...`, passed as `names`; at least one, unless in brackets as `[GROUP...]`."""
    return click.argument(
        "names",
        metavar=metavar,
        nargs=-1,
        required=not metavar.startswith("["),
        callback=not_empty,
        shell_complete=complete,
    )


path_argument = click.argument(
    "path", metavar="PATH", callback=not_empty, shell_complete=complete_files
)


def json_text(value: Any) -> str:
    """A line of JSON. Bytes of a path that are not UTF-8 are escaped, as "\\udcff"."""
    text = json.dumps(value, separators=(",", ":"), ensure_ascii=False)
    return text.encode(errors="backslashreplace").decode()


def print_json(value: Any) -> None:
    """Print a line of JSON."""
    click.echo(json_text(value))


def say(sentence: str, as_json: bool, **row: Any) -> None:
    """Print the sentence, or its facts as a line of JSON."""
    if as_json:
        print_json(row)
    else:
        click.echo(sentence)


def say_rate(
    records: int, size_bytes: int, seconds: float, as_json: bool, size: str = "", **more: Any
) -> None:
    """Print how many records took how long; JSON has `more`. `size` is of what, if not of all."""
    rate = records / seconds if seconds else 0.0
    size_rate = round(size_bytes / seconds) if seconds else 0
    what = f"{show_count(records, 'record')} {size or f'({show_size(size_bytes)})'}"
    say(
        f"{what} in {seconds:.2f} s: {rate:,.0f} records/s, {show_size(size_rate)}/s",
        as_json,
        records=records,
        bytes=size_bytes,
        seconds=round(seconds, 3),
        records_per_second=round(rate),
        bytes_per_second=size_rate,
        **more,
    )


def terminal_width() -> int | None:
    """The terminal's width in characters; None if standard output is not a terminal."""
    if not sys.stdout.isatty():
        return None
    from rich.console import Console  # takes 50 ms

    return Console().width


Option = Callable[[Callable[..., Any]], Callable[..., Any]]

level_option = click.option(
    "--log-level",
    type=click.Choice(diagnostics.LEVELS, case_sensitive=False),
    default="INFO",
    show_default=True,
    help="How much is written to standard error.",
)


def config_option(whose: str, *, required: bool = True) -> Option:
    """`--config FILE`, passed as `path`; `whose` settings these are, such as "broker"."""
    return click.option(
        "--config",
        "path",
        required=required,
        metavar="FILE",
        callback=not_empty,
        shell_complete=complete_files,
        help=f"The {whose}'s settings, .properties.",
    )


TIME_FORMS = "milliseconds since 1970, or ISO 8601 (in UTC unless it names a zone)"
"""The forms of a `Time`, for the help of options."""


class Time(click.ParamType):  # type: ignore[type-arg]  # generic as of click 8.3
    """A moment, in milliseconds since the epoch."""

    name = "time"

    def parse(self, text: str) -> int:
        from kdist.config.times import parse_time

        return parse_time(text)

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> int:
        try:
            return self.parse(str(value))
        except UserError as error:
            self.fail(f"{error}.", param, ctx)


class Duration(Time):
    """An amount of time in milliseconds."""

    name = "duration"

    def parse(self, text: str) -> int:
        from kdist.config.times import parse_duration

        return parse_duration(text)
