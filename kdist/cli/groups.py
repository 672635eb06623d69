"""`kdist groups`: the groups of consumers, their members, what they committed, how far behind."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import click

from kdist.cli.connecting import ask_cluster, broker_option
from kdist.cli.options import json_option, print_json
from kdist.cli.table import Column, Row, print_table
from kdist.errors import ProtocolError, UserError
from kdist.model import TopicPartition

if TYPE_CHECKING:
    from kdist.client.cluster import Cluster
    from kdist.protocol.describe_groups import DescribedGroup, DescribedMember

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


@click.group()
def groups() -> None:
    """List groups of consumers; show members, committed offsets and lag."""


@groups.command("list")
@broker_option
@json_option
def list_them(broker: str, as_json: bool) -> None:
    """List the groups of all brokers."""
    from kdist.client.admin import list_groups

    found = ask_cluster(broker, list_groups)
    if as_json:
        for group, coordinator in found:
            print_json(
                {
                    "group": group.group_id,
                    "state": group.group_state,
                    "type": group.protocol_type,
                    "coordinator": coordinator,
                }
            )
        return
    rows = (
        Row((group.group_id, group.group_state, group.protocol_type or "-", str(coordinator)))
        for group, coordinator in found
    )
    if not print_table(_GROUPS, rows):
        click.echo("There are no groups.")


class Progress(NamedTuple):
    """How far a group is in one partition; `committed` None: nothing yet, `end` None: unknown."""

    partition: TopicPartition
    committed: int | None
    end: int | None
    member: str | None

    @property
    def lag(self) -> int | None:
        """Records between the committed offset and the end."""
        if self.committed is None or self.end is None:
            return None
        return max(0, self.end - self.committed)


class Described(NamedTuple):
    """A group with all there is to show of it."""

    group: DescribedGroup
    coordinator: int
    assigned: dict[str, list[TopicPartition]]
    """By member id; empty for what is no consumer's assignment."""
    progress: list[Progress]


@groups.command()
@click.argument("names", metavar="GROUP...", nargs=-1, required=True)
@broker_option
@json_option
def describe(names: tuple[str, ...], broker: str, as_json: bool) -> None:
    """Show a group's members, committed offsets, and lag: how many records it is behind."""

    async def work(cluster: Cluster) -> list[Described]:
        return [await _describe(cluster, name) for name in names]

    for described in ask_cluster(broker, work):
        if as_json:
            _print_json(described)
        else:
            _print_text(described)


async def _describe(cluster: Cluster, name: str) -> Described:
    from kdist.client.admin import DEAD, describe_group, list_groups
    from kdist.client.cluster import did_you_mean
    from kdist.client.positions import committed_offsets

    group, coordinator = await describe_group(cluster, name)
    committed = await committed_offsets(cluster, name)
    if group.group_state == DEAD and not committed:
        known = [each.group_id for each, _ in await list_groups(cluster)]
        raise UserError(f"there is no group {name}{did_you_mean(name, known)}")
    assigned = {member.member_id: _assignment(group, member) for member in group.members}
    owner = {each: member for member, mine in assigned.items() for each in mine}
    wanted = sorted({*committed, *owner})
    ends = await _ends(cluster, wanted)
    progress = [
        Progress(each, committed.get(each), ends.get(each), owner.get(each)) for each in wanted
    ]
    return Described(group, coordinator, assigned, progress)


def _assignment(group: DescribedGroup, member: DescribedMember) -> list[TopicPartition]:
    """What a consumer was given; nothing for members of another kind, whose bytes are their own."""
    from kdist.protocol.consumer_protocol import read_assignment

    if group.protocol_type != "consumer" or not member.member_assignment:
        return []
    try:
        found = read_assignment(member.member_assignment).assigned_partitions
    except ProtocolError:
        return []
    return [TopicPartition(each.topic, number) for each in found for number in each.partitions]


async def _ends(cluster: Cluster, wanted: list[TopicPartition]) -> dict[TopicPartition, int]:
    """Ends of the partitions that still exist and have a leader: topics are deleted, too."""
    from kdist.client.positions import find_offsets
    from kdist.protocol.list_offsets import LATEST_TIMESTAMP

    await cluster.metadata({each.topic for each in wanted})
    led = [each for each in wanted if cluster.leaders.get(each, -1) >= 0]
    return await find_offsets(cluster, led, LATEST_TIMESTAMP)


def _print_text(described: Described) -> None:
    group = described.group
    click.echo(f"{group.group_id}  {group.group_state}, coordinated by {described.coordinator}")
    members = (
        Row(
            (
                each.group_instance_id or each.member_id,
                each.client_id,
                each.client_host.removeprefix("/"),
                ", ".join(map(str, described.assigned[each.member_id])) or "-",
            )
        )
        for each in group.members
    )
    if not print_table(_MEMBERS, members, indent=2):
        click.echo("  no members")
    click.echo()
    if not print_table(_OFFSETS, (Row(_cells(each)) for each in described.progress), indent=2):
        click.echo("  no committed offsets")
    click.echo()


def _cells(each: Progress) -> tuple[str, ...]:
    return (
        each.partition.topic,
        str(each.partition.partition),
        *("-" if number is None else str(number) for number in each[1:3]),
        "-" if each.lag is None else str(each.lag),
        each.member or "-",
    )


def _print_json(described: Described) -> None:
    group = described.group
    print_json(
        {
            "group": group.group_id,
            "state": group.group_state,
            "type": group.protocol_type,
            "protocol": group.protocol_data,
            "coordinator": described.coordinator,
            "members": [
                {
                    "member": each.member_id,
                    "instance": each.group_instance_id,
                    "client": each.client_id,
                    "host": each.client_host.removeprefix("/"),
                    "partitions": [list(part) for part in described.assigned[each.member_id]],
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
                for each in described.progress
            ],
        }
    )
