"""`kdist cluster disks`: log directories, how full their volumes are, what is on them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from kdist.cli.shared.client_settings import Clients, client_options
from kdist.cli.shared.connecting import ask_cluster
from kdist.cli.shared.options import json_option
from kdist.cli.shared.show import show_size
from kdist.cli.shared.table import Field, json_row, print_rows

if TYPE_CHECKING:
    from kdist.client.admin.disks import LogDirectory, Replica
    from kdist.client.cluster import Cluster


def _state(error: str | None) -> str:
    return error or "works"


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
_DIRECTORIES: tuple[Field[tuple[int, LogDirectory]], ...] = (
    Field("BROKER", lambda row: row[0], "broker", is_number=True),
    Field("DIRECTORY", lambda row: row[1].path, "directory"),
    Field("STATE", lambda row: row[1].error and row[1].error.name, "error", _state),
    Field("REPLICAS", lambda row: len(row[1].replicas), is_number=True),
    Field("LOGS", lambda row: row[1].size_bytes, "logs_bytes", _size, is_number=True),
    Field("VOLUME", lambda row: row[1].total_bytes, "total_bytes", _size, is_number=True),
    Field("FREE", lambda row: row[1].usable_bytes, "usable_bytes", _size, is_number=True),
    Field(
        "", lambda row: [json_row(_REPLICAS, (*row, each)) for each in row[1].replicas], "replicas"
    ),
)


@click.command()
@click.argument("brokers", metavar="[BROKER...]", type=click.IntRange(min=0), nargs=-1)
@click.option("--replicas", is_flag=True, help="Every replica with its size, the largest first.")
@client_options()
@json_option
def disks(brokers: tuple[int, ...], replicas: bool, clients: Clients, as_json: bool) -> int:
    """Show each broker's log directory: how full its volume is, how much is in its logs.

    LAG is how many records a replica is behind the high watermark. The exit status is 1 if a broker
    that has replicas is down, so that its disk is not shown.
    """

    async def work(cluster: Cluster) -> tuple[dict[int, list[LogDirectory]], list[int]]:
        from kdist.client.admin.disks import describe_log_dirs
        from kdist.client.admin.health import missing_brokers

        told = await describe_log_dirs(cluster, brokers or None)
        return told, [] if brokers else await missing_brokers(cluster)

    told, missing = ask_cluster(clients, work)
    for broker in missing:
        click.echo(f"Broker {broker} is down: its disk is not shown.", err=True)
    status = 1 if missing else 0
    found = [(id_, each) for id_, all_ in told.items() for each in all_]
    if as_json or not replicas:
        print_rows(_DIRECTORIES, found, as_json=as_json)
        return status
    rows = [(id_, each, replica) for id_, each in found for replica in each.replicas]
    rows.sort(key=lambda row: (-row[2].size_bytes, row[0], row[2]))
    print_rows(_REPLICAS, rows, if_none="There are no replicas.")
    return status
