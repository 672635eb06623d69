"""`kdist mirror`: mirrors topics into another cluster; shows its lag and moves its positions."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

import click

from kdist.cli.shared.click_groups import CommandGroup
from kdist.cli.shared.files import read_settings_file
from kdist.cli.shared.options import config_option, json_option, level_option

if TYPE_CHECKING:
    from kdist.config.mirror import MirrorConfig

_CONFIG = config_option("mirror")


@click.group(cls=CommandGroup, invoke_without_command=True)
@config_option("mirror", required=False)
@level_option
@click.pass_context
def mirror(context: click.Context, path: str | None, log_level: str) -> None:
    """Mirror topics from one cluster into another, each record exactly once.

    Without a subcommand, it runs: `kdist mirror --config FILE` is `kdist mirror run`. Several
    mirrors with the same file share the partitions.
    """
    if context.invoked_subcommand is None:
        if path is None:
            raise click.UsageError("Missing option '--config'.")
        context.invoke(run, path=path, log_level=log_level)


@mirror.command()
@_CONFIG
@level_option
def run(path: str, log_level: str) -> None:
    """Mirror until SIGTERM or SIGINT.

    If a cluster does not answer, waits for as long as it takes. If records are gone from the source
    before they are mirrored, the mirror of their partition stops and logs an error; with
    mirror.on.loss=stop-mirror the process ends with status 1. Exits with 0 after an orderly stop.
    """
    from kdist.mirror.mirror import run_mirror
    from kdist.runtime import diagnostics

    diagnostics.set_up(log_level, sys.stderr, os.environ)
    run_mirror(load(path), os.environ)


@mirror.command()
@_CONFIG
def check(path: str) -> None:
    """Say whether a mirror would start with FILE; if not, list all faults and exit with 1.

    Of a flow whose source answers within 3 s, patterns that match no topic there are named, too.
    """
    from kdist.cli.mirror.operating import unmatched_patterns

    config = load(path)
    for flow in config.flows:
        for pattern in unmatched_patterns(flow):
            click.echo(f"{flow.name}: the pattern {pattern} matches no topic of the source")
    names = ", ".join(flow.name for flow in config.flows)
    click.echo(f"{path} is good: it has {'flows' if len(config.flows) > 1 else 'flow'} {names}.")


@mirror.command()
@_CONFIG
@json_option
@click.option("--flow", "name", metavar="NAME", help="Only this flow.")
def status(path: str, as_json: bool, name: str | None) -> None:
    """Show the mirror's lag for each partition, in records, bytes and seconds.

    Asks the clusters, not the mirror, so it works on any host that reaches both. Positions are
    those last committed, so up to mirror.commit.interval.ms old. Bytes are an estimate, from the
    size of records in the first batch that is behind. If a cluster or a partition's leader does
    not answer, shows the others all the same and exits with 1. --json prints a line for each flow.
    """
    from kdist.cli.mirror.operating import show_status

    show_status(load(path), name, as_json=as_json)


@mirror.command()
@_CONFIG
@click.option("--flow", "name", required=True, metavar="NAME", help="The flow.")
@click.option("--topic", required=True, metavar="NAME", help="The topic's name in the source.")
@click.option("--partition", type=int, metavar="N", help="Only this partition; by default, all.")
@click.option(
    "--to", required=True, metavar="OFFSET", help="Where to go on: an offset, earliest or latest."
)
def seek(path: str, name: str, topic: str, partition: int | None, to: str) -> None:
    """Move the mirror's position, to go on after records that the source has lost.

    Stop the mirror first. Nothing is mirrored twice: if the target already has records beyond the
    offset, the mirror goes on after them.
    """
    from kdist.cli.mirror.operating import seek_to

    seek_to(load(path), name, (topic, partition), to)


@mirror.command()
@_CONFIG
@click.option("--flow", "name", required=True, metavar="NAME", help="The flow.")
@click.option("--topic", required=True, metavar="NAME", help="The topic's name in the target.")
def release(path: str, name: str, topic: str) -> None:
    """Make a mirrored topic the target's own from now on.

    For a failover: a flow in the other direction may then mirror it back, and sends only what did
    not come from there. Take it out of this flow first, or the flow records the origin again.
    """
    from kdist.cli.mirror.operating import release_topic

    release_topic(load(path), name, topic)


def load(path: str) -> MirrorConfig:
    """The file's settings; `UserError` with all that is wrong with it."""
    from kdist.config.mirror import load_mirror

    return load_mirror(read_settings_file(path), path)
