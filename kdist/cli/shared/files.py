"""What commands read: files and their completion, the disk and its lock, standard input."""

from __future__ import annotations

import json
import os.path
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click
from click.shell_completion import CompletionItem

from kdist.errors import UserError

if TYPE_CHECKING:
    from kdist.runtime.files import Files


def complete_files(_: click.Context, __: click.Parameter, begun: str) -> list[CompletionItem]:
    """Have the shell complete the names of files and directories itself."""
    return [CompletionItem(begun, type="file")]


def readonly_files() -> Files:
    """The host's disk, read-only."""
    from kdist.runtime.disk import Disk  # takes 30 ms, so only for commands that use files
    from kdist.runtime.readonly import ReadOnlyFiles

    return ReadOnlyFiles(Disk())


def json_input() -> Any:
    """The JSON on standard input; `UserError` if it is none."""
    try:
        return json.load(sys.stdin)
    except RecursionError:
        raise UserError("standard input is not JSON: it is nested too deeply") from None
    except ValueError as error:
        raise UserError(f"standard input is not JSON: {error}") from None


def check_new(path: str) -> None:
    """`UserError` if there is a file of that name already, or no directory for it."""
    from kdist.runtime.disk import Disk

    if Disk().exists(path):
        raise UserError(f"{path} exists already: name another file, or remove it")
    directory = os.path.dirname(path)
    if directory and not Disk().exists(directory):
        raise UserError(f"there is no directory {directory}")


def write_new(path: str, data: bytes) -> None:
    """Write a file of that name, durably. `UserError` as by `check_new`."""
    from kdist.runtime.disk import Disk

    check_new(path)
    Disk().replace(path, data)


@contextmanager
def locked_disk(log_directory: str | None) -> Iterator[Files]:
    """The host's disk, while the log directory's lock is held.

    `UserError` if a broker or another such command holds it. None, for a partition's directory that
    was copied out of its log directory, takes no lock.
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
    """The text of a settings file; `UserError` if it does not exist, or is not UTF-8."""
    try:
        return readonly_files().read(path).decode()
    except FileNotFoundError:
        raise UserError(f"{path} does not exist") from None
    except UnicodeDecodeError:
        raise UserError(f"{path} is not UTF-8 text") from None
