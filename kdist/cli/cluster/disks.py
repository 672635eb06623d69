"""`kdist cluster disks`: log directories, how full their volumes are, what is on them."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import click

from kdist.cli.shared.client_settings import Clients, client_options
from kdist.cli.shared.connecting import ask_cluster
from kdist.cli.shared.options import json_option
from kdist.cli.shared.show import show_size
from kdist.cli.shared.table import Field, json_row, print_rows
from kdist.errors import ApiError, Error

if TYPE_CHECKING:
    from kdist.client.admin.disks import LogDirectory, Replica
    from kdist.client.cluster import Cluster


_STATES = {Error.BROKER_NOT_AVAILABLE.name: "down", Error.REQUEST_TIMED_OUT.name: "silent"}


class Told(NamedTuple):
    """A log directory of a broker; or None, and why the broker says nothing of its own."""

    broker: int
    directory: LogDirectory | None
    silence: ApiError | None = None

    @property
    def error(self) -> str | None:
        failed = self.silence.error if self.silence else self.directory and self.directory.error
        return failed.name if failed else None

    @property
    def state(self) -> str:
        return "works" if self.error is None else _STATES.get(self.error, self.error)


def _directory(told: Told) -> LogDirectory | None:
    return told.directory


def _size(size_bytes: int | None) -> str:
    return "-" if size_bytes is None else show_size(size_bytes)


_REPLICAS: tuple[Field[tuple[int, LogDirectory, Replica]], ...] = (
    Field("BROKER", lambda row: row[0], is_number=True),
    Field("PARTITION", lambda row: row[2].partition),
    Field("", lambda row: row[2].partition.topic, "topic"),
    Field("", lambda row: row[2].partition.partition, "partition"),
    Field("SIZE", lambda row: row[2].size_bytes, "size_bytes", show_size, is_number=True),
    Field("LAG", lambda row: row[2].lag, "lag", is_number=True),
    Field("", lambda row: row[2].is_future, "is_future"),
    Field("DIRECTORY", lambda row: row[1].path),
)
_SIZES: tuple[Field[LogDirectory], ...] = (
    Field("REPLICAS", lambda each: len(each.replicas), is_number=True),
    Field("LOGS", lambda each: each.size_bytes, "logs_bytes", _size, is_number=True),
    Field("VOLUME", lambda each: each.total_bytes, "total_bytes", _size, is_number=True),
    Field("FREE", lambda each: each.usable_bytes, "usable_bytes", _size, is_number=True),
)
_DIRECTORIES: tuple[Field[Told], ...] = (
    Field("BROKER", lambda told: told.broker, "broker", is_number=True),
    Field("DIRECTORY", lambda told: told.directory and told.directory.path, "directory"),
    Field("STATE", lambda told: told.state),
    Field("", lambda told: told.error, "error"),
    *(field.of(_directory) for field in _SIZES),
    Field("", lambda told: [json_row(_REPLICAS, each) for each in _replicas(told)], "replicas"),
)


def _replicas(told: Told) -> list[tuple[int, LogDirectory, Replica]]:
    directory = told.directory
    return [(told.broker, directory, each) for each in directory.replicas] if directory else []


@click.command()
@click.argument("brokers", metavar="[BROKER...]", type=click.IntRange(min=0), nargs=-1)
@click.option("--replicas", is_flag=True, help="Every replica with its size, the largest first.")
@client_options()
@json_option
def disks(brokers: tuple[int, ...], replicas: bool, clients: Clients, as_json: bool) -> int:
    """Show each broker's log directory: how full its volume is, how much is in its logs.

    LAG is how many records a replica is behind the high watermark. A broker that is down, or that
    does not answer, is shown as such, and the exit status is 1.
    """
    found = ask_cluster(clients, partial(_ask, brokers))
    is_whole = all(told.silence is None for told in found)
    if as_json or not replicas:
        print_rows(_DIRECTORIES, found, as_json=as_json)
    else:
        rows = [each for told in found for each in _replicas(told)]
        rows.sort(key=lambda row: (-row[2].size_bytes, row[0], row[2]))
        print_rows(_REPLICAS, rows, if_none="There are no replicas." if is_whole else "")
        for told in found:
            if told.silence:
                click.echo(f"Broker {told.broker} is {told.state}: its disk is not shown.")
    return 0 if is_whole else 1


async def _ask(brokers: tuple[int, ...], cluster: Cluster) -> list[Told]:
    """What each broker that was named says of its disk, or each that there is."""
    from kdist.client.admin.asking import ask_brokers
    from kdist.client.admin.disks import log_directories
    from kdist.client.admin.health import PATIENCE_S, missing_brokers

    missing = await missing_brokers(cluster)
    down = [each for each in missing if not brokers or each in brokers]
    there = [each for each in brokers if each not in down] if brokers else None
    answers = await ask_brokers(cluster, partial(log_directories, cluster), there, PATIENCE_S)
    for broker in down:
        answers[broker] = ApiError(Error.BROKER_NOT_AVAILABLE, f"broker {broker} is down")
    return [told for broker in sorted(answers) for told in _told(broker, answers[broker])]


def _told(broker: int, answer: list[LogDirectory] | ApiError) -> list[Told]:
    if isinstance(answer, ApiError):
        return [Told(broker, None, answer)]
    return [Told(broker, each) for each in answer]
