"""Shared by the commands of `kdist gate`: statuses, options, and a session of ZooKeeper."""

from __future__ import annotations

import click

from kdist.cli.shared.options import print_json

YES, NO, CANNOT_TELL = 0, 1, 2

zookeeper_option = click.option(
    "--zookeeper",
    envvar="KDIST_ZOOKEEPER",
    show_envvar=True,
    metavar="HOST:PORT[/PATH]",
    help="The cluster's ZooKeeper.",
)
lease_option = click.option(
    "--lease",
    "lease_s",
    type=click.IntRange(min=1),
    default=900,
    show_default=True,
    metavar="SECONDS",
    help="For how long the lock stays a run's that does not renew it.",
)


def say_unknown(sentence: str, as_json: bool) -> None:
    """Say why there is no answer."""
    if as_json:
        print_json({"answer": "unknown", "reasons": [sentence]})
    else:
        click.echo(f"kdist: {sentence}", err=True)
