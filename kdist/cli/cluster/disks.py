"""`kdist cluster disks`: log directories, how full their volumes are, what is on them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import click

from kdist.cli.shared.connecting import ask_cluster, broker_option
from kdist.cli.shared.options import json_option, print_json
from kdist.cli.shared.show import show_size
from kdist.cli.shared.table import Column, Row, print_table

if TYPE_CHECKING:
    from kdist.client.admin.disks import LogDirectory
    from kdist.client.cluster import Cluster

_DIRECTORIES = (
    Column("BROKER", is_number=True),
    Column("DIRECTORY"),
    Column("STATE"),
    Column("REPLICAS", is_number=True),
    Column("LOGS", is_number=True),
    Column("VOLUME", is_number=True),
    Column("FREE", is_number=True),
)
_REPLICAS = (
    Column("BROKER", is_number=True),
    Column("PARTITION"),
    Column("SIZE", is_number=True),
    Column("LAG", is_number=True),
    Column("DIRECTORY"),
)


@click.command()
@click.argument("brokers", metavar="[BROKER...]", type=click.IntRange(min=0), nargs=-1)
@click.option("--replicas", is_flag=True, help="Every replica with its size, the largest first.")
@broker_option
@json_option
def disks(brokers: tuple[int, ...], replicas: bool, broker: str, as_json: bool) -> None:
    """Show each broker's log directory: how full its volume is, how much is in its logs.

    LAG is how many records a replica is behind the high watermark.
    """

    async def work(cluster: Cluster) -> Mapping[int, Sequence[LogDirectory]]:
        from kdist.client.admin.disks import describe_log_directories

        return await describe_log_directories(cluster, brokers or None)

    found = [(id_, each) for id_, all_ in ask_cluster(broker, work).items() for each in all_]
    if as_json:
        for id_, each in found:
            print_json(_json(id_, each))
    elif replicas:
        if not print_table(_REPLICAS, _replica_rows(found)):
            click.echo("There are no replicas.")
    else:
        print_table(_DIRECTORIES, (Row(_cells(*each)) for each in found))


def _cells(broker: int, each: LogDirectory) -> tuple[str, ...]:
    sizes = (each.total_bytes, each.usable_bytes)
    return (
        str(broker),
        each.path,
        "works" if each.error is None else each.error.name,
        str(len(each.replicas)),
        show_size(each.size_bytes),
        *("-" if size is None else show_size(size) for size in sizes),
    )


def _replica_rows(found: Sequence[tuple[int, LogDirectory]]) -> list[Row]:
    rows = [
        (replica.size_bytes, broker, replica, each.path)
        for broker, each in found
        for replica in each.replicas
    ]
    rows.sort(key=lambda row: (-row[0], row[1], row[2]))
    return [
        Row((str(broker), str(replica.partition), show_size(size), str(replica.lag), path))
        for size, broker, replica, path in rows
    ]


def _json(broker: int, each: LogDirectory) -> dict[str, object]:
    return {
        "broker": broker,
        "directory": each.path,
        "error": None if each.error is None else each.error.name,
        "logs_bytes": each.size_bytes,
        "total_bytes": each.total_bytes,
        "usable_bytes": each.usable_bytes,
        "replicas": [
            {
                "topic": replica.partition.topic,
                "partition": replica.partition.partition,
                "size_bytes": replica.size_bytes,
                "lag": replica.lag,
                "is_future": replica.is_future,
            }
            for replica in each.replicas
        ],
    }
