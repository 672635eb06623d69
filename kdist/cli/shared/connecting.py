"""Shared by the commands that talk to a cluster: an event loop, first checks.

That a broker throttles a command is said once on standard error: else it only seems slow.

The client is imported only when a command runs: that takes 0.1 s, too long for `--help`.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, TypeVar

import click

from kdist.cli.shared.show import show_count
from kdist.errors import UserError

if TYPE_CHECKING:
    from kdist.cli.shared.client_settings import Clients
    from kdist.client.cluster import Cluster
    from kdist.model import TopicPartition
    from kdist.zk.client import ZooKeeper

T = TypeVar("T")

_PATIENCE_S = 3.0  # a healthy broker answers far sooner
_CLIENT_ID = "kdist"


def ask_cluster(clients: Clients, work: Callable[[Cluster], Awaitable[T]]) -> T:
    """Run `work` on an event loop and connections of its own, and return its result."""
    import asyncio

    from kdist.client.cluster import NoBroker

    async def run() -> T:
        async with _cluster(clients) as cluster:
            loop = asyncio.get_running_loop()
            patience = loop.call_later(_PATIENCE_S, _maybe_say_waiting, cluster)
            try:
                return await work(cluster)
            finally:
                patience.cancel()

    try:
        with throttling_said():
            return asyncio.run(run())
    except NoBroker as error:
        raise UserError(
            f"{error}: start one with `kdist standalone`, or name another with --broker"
        ) from None


def ask_zookeeper(address: str, work: Callable[[ZooKeeper], Awaitable[T]]) -> T:
    """Run `work` with a ZooKeeper session of its own, and return its result."""
    import asyncio

    from kdist.client.zookeeper_session import zookeeper_at

    async def run() -> T:
        async with zookeeper_at(address) as zookeeper:
            return await work(zookeeper)

    return asyncio.run(run())


@asynccontextmanager
async def _cluster(clients: Clients) -> AsyncIterator[Cluster]:
    from kdist.client.cluster import cluster_at, parse_addresses

    if clients.only_broker is not None:  # as mostly, and quicker
        with cluster_at(parse_addresses(clients.only_broker), _CLIENT_ID) as cluster:
            yield cluster
        return
    from kdist.client.discovery import find_brokers

    settings = clients.admin(_CLIENT_ID)
    addresses = await find_brokers(
        settings.bootstrap_servers, settings.zk_connect, settings.security_protocol
    )
    with cluster_at(addresses, settings.connections, settings.default_api_timeout_ms) as cluster:
        yield cluster


def _maybe_say_waiting(cluster: Cluster) -> None:
    """If no broker has answered yet, say so on a terminal; scripts get only the final error."""
    if not cluster.brokers and sys.stderr.isatty():
        asked = ",".join(map(str, cluster.bootstrap))
        click.echo(f"kdist: waiting for an answer from {asked}", err=True)


def require_topic(clients: Clients, topic: str) -> int:
    """As `count_partitions`, on an event loop of its own."""
    return ask_cluster(clients, lambda cluster: count_partitions(cluster, topic))


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


@contextmanager
def throttling_said() -> Iterator[None]:
    """The first answer within the block that tells of a used-up quota is said."""
    from kdist.network import client

    handler, level = _Once(client.THROTTLED), client.logger.level
    client.logger.addHandler(handler)
    client.logger.setLevel(logging.DEBUG)
    try:
        yield
    finally:
        client.logger.setLevel(level)
        client.logger.removeHandler(handler)


class _Once(logging.Handler):
    """Prints the first of the messages of one form."""

    def __init__(self, form: str) -> None:
        super().__init__()
        self._form = form
        self._is_said = False

    def emit(self, record: logging.LogRecord) -> None:
        if record.msg == self._form and not self._is_said:
            self._is_said = True
            begin = "\r\x1b[K" if sys.stderr.isatty() else ""  # where progress may be shown
            click.echo(f"{begin}kdist: {record.getMessage()}", err=True)
