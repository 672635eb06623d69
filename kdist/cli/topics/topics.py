"""`kdist topics`: lists topics; the other files of the folder have the other commands."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from kdist.cli.shared.click_groups import CommandGroup
from kdist.cli.shared.client_settings import Clients, client_options
from kdist.cli.shared.connecting import ask_cluster
from kdist.cli.shared.options import json_option
from kdist.cli.shared.table import Field, print_rows
from kdist.cli.topics.apply import apply
from kdist.cli.topics.change import alter, create, delete
from kdist.cli.topics.describe import NO_TOPICS, describe, show_id
from kdist.cli.topics.records import delete_records

if TYPE_CHECKING:
    from kdist.client.admin.topics import Topic
    from kdist.client.cluster import Cluster

_TOPICS: tuple[Field[Topic], ...] = (
    Field("TOPIC", lambda each: each.name, "topic"),
    Field("", lambda each: show_id(each), "id"),
    Field("PARTITIONS", lambda each: len(each.partitions), "partitions", is_number=True),
    Field("REPLICAS", lambda each: each.replication_factor, "replication_factor", is_number=True),
    Field("", lambda each: _moving(each), "moving"),
    Field("", lambda each: each.is_internal, "internal"),
    Field("ID", lambda each: show_id(each)),
)

_MOVING: Field[Topic] = Field("MOVING", lambda each: _moving(each), is_number=True)


def _moving(topic: Topic) -> int:
    """How many partitions are being moved."""
    return sum(each.is_moving for each in topic.partitions)


@click.group(cls=CommandGroup)
def topics() -> None:
    """Create, list, describe, alter and delete topics, or apply a file of them."""


for command in (apply, create, alter, delete, delete_records, describe):
    topics.add_command(command)


@topics.command("list")
@click.option(
    "--internal", is_flag=True, help="Show internal topics too, such as __consumer_offsets."
)
@client_options()
@json_option
def list_them(internal: bool, clients: Clients, as_json: bool) -> None:
    """List the topics.

    REPLICAS is how many are wanted of each partition, whatever a move adds on its way; MOVING says
    of how many partitions replicas are being moved, while there are any.
    """
    from kdist.client.admin.reassignments import with_moves
    from kdist.client.admin.topics import list_topics

    async def work(cluster: Cluster) -> list[Topic]:
        found = await list_topics(cluster)
        return await with_moves(cluster, (e for e in found if internal or not e.is_internal))

    shown = ask_cluster(clients, work)
    fields = (*_TOPICS, _MOVING) if any(map(_moving, shown)) else _TOPICS
    print_rows(fields, shown, as_json=as_json, if_none=NO_TOPICS)
