"""`kdist groups`: consumer groups with members, offsets and lag; resets and deletes them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import click

from kdist.cli.shared.click_groups import CommandGroup
from kdist.cli.shared.client_settings import Clients, client_options
from kdist.cli.shared.completing import complete_groups
from kdist.cli.shared.confirming import (
    confirm,
    out_of_range_option,
    require_within,
    yes_option,
)
from kdist.cli.shared.connecting import ask_cluster, require_no_members
from kdist.cli.shared.options import (
    TIME_FORMS,
    Duration,
    Time,
    json_option,
    names_argument,
    not_empty,
    print_json,
    say,
)
from kdist.cli.shared.show import printable, show_count
from kdist.cli.shared.table import Field, json_row, print_rows
from kdist.cli.shared.topic_arguments import TopicPartitions, partitions_option, resolve_partitions
from kdist.errors import UserError
from kdist.runtime.clock import SystemClock

if TYPE_CHECKING:
    from kdist.client.admin.groups import Group, ListedGroup, Member, Progress
    from kdist.client.admin.outcomes import SomeFailed
    from kdist.client.admin.resets import OffsetMove, Target
    from kdist.client.cluster import Cluster
    from kdist.errors import ApiError
    from kdist.model import TopicPartition

_group_argument = click.argument(
    "group", metavar="GROUP", callback=not_empty, shell_complete=complete_groups
)

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


# reset


_TARGETS = "--to-earliest, --to-latest, --to-offset, --to-datetime, --by-duration and --shift-by"


@groups.command()
@_group_argument
@click.option("--to-earliest", is_flag=True, help="To the oldest record there is.")
@click.option("--to-latest", is_flag=True, help="To the end: only records written from now on.")
@click.option("--to-offset", type=click.IntRange(min=0), help="To this offset in each partition.")
@click.option(
    "--to-datetime",
    type=Time(),
    help=f"To the first record of this time: {TIME_FORMS}.",
)
@click.option(
    "--by-duration",
    type=Duration(),
    help="To the first record of this long ago, by the records' timestamps: 90s, 2h, 7d.",
)
@click.option(
    "--shift-by",
    type=int,
    metavar="N",
    help="By N offsets forward from the committed one; backward if N is negative.",
)
@partitions_option(
    "Only this topic; may be repeated. By default, all that the group has offsets for."
)
@click.option("--dry-run", is_flag=True, help="Show what would change, and change nothing.")
@out_of_range_option
@yes_option
@client_options()
@json_option
def reset(  # noqa: PLR0913 - one for each option
    group: str,
    to_earliest: bool,
    to_latest: bool,
    to_offset: int | None,
    to_datetime: int | None,
    by_duration: int | None,
    shift_by: int | None,
    topics: tuple[TopicPartitions, ...],
    dry_run: bool,
    out_of_range: bool,
    yes: bool,
    clients: Clients,
    as_json: bool,
) -> None:
    """Move the committed offsets of a group without members, so that it goes on from there.

    An offset out of range becomes the nearest one in range, and a time only with --out-of-range:
    it is refused if it is not between a topic's first record and its last. With --topic, a group
    may be given offsets in a topic that it has never committed for; the group itself need not exist
    yet.

    Partitions that have no leader keep their offsets: the others are moved, and the command fails.

    \b
    Examples:
      kdist groups reset audit --to-earliest --dry-run
      kdist groups reset audit --to-datetime 2026-11-20T11:40 --topic clicks
      kdist groups reset audit --shift-by -100 --topic clicks:0,2
    """
    target = _target(to_earliest, to_latest, to_offset, to_datetime, by_duration, shift_by)

    async def work(cluster: Cluster) -> Planned:
        from kdist.client.admin.offsets import alter_group_offsets
        from kdist.client.admin.resets import ToTime

        partitions = await resolve_partitions(cluster, topics) if topics else None
        planned = await _plan(cluster, group, target, partitions)
        moves = planned.moves
        if isinstance(target, ToTime) and not out_of_range:
            await require_within(cluster, [each.partition for each in moves], target.timestamp_ms)
        if not dry_run:
            await require_no_members(cluster, group)
        if not as_json:
            _show_moves(group, moves, dry_run, as_json=False)
        if not dry_run:
            await confirm(f"group {printable(group)} will go on from there", yes=yes)
            offsets = {each.partition: each.offset for each in moves}
            await alter_group_offsets(cluster, group, offsets)
        return planned

    moves, leaderless = ask_cluster(clients, work)
    if as_json:
        _show_moves(group, moves, dry_run, as_json=True)
    else:
        count, did = show_count(len(moves), "partition"), "would go" if dry_run else "goes"
        click.echo(f"Group {printable(group)} {did} on from there in {count}.")
    if leaderless is not None:
        raise leaderless


class Planned(NamedTuple):
    """The moves that can be made, and the error of partitions that have no leader, if any."""

    moves: list[OffsetMove]
    leaderless: ApiError | None = None


async def _plan(
    cluster: Cluster, group: str, target: Target, partitions: list[TopicPartition] | None
) -> Planned:
    """`ApiError` for a group without offsets, or if no move can be made."""
    from kdist.client.admin.groups import unknown_group
    from kdist.client.admin.offsets import plan_group_offsets_reset
    from kdist.client.admin.outcomes import SomeFailed

    try:
        moves = await plan_group_offsets_reset(cluster, group, target, partitions)
    except SomeFailed as some:
        if some.done:
            return Planned(list(some.done.values()), some)
        raise
    if not moves:
        raise await unknown_group(cluster, group)
    return Planned(moves)


def _target(
    to_earliest: bool,
    to_latest: bool,
    to_offset: int | None,
    to_datetime: int | None,
    by_duration: int | None,
    shift_by: int | None,
) -> Target:
    """The target of the one option that is given; `click.UsageError` for none or several."""
    from kdist.client.admin.resets import ShiftBy, ToEarliest, ToLatest, ToOffset, ToTime

    given = (
        ToEarliest() if to_earliest else None,
        ToLatest() if to_latest else None,
        None if to_offset is None else ToOffset(to_offset),
        None if to_datetime is None else ToTime(to_datetime),
        None if by_duration is None else ToTime(_ago(by_duration)),
        None if shift_by is None else ShiftBy(shift_by),
    )
    named: list[Target] = [each for each in given if each is not None]
    if len(named) != 1:
        raise click.UsageError(f"Say where to: give one of {_TARGETS}.")
    return named[0]


def _ago(duration_ms: int) -> int:
    time_ms = SystemClock().now_ms() - duration_ms
    if time_ms < 0:
        raise click.BadParameter("it is longer ago than 1970.", param_hint="'--by-duration'")
    return time_ms


def _show_moves(group: str, moves: Sequence[OffsetMove], dry_run: bool, as_json: bool) -> None:
    fields: tuple[Field[OffsetMove], ...] = (
        Field("", lambda _: group, "group"),
        Field("TOPIC", lambda each: each.partition.topic, "topic"),
        Field("PARTITION", lambda each: each.partition.partition, "partition", is_number=True),
        Field("BEFORE", lambda each: each.before, "before", is_number=True),
        Field("AFTER", lambda each: each.offset, "after", is_number=True),
        Field("END", lambda each: each.end, "end", is_number=True),
        Field("LAG", lambda each: each.lag, "lag", is_number=True),
        Field("", lambda _: not dry_run, "carried_out"),
    )
    print_rows(fields, moves, as_json=as_json)


# delete


@groups.command()
@names_argument("GROUP...", complete_groups)
@yes_option
@client_options()
@json_option
def delete(names: tuple[str, ...], yes: bool, clients: Clients, as_json: bool) -> None:
    """Delete groups with all their committed offsets. This cannot be undone.

    A group that has members is not deleted: stop them first.
    """

    async def work(cluster: Cluster) -> None:
        from kdist.client.admin.groups import delete_groups, list_groups, unknown_group

        known = {each.name for each in await list_groups(cluster)}
        for name in names:  # if one is unknown, none is deleted
            if name not in known:
                raise await unknown_group(cluster, name)
        which = ", ".join(map(printable, dict.fromkeys(names)))
        await confirm(f"group {which} will be deleted with all committed offsets", yes=yes)
        for name in dict.fromkeys(names):
            await delete_groups(cluster, [name])
            say(f"Deleted group {printable(name)}.", as_json, group=name, deleted=True)

    ask_cluster(clients, work)


@groups.command("delete-offsets")
@_group_argument
@partitions_option("The topic; may be repeated.", required=True)
@yes_option
@client_options()
@json_option
def delete_offsets(
    group: str, topics: tuple[TopicPartitions, ...], yes: bool, clients: Clients, as_json: bool
) -> None:
    """Delete a group's committed offsets for some topics, and keep the others.

    None of its members may be subscribed to the topic. The topic may be deleted already.
    """

    async def work(cluster: Cluster) -> list[TopicPartition]:
        from kdist.client.admin.groups import unknown_group
        from kdist.client.admin.offsets import delete_group_offsets, list_group_offsets

        committed = await list_group_offsets(cluster, group)
        if not committed:
            raise await unknown_group(cluster, group)
        matching = _matching(list(committed), topics, group)
        of = f"the offsets of group {printable(group)} for {', '.join(map(str, matching))}"
        await confirm(f"{of} will be deleted", yes=yes)
        await delete_group_offsets(cluster, group, matching)
        return matching

    deleted = ask_cluster(clients, work)
    if as_json:
        for each in deleted:
            print_json({"group": group, "topic": each.topic, "partition": each.partition})
    else:
        count = show_count(len(deleted), "partition")
        click.echo(f"Group {printable(group)} has no offsets in {count} any more.")


def _matching(
    committed: list[TopicPartition], topics: tuple[TopicPartitions, ...], group: str
) -> list[TopicPartition]:
    """The committed partitions of `topics`; `UserError` for a topic that matches none."""
    from kdist.client.cluster import did_you_mean

    matching: set[TopicPartition] = set()
    for topic, numbers in topics:
        found = [
            each
            for each in committed
            if each.topic == topic and (numbers is None or each.partition in numbers)
        ]
        if not found:
            hint = did_you_mean(topic, {each.topic for each in committed} - {topic})
            where = topic if numbers is None else f"{topic}:{','.join(map(str, numbers))}"
            raise UserError(f"group {group} has no committed offsets for {where}{hint}")
        matching.update(found)
    return sorted(matching)
