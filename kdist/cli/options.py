"""What the commands share: paths, `--json`, `--codec`, `--isolation`, the disk, the lock, lines."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

import click

from kdist.cli.completing import complete_files
from kdist.errors import UserError

if TYPE_CHECKING:
    from kdist.runtime.files import Files

F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")

json_option = click.option(
    "--json", "as_json", is_flag=True, help="Print JSON instead of tables, with raw values."
)

codec_option = click.option(
    "--codec",
    type=click.Choice(["none", "gzip", "snappy", "lz4", "zstd"]),
    default="none",
    show_default=True,
    help="Compress batches.",
)
isolation_option = click.option(
    "--isolation",
    type=click.Choice(["read_uncommitted", "read_committed"]),
    default="read_uncommitted",
    show_default=True,
    help="Whether records of open and aborted transactions are read.",
)
_ACKS = {"0": "nobody", "1": "its leader", "all": "all in-sync replicas"}


def acks_option(*choices: str) -> Callable[[F], F]:
    """`--acks`, of which a command takes these."""
    return click.option(
        "--acks",
        type=click.Choice(choices),
        default="all",
        show_default=True,
        help="Who must have a record before it counts: "
        + ", ".join(_ACKS[each] for each in choices)
        + ".",
    )


def not_empty(_: click.Context, parameter: click.Parameter, value: T) -> T:
    """A callback of names and paths; `click.BadParameter` for an unset variable of a script."""
    given = value if isinstance(value, tuple) else (value,)
    if any(isinstance(each, str) and not each.strip() for each in given):
        raise click.BadParameter("it is empty.", param=parameter)
    return value


path_argument = click.argument(
    "path", metavar="PATH", callback=not_empty, shell_complete=complete_files
)


def readonly_files() -> Files:
    """The host's disk, through which nothing can be changed."""
    from kdist.runtime.disk import Disk  # takes 30 ms, for which commands without files do not wait
    from kdist.runtime.readonly import ReadOnlyFiles

    return ReadOnlyFiles(Disk())


@contextmanager
def locked_disk(log_directory: str | None) -> Iterator[Files]:
    """The host's disk, with the log directory's lock; a copy that stands alone has none.

    `UserError` if a broker, or another such command, has it.
    """
    from kdist.runtime.disk import Disk
    from kdist.storage import names

    disk = Disk()
    if log_directory is None:
        yield disk
        return
    try:
        lock = disk.lock(f"{log_directory}/{names.LOCK}")
    except BlockingIOError:
        raise UserError(
            f"{log_directory} is in use: stop the broker that runs on it first"
        ) from None
    try:
        yield disk
    finally:
        lock.release()


def read_settings_file(path: str) -> str:
    """What a file of settings says; `UserError` if it is not there, or is no text."""
    try:
        return readonly_files().read(path).decode()
    except FileNotFoundError:
        raise UserError(f"{path} is not there") from None
    except UnicodeDecodeError:
        raise UserError(f"{path} is not text in UTF-8") from None


def print_json(value: Any) -> None:
    """One line of JSON. A path's bytes that are no UTF-8 are escaped, as "\\udcff"."""
    text = json.dumps(value, separators=(",", ":"), ensure_ascii=False)
    click.echo(text.encode(errors="backslashreplace").decode())


def terminal_width() -> int | None:
    """How many characters a line may have; None where standard output is no terminal."""
    if not sys.stdout.isatty():
        return None
    from rich.console import Console  # takes 50 ms

    return Console().width
