"""`kdist topics apply`: topics as code, from a JSON file; shows the plan, then carries it out."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import click

from kdist.cli.connecting import ask_cluster, broker_option
from kdist.cli.options import json_option, print_json, readonly_files
from kdist.errors import UserError

if TYPE_CHECKING:
    from kdist.client.cluster import Cluster
    from kdist.client.topic_plan import Existing, Plan, Step, Wanted
    from kdist.zk.client import ZooKeeper


@click.command()
@click.argument("path", metavar="FILE")
@click.option("--plan", "is_plan", is_flag=True, help="Show what would be done, and do nothing.")
@click.option(
    "--delete",
    "deletable",
    metavar="TOPIC",
    multiple=True,
    help="Confirm that this one, which FILE wants absent, is deleted; may be repeated.",
)
@click.option(
    "--zookeeper",
    envvar="KDIST_ZOOKEEPER",
    show_envvar=True,
    required=True,
    metavar="HOST:PORT[/PATH]",
    help="The cluster's ZooKeeper, where topics' settings are kept.",
)
@broker_option
@json_option
def apply(
    path: str,
    is_plan: bool,
    deletable: tuple[str, ...],
    zookeeper: str,
    broker: str,
    as_json: bool,
) -> int:
    """Create topics, add partitions and set settings, until the cluster has what FILE says.

    FILE is a JSON list of {name, partitions, replication_factor, config, state}. Topics that it
    does not name are left alone, and nothing is taken away: with one such wish in FILE, nothing is
    done, and the exit status is 1.
    """
    wanted = _read(path)

    async def work(cluster: Cluster) -> Plan:
        from kdist.client.topic_plan import plan_topics
        from kdist.client.topic_settings import zookeeper_at

        async with zookeeper_at(zookeeper) as keeper:
            existing = await _existing(cluster, keeper, wanted)
            plan = plan_topics(wanted, existing, deletable)
            _show(plan, as_json, is_plan)
            if not is_plan and not plan.refusals:
                for step in plan.steps:
                    await _carry_out(step, cluster, keeper)
            return plan

    return 1 if ask_cluster(broker, work).refusals else 0


def _read(path: str) -> list[Wanted]:
    from kdist.client.topic_plan import parse_wanted

    try:
        return parse_wanted(json.loads(readonly_files().read(path)))
    except FileNotFoundError:
        raise UserError(f"{path} is not there") from None
    except ValueError as error:
        raise UserError(f"{path} is not JSON: {error}") from None


async def _existing(
    cluster: Cluster, keeper: ZooKeeper, wanted: list[Wanted]
) -> dict[str, Existing]:
    from kdist.client.admin import list_topics
    from kdist.client.topic_plan import Existing
    from kdist.client.topic_settings import topic_settings

    names = {topic.name for topic in wanted}
    return {
        name: Existing(
            name,
            len(topic.partitions),
            max((len(each.replica_nodes) for each in topic.partitions), default=0),
            await topic_settings(keeper, name),
        )
        for topic in await list_topics(cluster)
        if (name := topic.name or "") in names
    }


async def _carry_out(step: Step, cluster: Cluster, keeper: ZooKeeper) -> None:
    from kdist.client.admin import create_topic, delete_topic, grow_topic
    from kdist.client.topic_plan import Configure, Create, Delete, Grow
    from kdist.client.topic_settings import change_topic_settings

    match step:
        case Create(topic):
            count, factor = topic.partitions or -1, topic.replication_factor or -1
            await create_topic(cluster, topic.name, count, factor, dict(topic.settings))
        case Grow(name, partitions):
            await grow_topic(cluster, name, partitions)
        case Configure(name, settings):
            await change_topic_settings(keeper, name, settings, ())
        case Delete(name):
            await delete_topic(cluster, name)


def _show(plan: Plan, as_json: bool, is_plan: bool) -> None:
    is_done = not is_plan and not plan.refusals
    if as_json:
        steps = [str(step) for step in plan.steps]
        print_json({"steps": steps, "refusals": plan.refusals, "carried_out": is_done})
        return
    for refusal in plan.refusals:
        click.echo(click.style("no    ", fg="red") + refusal)
    for step in plan.steps:
        click.echo(("do    " if is_done else "plan  ") + str(step))
    if not plan.steps and not plan.refusals:
        click.echo("Every topic is as it shall be.")
