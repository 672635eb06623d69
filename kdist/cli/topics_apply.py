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
    hidden=True,
    expose_value=False,
    help="Ignored: the brokers keep settings now. Playbooks of earlier releases give it.",
)
@broker_option
@json_option
def apply(
    path: str,
    is_plan: bool,
    deletable: tuple[str, ...],
    broker: str,
    as_json: bool,
) -> int:
    """Create topics, add partitions and set settings, until the cluster has what FILE says.

    FILE is a JSON list of {name, partitions, replication_factor, config, state}; state is present
    or absent. Topics that it does not name are left alone. If FILE takes something away (fewer
    partitions, other numbers of replicas, a topic whose deletion --delete does not confirm),
    nothing is done, and the exit status is 1.
    """
    wanted = _read(path)

    async def work(cluster: Cluster) -> Plan:
        from kdist.client.topic_plan import plan_topics

        plan = plan_topics(wanted, await _existing(cluster, wanted), deletable)
        _show(plan, as_json, is_plan)
        if not is_plan and not plan.refusals:
            for step in plan.steps:
                await _carry_out(step, cluster)
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


async def _existing(cluster: Cluster, wanted: list[Wanted]) -> dict[str, Existing]:
    from kdist.cli.settings_shown import own_settings
    from kdist.client.admin.topics import list_topics
    from kdist.client.topic_plan import Existing

    names = {topic.name for topic in wanted}
    found = [topic for topic in await list_topics(cluster) if topic.name in names]
    settings = await own_settings(cluster, [topic.name for topic in found])
    return {
        name: Existing(
            name, len(topic.partitions), topic.replication_factor, settings.get(name, {})
        )
        for topic in found
        if (name := topic.name)
    }


async def _carry_out(step: Step, cluster: Cluster) -> None:
    from kdist.client.admin.settings import alter_topic_settings
    from kdist.client.admin.topics import create_topic, delete_topic, grow_topics
    from kdist.client.topic_plan import Configure, Create, Delete, Grow

    match step:
        case Create(topic):
            count, factor = topic.partitions, topic.replication_factor
            await create_topic(cluster, topic.name, count, factor, dict(topic.settings))
        case Grow(name, partitions):
            await grow_topics(cluster, {name: partitions})
        case Configure(name, settings):
            await alter_topic_settings(cluster, name, settings)
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
