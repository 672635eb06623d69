"""What the commands that ask a cluster share: `--broker`, a loop to ask on, what they ask first.

The client is imported when a command runs: it takes 0.1 s that no `--help` should wait for.
"""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, TypeVar

import click

from kdist.cli.show import show_count
from kdist.errors import UserError

if TYPE_CHECKING:
    from kdist.client.cluster import Cluster

T = TypeVar("T")

DEFAULT_BROKER = "127.0.0.1:9092"
_PATIENCE_S = 3.0  # who is well has answered long before


def _readable(ctx: click.Context, option: click.Parameter, value: str) -> str:
    from kdist.client.cluster import parse_addresses

    try:
        if not ctx.resilient_parsing:  # completion has no use for it, and no time
            parse_addresses(value)
    except UserError as error:
        raise click.BadParameter(f"{error}.", param=option) from None
    return value


broker_option = click.option(
    "--broker",
    "--bootstrap-server",  # as Kafka's tools have it, and its clients
    "--bootstrap-servers",
    "broker",
    default=DEFAULT_BROKER,
    envvar="KDIST_BROKER",
    metavar="HOST:PORT",
    show_default=True,
    show_envvar=True,
    callback=_readable,
    help="A broker of the cluster, or several with commas between.",
)


def ask_cluster(broker: str, work: Callable[[Cluster], Awaitable[T]]) -> T:
    """What `work` gives, on a loop and with connections of its own, which are closed after it."""
    import asyncio

    from kdist.client.cluster import Cluster, NoBroker, parse_addresses
    from kdist.network.client import ClientSettings
    from kdist.network.world import AsyncioNetwork

    addresses = parse_addresses(broker)

    async def run() -> T:
        loop = asyncio.get_running_loop()
        cluster = Cluster(AsyncioNetwork(loop), addresses, ClientSettings(client_id="kdist"))
        patience = loop.call_later(_PATIENCE_S, _maybe_tell_of_silence, broker, cluster)
        try:
            return await work(cluster)
        finally:
            patience.cancel()
            cluster.close()

    try:
        return asyncio.run(run())
    except NoBroker as error:
        raise UserError(
            f"{error}: start one with `kdist standalone`, or name another with --broker"
        ) from None


def _maybe_tell_of_silence(broker: str, cluster: Cluster) -> None:
    """Say who is waited for, to a person; the error that follows in the end is for all."""
    if not cluster.brokers and sys.stderr.isatty():
        click.echo(f"kdist: waiting for an answer from {broker}", err=True)


def require_topic(broker: str, topic: str) -> int:
    """As `count_partitions`, on a loop of its own."""
    return ask_cluster(broker, lambda cluster: count_partitions(cluster, topic))


async def count_partitions(cluster: Cluster, topic: str) -> int:
    """How many partitions a topic has; `ApiError` with the nearest name if it does not exist."""
    from kdist.client.admin.topics import describe_topics

    return len((await describe_topics(cluster, [topic]))[topic].partitions)


def check_partition(topic: str, partition: int | None, count: int) -> None:
    """`UserError` if a topic of `count` partitions has none of this number; None is any."""
    if partition is not None and partition >= count:
        raise UserError(
            f"topic {topic} has no partition {partition}: it has"
            f" {show_count(count, 'partition')}, from 0"
        )


async def require_no_members(cluster: Cluster, group: str) -> None:
    """`UserError` for a group with members: the brokers refuse it too, without their number."""
    from kdist.client.admin.groups import describe_group

    members = (await describe_group(cluster, group))[0].members
    if members:
        count = show_count(len(members), "member")
        raise UserError(f"group {group} has {count}: its offsets are theirs to commit")
