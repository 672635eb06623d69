"""Shared by the commands that talk to a cluster: `--broker`, an event loop, first checks.

The client is imported only when a command runs: that takes 0.1 s, too long for `--help`.
"""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, TypeVar

import click

from kdist.cli.shared.show import show_count
from kdist.errors import UserError

if TYPE_CHECKING:
    from kdist.client.cluster import Cluster
    from kdist.model import TopicPartition

T = TypeVar("T")

DEFAULT_BROKER = "127.0.0.1:9092"
_PATIENCE_S = 3.0  # a healthy broker answers far sooner


def _checked_addresses(ctx: click.Context, option: click.Parameter, value: str) -> str:
    from kdist.client.cluster import parse_addresses

    try:
        if not ctx.resilient_parsing:  # completion does not need it, and is to be fast
            parse_addresses(value)
    except UserError as error:
        raise click.BadParameter(f"{error}.", param=option) from None
    return value


broker_option = click.option(
    "--broker",
    "--bootstrap-server",  # the name in Kafka's tools; the next is its clients' name
    "--bootstrap-servers",
    "broker",
    default=DEFAULT_BROKER,
    envvar="KDIST_BROKER",
    metavar="HOST:PORT",
    show_default=True,
    show_envvar=True,
    callback=_checked_addresses,
    help="A broker of the cluster, or several separated by commas.",
)


def ask_cluster(broker: str, work: Callable[[Cluster], Awaitable[T]]) -> T:
    """Run `work` on an event loop and connections of its own, and return its result."""
    import asyncio

    from kdist.client.cluster import NoBroker, cluster_at, parse_addresses

    addresses = parse_addresses(broker)

    async def run() -> T:
        with cluster_at(addresses, "kdist") as cluster:
            loop = asyncio.get_running_loop()
            patience = loop.call_later(_PATIENCE_S, _maybe_say_waiting, broker, cluster)
            try:
                return await work(cluster)
            finally:
                patience.cancel()

    try:
        return asyncio.run(run())
    except NoBroker as error:
        raise UserError(
            f"{error}: start one with `kdist standalone`, or name another with --broker"
        ) from None


def _maybe_say_waiting(broker: str, cluster: Cluster) -> None:
    """If no broker has answered yet, say so on a terminal; scripts get only the final error."""
    if not cluster.brokers and sys.stderr.isatty():
        click.echo(f"kdist: waiting for an answer from {broker}", err=True)


def require_topic(broker: str, topic: str) -> int:
    """As `count_partitions`, on an event loop of its own."""
    return ask_cluster(broker, lambda cluster: count_partitions(cluster, topic))


async def count_partitions(cluster: Cluster, topic: str) -> int:
    """How many partitions a topic has; `ApiError`, with the nearest name, if it does not exist."""
    from kdist.client.admin.topics import describe_topics

    return len((await describe_topics(cluster, [topic]))[topic].partitions)


def check_partition(topic: str, partition: int | None, count: int) -> None:
    """`UserError` if a topic of `count` partitions has no such `partition`; None is any."""
    if partition is not None and partition >= count:
        raise UserError(
            f"topic {topic} has no partition {partition}: it has"
            f" {show_count(count, 'partition')}, from 0"
        )


async def require_in_range(
    cluster: Cluster, offsets: Mapping[TopicPartition, int], *, is_committed_only: bool = False
) -> None:
    """`UserError` for the first offset that is out of its partition's range."""
    from kdist.client.offsets import find_ranges

    ranges = await find_ranges(cluster, offsets, is_committed_only=is_committed_only)
    for each, (start, end) in ranges.items():
        if not start <= offsets[each] <= end:
            raise UserError(
                f"{each} has no offset {offsets[each]}: it now begins at {start} and ends at {end}"
            )


async def require_no_members(cluster: Cluster, group: str) -> None:
    """`UserError` for a group with members. Brokers refuse too, but do not say how many."""
    from kdist.client.admin.groups import describe_group

    members = (await describe_group(cluster, group))[0].members
    if members:
        count = show_count(len(members), "member")
        raise UserError(f"group {group} has {count}: stop all members to change its offsets")
