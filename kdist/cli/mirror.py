"""`kdist mirror`: one datacenter into another, until a signal ends it; and how far behind it is."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

import click

from kdist.cli.command_group import CommandGroup
from kdist.cli.options import json_option, read_settings_file
from kdist.cli.running import config_option, level_option

if TYPE_CHECKING:
    from kdist.config.mirror import MirrorConfig

_CONFIG = config_option("mirror")


@click.group(cls=CommandGroup, invoke_without_command=True)
@config_option("mirror", required=False)
@level_option
@click.pass_context
def mirror(context: click.Context, path: str | None, log_level: str) -> None:
    """Mirror topics from one cluster into another, each record exactly once.

    With no command behind it, it runs: `kdist mirror --config FILE` is `kdist mirror run`. Several
    mirrors with one file share the partitions.
    """
    if context.invoked_subcommand is None:
        if path is None:
            raise click.UsageError("Missing option '--config'.")
        _run(path, log_level)


@mirror.command()
@_CONFIG
@level_option
def run(path: str, log_level: str) -> None:
    """Mirror until SIGTERM or SIGINT.

    Clusters that do not answer are waited for as long as it takes. A partition whose records are
    gone from the source stops and says so; with mirror.on.loss=stop-mirror the process ends, with
    exit status 1. Exits with 0 when it stopped as asked.
    """
    _run(path, log_level)


def _run(path: str, log_level: str) -> None:
    from kdist.mirror.process import run_mirror
    from kdist.runtime import diagnostics

    diagnostics.set_up(log_level, sys.stderr, os.environ)
    run_mirror(load(path), os.environ)


@mirror.command()
@_CONFIG
def check(path: str) -> None:
    """Say whether a mirror would start with FILE; exit with 1 if not, with each fault's line."""
    config = load(path)
    names = ", ".join(flow.name for flow in config.flows)
    click.echo(f"{path} is good: it has {'flows' if len(config.flows) > 1 else 'flow'} {names}.")


@mirror.command()
@_CONFIG
@json_option
@click.option("--flow", "name", metavar="NAME", help="Only this flow.")
def status(path: str, as_json: bool, name: str | None) -> None:
    """Show for each partition how far the mirror is behind: in records, bytes and seconds.

    Asks the clusters, not the mirror, so it works from any host that reaches both. Positions are
    those committed last, so up to mirror.commit.interval.ms old; bytes are an estimate, by the size
    of the first record that is behind. Exits with 1 if a cluster does not answer, and shows the
    other flows all the same.
    """
    from kdist.cli.mirror_status import show_status

    show_status(load(path), name, as_json=as_json)


@mirror.command()
@_CONFIG
@click.option("--flow", "name", required=True, metavar="NAME", help="The flow.")
@click.option("--topic", required=True, metavar="NAME", help="The topic, as the source calls it.")
@click.option("--partition", type=int, metavar="N", help="Only this one; else all of the topic.")
@click.option(
    "--to", required=True, metavar="OFFSET", help="Go on from here: an offset, earliest, latest."
)
def seek(path: str, name: str, topic: str, partition: int | None, to: str) -> None:
    """Go on from another place, without the records that the source has lost.

    Stop the mirror first. Records that were mirrored are not mirrored again: if the target has
    records behind the offset, the mirror goes on after them.
    """
    from kdist.cli.mirror_seek import seek_to

    seek_to(load(path), name, (topic, partition), to)


@mirror.command()
@_CONFIG
@click.option("--flow", "name", required=True, metavar="NAME", help="The flow.")
@click.option("--topic", required=True, metavar="NAME", help="The topic, as the target calls it.")
def release(path: str, name: str, topic: str) -> None:
    """Forget where a topic of the target came from: it is the target's own from now on.

    For a failover: a flow in the other direction may then mirror it back. Take it out of this flow
    first, or the flow notes the origin again.
    """
    from kdist.cli.mirror_seek import release_topic

    release_topic(load(path), name, topic)


def load(path: str) -> MirrorConfig:
    """The file's settings; `UserError` with all that is wrong with it."""
    from kdist.config.mirror import load_mirror

    return load_mirror(read_settings_file(path), path)
