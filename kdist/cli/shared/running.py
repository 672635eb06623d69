"""Shared by the commands that run until a signal: `--config` and `--log-level`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from kdist.cli.shared.files import complete_files
from kdist.cli.shared.options import not_empty
from kdist.runtime import diagnostics

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
