"""`python -m lab`: runs the command line and turns errors into an exit status."""

from __future__ import annotations

import os
import sys

import click

import lab.cli_faults  # noqa: F401  # registers its commands
from kdist.errors import KdistError
from lab.cli import lab as command_line


def main() -> None:
    """Run the command line; an error is printed on standard error and gives status 1."""
    # `su` without a login shell may leave the sbin directories out of root's PATH.
    os.environ["PATH"] = os.environ.get("PATH", os.defpath) + ":/usr/sbin:/sbin"
    try:
        command_line(prog_name="python -m lab")
    except KdistError as error:
        for sentence in str(error).splitlines():
            click.echo(f"lab: {sentence}", err=True)
        sys.exit(1)


if __name__ == "__main__":
    main()
