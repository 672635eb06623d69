"""`kdist groups delete` and `delete-offsets`: delete groups, or some of their offsets."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from kdist.cli.shared.client_settings import Clients, client_options
from kdist.cli.shared.completing import complete_groups
from kdist.cli.shared.confirming import confirm, yes_option
from kdist.cli.shared.connecting import ask_cluster
from kdist.cli.shared.options import json_option, names_argument, not_empty, print_json, say
from kdist.cli.shared.show import printable, show_count
from kdist.cli.shared.topic_arguments import TopicPartitions, partitions_option
from kdist.errors import UserError

if TYPE_CHECKING:
    from kdist.client.cluster import Cluster
    from kdist.model import TopicPartition


@click.command()
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


@click.command("delete-offsets")
@click.argument("group", metavar="GROUP", callback=not_empty, shell_complete=complete_groups)
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
