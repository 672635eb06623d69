"""The command `kdist`: finds the sub-command, and turns what it raises into one line and a status.

    0    done                                   2    a flag or argument is wrong
    1    a mistake, or damage was found         74   the disk failed
    130  interrupted                           78   the disk is not this broker's

Sub-commands are imported when they are asked for, so that `kdist --help` starts in 0.3 s.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from io import TextIOWrapper
from types import FrameType
from typing import Any

import click

from kdist.cli.lazy import LazyGroup
from kdist.cli.release import release
from kdist.cli.show import printable, show_error
from kdist.errors import DiskFailed, KdistError
from kdist.runtime.interrupted import INTERRUPTED
from kdist.runtime.standard_streams import fill_standard_streams

_COMMANDS = {
    "broker": ("kdist.cli.broker:broker", "Run one broker until a signal ends it."),
    "standalone": (
        "kdist.cli.standalone:standalone",
        "Run ZooKeeper and brokers on this machine, for development.",
    ),
    "agent": ("kdist.cli.agent:agent", "Publish this host's operational data."),
    "mirror": ("kdist.cli.mirror:mirror", "Mirror topics into another cluster, exactly once."),
    "config": ("kdist.cli.config:config", "Check a broker's file; show every setting."),
    "topics": ("kdist.cli.topics:topics", "Create, list, describe, alter and delete topics."),
    "produce": ("kdist.cli.produce:produce", "Write lines to a topic, each a record."),
    "consume": ("kdist.cli.consume:consume", "Show a topic's records as they come."),
    "groups": (
        "kdist.cli.groups:groups",
        "Groups' members, offsets and lag; reset and delete them.",
    ),
    "configs": (
        "kdist.cli.configs:configs",
        "Settings of topics and brokers in a running cluster.",
    ),
    "cluster": ("kdist.cli.cluster:cluster", "Describe the cluster, its health, its disks."),
    "bench": ("kdist.cli.bench:bench", "Measure producing, consuming and latency."),
    "load": ("kdist.cli.load:load", "Load topics into Parquet files, every record once."),
    "gate": ("kdist.cli.gate:gate", "Say whether a broker may go down now; the roll's lock."),
    "log": ("kdist.cli.log:log", "Look into a log on disk: dump, verify, find, trim, rebuild."),
    "completion": (
        "kdist.cli.completion:completion",
        "Print what makes a shell complete commands.",
    ),
}


class EdgeGroup(LazyGroup):
    """The outermost group, where exceptions end: each becomes one line on standard error."""

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        **extra: Any,
    ) -> Any:
        """As click's; standing alone, exits with the status of the table above."""
        if not standalone_mode:
            return super().main(args, prog_name, complete_var, standalone_mode=False, **extra)
        sys.exit(self._run(args, prog_name, complete_var, **extra))

    def _run(
        self,
        args: Sequence[str] | None,
        prog_name: str | None,
        complete_var: str | None,
        **extra: Any,
    ) -> int:
        try:
            status = super().main(args, prog_name, complete_var, standalone_mode=False, **extra)
        except click.ClickException as error:
            error.show()
            return error.exit_code
        except click.Abort:
            return INTERRUPTED
        except DiskFailed as error:
            return _say(str(error), DiskFailed.EXIT_STATUS)
        except (KdistError, OSError) as error:
            return _say(show_error(error), 1)
        return status if isinstance(status, int) else 0


def _say(sentence: str, status: int) -> int:
    lines = map(printable, sentence.split("\n"))  # a file's mistakes have one each
    click.echo("kdist: " + "\n".join(lines), err=True)
    return status


def _show_version(ctx: click.Context, _param: click.Parameter, is_asked: bool) -> None:
    if is_asked:
        found = release()
        click.echo(f"kdist {found}" if found else "kdist, of a tree that is not installed")
        ctx.exit()


@click.group(
    cls=EdgeGroup,
    commands_by_name=_COMMANDS,
    context_settings={"help_option_names": ["--help", "-h"]},
)
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_show_version,
    help="Show the version and exit.",
)
@click.pass_context
def kdist(ctx: click.Context) -> None:
    """A partitioned, replicated commit log on bare metal.

    Shell completion in bash: eval "$(kdist completion bash)"
    """
    if os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb":
        ctx.color = False  # rich asks both itself, click neither


def main() -> None:
    """Run it with the streams and signals of a process; `start` calls it."""
    fill_standard_streams()
    if isinstance(sys.stdout, TextIOWrapper):  # as it is for stderr: a file's name may be no text
        sys.stdout.reconfigure(errors="backslashreplace")
    with _terminable():
        kdist(prog_name="kdist")


@contextmanager
def _terminable() -> Iterator[None]:
    """Inside, SIGTERM interrupts, so that a command cleans up; it is what the process dies of then.

    Servers have handlers of their own for it.
    """
    is_heard = False

    def interrupt(number: int, frame: FrameType | None) -> None:
        nonlocal is_heard
        is_heard = True
        handler = signal.getsignal(signal.SIGINT)  # a loop that runs has its own
        if not callable(handler):
            raise KeyboardInterrupt
        handler(number, frame)

    if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        if is_heard:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            signal.raise_signal(signal.SIGTERM)
