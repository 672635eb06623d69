"""`python -m lab`: the command line, and what ends it."""

from __future__ import annotations

import os
import sys

import click

import lab.cli_faults  # noqa: F401  # adds its commands
from kdist.errors import KdistError
from lab.cli import lab as command_line


def main() -> None:
    """Run the command line; a mistake is a line on standard error and status 1."""
    # A root by `su` may lack the directories of what only root runs.
    os.environ["PATH"] = os.environ.get("PATH", os.defpath) + ":/usr/sbin:/sbin"
    try:
        command_line(prog_name="python -m lab")
    except KdistError as error:
        for sentence in str(error).splitlines():
            click.echo(f"lab: {sentence}", err=True)
        sys.exit(1)


if __name__ == "__main__":
    main()
