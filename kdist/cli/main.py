"""The command `kdist`: runs a subcommand, and turns an exception into a sentence and a status.

    0    done                                   2    a flag or argument is wrong
    1    a mistake, or damage was found         74   the disk failed
    130  interrupted                            78   the disk is not this broker's
    141  nobody reads the output any more, as in `| head`: what SIGPIPE makes of other programs

Subcommands are imported only when they run, so that `kdist --help` starts in 0.3 s.
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

from kdist.cli.release import release
from kdist.cli.shared.click_groups import LazyGroup
from kdist.cli.shared.client_settings import program_profile_option
from kdist.cli.shared.show import printable, show_error
from kdist.errors import DiskFailed, KdistError
from kdist.runtime.unix import INTERRUPTED, UNREAD, discard_output, fill_standard_streams

_COMMANDS = {
    "broker": ("kdist.cli.broker:broker", "Run one broker until a signal ends it."),
    "end-session": (
        "kdist.cli.end_session:end_session",
        "End the ZooKeeper session of a broker whose process died.",
    ),
    "standalone": (
        "kdist.cli.standalone.standalone:standalone",
        "Run ZooKeeper and brokers on this machine, for development.",
    ),
    "agent": ("kdist.cli.agent:agent", "Publish this host's operational data."),
    "mirror": (
        "kdist.cli.mirror.mirror:mirror",
        "Mirror topics into another cluster, exactly once.",
    ),
    "config": ("kdist.cli.config:config", "Check a broker's file; show every setting."),
    "topics": (
        "kdist.cli.topics.topics:topics",
        "Create, list, describe, alter and delete topics.",
    ),
    "produce": ("kdist.cli.produce.produce:produce", "Write lines to a topic, each as a record."),
    "consume": ("kdist.cli.consume.consume:consume", "Show topics' records as they arrive."),
    "groups": (
        "kdist.cli.groups:groups",
        "Show consumer groups, members, offsets and lag; reset and delete them.",
    ),
    "configs": (
        "kdist.cli.configs:configs",
        "Show and alter settings of topics and brokers in a running cluster.",
    ),
    "users": ("kdist.cli.users:users", "List, create and delete users who log in by SCRAM."),
    "acls": ("kdist.cli.acls:acls", "List, add and remove ACLs: who may do what."),
    "cluster": (
        "kdist.cli.cluster:cluster",
        "Describe the cluster, its health, its disks.",
    ),
    "reassign": (
        "kdist.cli.reassign.reassign:reassign",
        "Move partitions to other brokers: plan, execute, verify, cancel.",
    ),
    "bench": ("kdist.cli.bench:bench", "Measure producing, consuming and latency."),
    "load": ("kdist.cli.load:load", "Load topics into Parquet files, each record exactly once."),
    "gate": (
        "kdist.cli.gate.gate:gate",
        "Say whether a broker may go down now; plan and lock a roll.",
    ),
    "zookeeper": (
        "kdist.cli.zookeeper:zookeeper",
        "Say whether servers of an ensemble may begin.",
    ),
    "log": ("kdist.cli.log.log:log", "Inspect and repair a log on disk."),
    "completion": ("kdist.cli.completion:completion", "Print a shell's completion script."),
}


class EdgeGroup(LazyGroup):
    """The outermost group: exceptions end here, as a sentence on standard error."""

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        **extra: Any,
    ) -> Any:
        """As click's, but in standalone mode exits with a status of the table above."""
        if not standalone_mode:
            return super().main(args, prog_name, complete_var, standalone_mode=False, **extra)
        try:
            status = self._run(args, prog_name, complete_var, **extra)
        except BrokenPipeError:  # of the sentence about an error
            status = UNREAD
        sys.exit(status)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """As click does, but `--broker` before the command's name is put behind it."""
        name, command, rest = super().resolve_command(ctx, args)
        at = int(isinstance(command, click.Group) and bool(rest) and not rest[0].startswith("-"))
        broker = ctx.params.get("broker")
        moved = [] if broker is None else ["--broker", broker]
        return name, command, [*rest[:at], *moved, *rest[at:]]

    def make_context(self, *arguments: Any, **extra: Any) -> click.Context:
        """As click does, but if nobody reads the help it prints, the status is as of `invoke`."""
        with _unread_told():
            return super().make_context(*arguments, **extra)

    def invoke(self, ctx: click.Context) -> Any:
        """As click does, but the status is its own if standard output is not read to its end."""
        with _unread_told():
            return super().invoke(ctx)

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


@contextmanager
def _unread_told() -> Iterator[None]:
    """A broken pipe ends the command by its status, before click makes it 1."""
    try:
        yield
    except BrokenPipeError:
        discard_output()
        raise click.exceptions.Exit(UNREAD) from None


def _say(sentence: str, status: int) -> int:
    lines = map(printable, sentence.split("\n"))  # a file of settings has a line per mistake
    click.echo("kdist: " + "\n".join(lines), err=True)
    return status


def _show_version(ctx: click.Context, _param: click.Parameter, is_asked: bool) -> None:
    if is_asked:
        found = release()
        click.echo(f"kdist {found}" if found else "kdist, from a tree that is not installed")
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
@program_profile_option
@click.option(
    "--broker",
    "--bootstrap-server",
    "--bootstrap-servers",
    "broker",
    metavar="HOST:PORT",
    help="As behind the command's name: a broker of the cluster.",
)
@click.pass_context
def kdist(ctx: click.Context, broker: str | None) -> None:  # noqa: ARG001 - `resolve_command` has it
    """A partitioned, replicated commit log on bare metal.

    Shell completion in bash: eval "$(kdist completion bash)"
    """
    if os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb":
        ctx.color = False  # rich honours both variables itself, click neither


def main() -> None:
    """Set up the process's streams and signals, and run the command; `start` calls it."""
    fill_standard_streams()
    if isinstance(sys.stdout, TextIOWrapper):  # as stderr has it: file names may not be UTF-8
        sys.stdout.reconfigure(errors="backslashreplace")
    with _terminable():
        kdist(prog_name="kdist")


@contextmanager
def _terminable() -> Iterator[None]:
    """Treat SIGTERM as an interrupt, so that a command cleans up, and then die of SIGTERM.

    Servers install handlers of their own.
    """
    is_heard = False

    def interrupt(number: int, frame: FrameType | None) -> None:
        nonlocal is_heard
        is_heard = True
        handler = signal.getsignal(signal.SIGINT)  # a running event loop has its own
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
