"""`kdist groups delete` and `delete-offsets`: delete groups, or some of their offsets."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from kdist.cli.completing import complete_groups, complete_topics
from kdist.cli.connecting import ask_cluster, broker_option
from kdist.cli.options import json_option, not_empty, print_json
from kdist.cli.partitions_given import GivenPartitions, PartitionsParam
from kdist.cli.show import printable, show_count
from kdist.errors import UserError

if TYPE_CHECKING:
    from kdist.client.cluster import Cluster
    from kdist.model import TopicPartition


@click.command()
@click.argument(
    "names",
    metavar="GROUP...",
    nargs=-1,
    required=True,
    callback=not_empty,
    shell_complete=complete_groups,
)
@broker_option
@json_option
def delete(names: tuple[str, ...], broker: str, as_json: bool) -> None:
    """Delete groups with all they have committed. Nothing brings that back.

    A group that has members stays: stop them first.
    """

    async def work(cluster: Cluster) -> None:
        from kdist.client.admin.groups import delete_groups, list_groups, unknown_group

        known = {each.name for each in await list_groups(cluster)}
        for name in names:  # all are known, or none is deleted
            if name not in known:
                raise await unknown_group(cluster, name)
        for name in dict.fromkeys(names):
            await delete_groups(cluster, [name])
            if as_json:
                print_json({"group": name, "deleted": True})
            else:
                click.echo(f"Deleted group {printable(name)}.")

    ask_cluster(broker, work)


@click.command("delete-offsets")
@click.argument("group", metavar="GROUP", callback=not_empty, shell_complete=complete_groups)
@click.option(
    "--topic",
    "given",
    type=PartitionsParam(),
    metavar="TOPIC[:P,...]",
    multiple=True,
    required=True,
    shell_complete=complete_topics,
    help="The topic; may be repeated.",
)
@broker_option
@json_option
def delete_offsets(
    group: str, given: tuple[GivenPartitions, ...], broker: str, as_json: bool
) -> None:
    """Forget what a group has committed for some topics; it keeps the others.

    None of its members may be reading the topic. The topic may have been deleted.
    """

    async def work(cluster: Cluster) -> list[TopicPartition]:
        from kdist.client.admin.groups import unknown_group
        from kdist.client.admin.offsets import delete_group_offsets, group_offsets

        committed = await group_offsets(cluster, group)
        if not committed:
            raise await unknown_group(cluster, group)
        doomed = _matching(list(committed), given, group)
        await delete_group_offsets(cluster, group, doomed)
        return doomed

    forgotten = ask_cluster(broker, work)
    if as_json:
        for each in forgotten:
            print_json({"group": group, "topic": each.topic, "partition": each.partition})
    else:
        count = show_count(len(forgotten), "partition")
        click.echo(f"Group {printable(group)} has no offsets in {count} any more.")


def _matching(
    committed: list[TopicPartition], given: tuple[GivenPartitions, ...], group: str
) -> list[TopicPartition]:
    """Of what is committed, what was named; `UserError` for a name that stands for nothing."""
    from kdist.client.cluster import did_you_mean

    doomed: set[TopicPartition] = set()
    for topic, numbers in given:
        found = [
            each
            for each in committed
            if each.topic == topic and (numbers is None or each.partition in numbers)
        ]
        if not found:
            hint = did_you_mean(topic, {each.topic for each in committed} - {topic})
            where = topic if numbers is None else f"{topic}:{','.join(map(str, numbers))}"
            raise UserError(f"group {group} has committed nothing for {where}{hint}")
        doomed.update(found)
    return sorted(doomed)
