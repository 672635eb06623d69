"""`kdist groups`: consumer groups, with their members, committed offsets and lag."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from kdist.cli.groups.delete import delete, delete_offsets
from kdist.cli.groups.reset import reset
from kdist.cli.shared.click_groups import CommandGroup
from kdist.cli.shared.client_settings import Clients, client_options
from kdist.cli.shared.completing import complete_groups
from kdist.cli.shared.connecting import ask_cluster
from kdist.cli.shared.options import json_option, names_argument, print_json
from kdist.cli.shared.show import printable, show_count
from kdist.cli.shared.table import Field, json_row, print_rows

if TYPE_CHECKING:
    from kdist.client.admin.groups import Group, ListedGroup, Member, Progress
    from kdist.client.admin.outcomes import SomeFailed
    from kdist.client.cluster import Cluster

_GROUPS: tuple[Field[ListedGroup], ...] = (
    Field("GROUP", lambda each: each.name, "group"),
    Field("STATE", lambda each: each.state, "state"),
    Field("TYPE", lambda each: each.type, "type"),
    Field("COORDINATOR", lambda each: each.coordinator, "coordinator", is_number=True),
)
_MEMBERS: tuple[Field[Member], ...] = (
    Field("MEMBER", lambda each: each.instance_id or each.id),
    Field("", lambda each: each.id, "member"),
    Field("", lambda each: each.instance_id, "instance"),
    Field("CLIENT", lambda each: each.client_id, "client", str),
    Field("HOST", lambda each: each.host, "host", str),
    Field("PARTITIONS", lambda each: ", ".join(map(str, each.partitions))),
    Field("", lambda each: [list(part) for part in each.partitions], "partitions"),
)
_OFFSETS: tuple[Field[Progress], ...] = (
    Field("TOPIC", lambda each: each.partition.topic, "topic"),
    Field("PARTITION", lambda each: each.partition.partition, "partition", is_number=True),
    Field("COMMITTED", lambda each: each.committed, "committed", is_number=True),
    Field("START", lambda each: each.start, "start", is_number=True),
    Field("END", lambda each: each.end, "end", is_number=True),
    Field("LAG", lambda each: each.lag, "lag", is_number=True),
    Field("MEMBER", lambda each: each.member, "member"),
)


@click.group(cls=CommandGroup)
def groups() -> None:
    """List consumer groups; show members, offsets and lag; reset offsets; delete groups."""


@groups.command("list")
@client_options()
@json_option
def list_them(clients: Clients, as_json: bool) -> None:
    """List the groups of all brokers."""
    from kdist.client.admin.groups import list_groups

    found = ask_cluster(clients, list_groups)
    print_rows(_GROUPS, found, as_json=as_json, if_none="There are no groups.")


@groups.command()
@names_argument("[GROUP...]", complete_groups)
@client_options()
@json_option
def describe(names: tuple[str, ...], clients: Clients, as_json: bool) -> None:
    """Show members, committed offsets, and lag: how many records a group is behind.

    START and END are the log's. Records that retention took before the group read them, from the
    committed offset to START, do not count.

    Without a name, shows every group. Groups of the protocol of KIP-848 can only be listed.
    """

    async def work(cluster: Cluster) -> tuple[list[Group], SomeFailed | None]:
        from kdist.client.admin.groups import describe_groups, list_groups
        from kdist.client.admin.outcomes import SomeFailed

        wanted = names or [each.name for each in await list_groups(cluster)]
        try:
            return list((await describe_groups(cluster, wanted)).values()), None
        except SomeFailed as some:
            return list(some.done.values()), some

    found, failed = ask_cluster(clients, work)
    for group in found:
        if as_json:
            _print_json(group)
        else:
            _print_text(group)
    if failed is not None:
        raise failed
    if not found and not as_json:
        click.echo("There are no groups.")


def _print_text(group: Group) -> None:
    behind = f", {show_count(group.lag, 'record')} behind" if group.progress else ""
    click.echo(
        f"{printable(group.name)}  {group.state}, coordinated by {group.coordinator}{behind}"
    )
    print_rows(_MEMBERS, group.members, indent=2, if_none="  no members")
    click.echo()
    print_rows(_OFFSETS, group.progress, indent=2, if_none="  no committed offsets")
    click.echo()


def _print_json(group: Group) -> None:
    print_json(
        {
            "group": group.name,
            "state": group.state,
            "type": group.type,
            "protocol": group.assignor,
            "coordinator": group.coordinator,
            "lag": group.lag,
            "members": [json_row(_MEMBERS, each) for each in group.members],
            "offsets": [json_row(_OFFSETS, each) for each in group.progress],
        }
    )


for command in (reset, delete, delete_offsets):
    groups.add_command(command)
