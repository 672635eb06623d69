"""`kdist groups`: consumer groups, with their members, committed offsets and lag."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from kdist.cli.groups.delete import delete, delete_offsets
from kdist.cli.groups.reset import reset
from kdist.cli.shared.command_group import CommandGroup
from kdist.cli.shared.completing import complete_groups
from kdist.cli.shared.connecting import ask_cluster, broker_option
from kdist.cli.shared.options import json_option, not_empty, print_json
from kdist.cli.shared.show import printable, show_count
from kdist.cli.shared.table import Column, Row, print_table

if TYPE_CHECKING:
    from kdist.client.admin.groups import Group, Progress
    from kdist.client.admin.outcomes import SomeFailed
    from kdist.client.cluster import Cluster

_GROUPS = (
    Column("GROUP"),
    Column("STATE"),
    Column("TYPE"),
    Column("COORDINATOR", is_number=True),
)
_MEMBERS = (Column("MEMBER"), Column("CLIENT"), Column("HOST"), Column("PARTITIONS"))
_OFFSETS = (
    Column("TOPIC"),
    Column("PARTITION", is_number=True),
    Column("COMMITTED", is_number=True),
    Column("END", is_number=True),
    Column("LAG", is_number=True),
    Column("MEMBER"),
)


@click.group(cls=CommandGroup)
def groups() -> None:
    """List consumer groups; show members, offsets and lag; reset offsets; delete groups."""


@groups.command("list")
@broker_option
@json_option
def list_them(broker: str, as_json: bool) -> None:
    """List the groups of all brokers."""
    from kdist.client.admin.groups import list_groups

    found = ask_cluster(broker, list_groups)
    if as_json:
        for each in found:
            print_json(
                {
                    "group": each.name,
                    "state": each.state,
                    "type": each.type,
                    "coordinator": each.coordinator,
                }
            )
        return
    rows = (
        Row((each.name, each.state or "-", each.type or "-", str(each.coordinator)))
        for each in found
    )
    if not print_table(_GROUPS, rows):
        click.echo("There are no groups.")


@groups.command()
@click.argument(
    "names", metavar="[GROUP...]", nargs=-1, callback=not_empty, shell_complete=complete_groups
)
@broker_option
@json_option
def describe(names: tuple[str, ...], broker: str, as_json: bool) -> None:
    """Show members, committed offsets, and lag: how many records a group is behind.

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

    found, failed = ask_cluster(broker, work)
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
    members = (
        Row(
            (
                each.instance_id or each.id,
                each.client_id,
                each.host,
                ", ".join(map(str, each.partitions)) or "-",
            )
        )
        for each in group.members
    )
    if not print_table(_MEMBERS, members, indent=2):
        click.echo("  no members")
    click.echo()
    if not print_table(_OFFSETS, (Row(_cells(each)) for each in group.progress), indent=2):
        click.echo("  no committed offsets")
    click.echo()


def _cells(each: Progress) -> tuple[str, ...]:
    numbers = (each.committed, each.end, each.lag)
    return (
        each.partition.topic,
        str(each.partition.partition),
        *("-" if number is None else str(number) for number in numbers),
        each.member or "-",
    )


def _print_json(group: Group) -> None:
    print_json(
        {
            "group": group.name,
            "state": group.state,
            "type": group.type,
            "protocol": group.assignor,
            "coordinator": group.coordinator,
            "lag": group.lag,
            "members": [
                {
                    "member": each.id,
                    "instance": each.instance_id,
                    "client": each.client_id,
                    "host": each.host,
                    "partitions": [list(part) for part in each.partitions],
                }
                for each in group.members
            ],
            "offsets": [
                {
                    "topic": each.partition.topic,
                    "partition": each.partition.partition,
                    "committed": each.committed,
                    "end": each.end,
                    "lag": each.lag,
                    "member": each.member,
                }
                for each in group.progress
            ],
        }
    )


for command in (reset, delete, delete_offsets):
    groups.add_command(command)
