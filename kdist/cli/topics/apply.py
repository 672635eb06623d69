"""`kdist topics apply`: brings topics to the state in a JSON file, or shows the plan."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from kdist.cli.shared.client_settings import Clients, client_options
from kdist.cli.shared.connecting import ask_cluster
from kdist.cli.shared.files import complete_files, readonly_files
from kdist.cli.shared.options import json_option, not_empty, print_json
from kdist.errors import UserError

if TYPE_CHECKING:
    from kdist.client.admin.topics import NewTopic
    from kdist.client.cluster import Cluster
    from kdist.ops.topic_plan import Existing, Step, TopicPlan, Wanted

_NOTHING_TO_DO = "Nothing to change: every topic is as the file says."


@click.command()
@click.argument("path", metavar="FILE", callback=not_empty, shell_complete=complete_files)
@click.option("--plan", "is_plan", is_flag=True, help="Show what would change, and change nothing.")
@click.option(
    "--delete",
    "deletable",
    metavar="TOPIC",
    multiple=True,
    help="Confirm the deletion of this topic, which is absent in FILE; may be repeated.",
)
@click.option(
    "--zookeeper",
    hidden=True,
    expose_value=False,
    help="Ignored: settings are now changed through the brokers. Earlier playbooks give it.",
)
@client_options()
@json_option
def apply(
    path: str,
    is_plan: bool,
    deletable: tuple[str, ...],
    clients: Clients,
    as_json: bool,
) -> int:
    """Create topics, add partitions, alter settings and delete topics as FILE says.

    FILE, or standard input if it is -, is a JSON list of {name, partitions, replication_factor,
    config, state}; state is present or absent. Topics that it does not name are left alone. If FILE
    asks for a change that is not allowed (fewer partitions, another replication factor, a deletion
    that --delete does not confirm), or the cluster refuses a step, nothing is changed and the exit
    status is 1.
    """
    wanted = _read(path)

    async def work(cluster: Cluster) -> TopicPlan:
        from kdist.ops.topic_plan import plan_topics

        plan = plan_topics(wanted, await _existing(cluster, wanted), deletable)
        if plan.refusals:
            _show_plan(plan, as_json)
            return plan
        await _require_possible(plan.steps, cluster)
        if is_plan:
            _show_plan(plan, as_json)
        else:
            await _carry_out_all(plan.steps, cluster, as_json)
        return plan

    return 1 if ask_cluster(clients, work).refusals else 0


def _read(path: str) -> list[Wanted]:
    from kdist.config.texts import NameTwice, parse_json
    from kdist.ops.topic_plan import parse_wanted

    is_stream = path == "-"
    path = "standard input" if is_stream else path
    try:
        text = sys.stdin.buffer.read() if is_stream else readonly_files().read(path)
        return parse_wanted(parse_json(text))
    except FileNotFoundError:
        raise UserError(f"{path} does not exist") from None
    except NameTwice as error:
        raise UserError(f"{path}: {error}, so it would not be said which value counts") from None
    except ValueError as error:
        raise UserError(f"{path} is not JSON: {error}") from None
    except RecursionError:
        raise UserError(f"{path} is not a list of topics: it is nested too deeply") from None


async def _existing(cluster: Cluster, wanted: list[Wanted]) -> dict[str, Existing]:
    from kdist.cli.shared.settings import own_settings
    from kdist.client.admin.reassignments import with_moves
    from kdist.client.admin.topics import list_topics
    from kdist.ops.topic_plan import Existing

    names = {topic.name for topic in wanted}
    named = [topic for topic in await list_topics(cluster) if topic.name in names]
    found = {topic.name: topic for topic in await with_moves(cluster, named)}
    settings = await own_settings(cluster, found)
    return {
        name: Existing(name, len(each.partitions), each.replication_factor, settings.get(name, {}))
        for name, each in found.items()
    }


async def _require_possible(steps: Sequence[Step], cluster: Cluster) -> None:
    """`ApiError` for the first step that the cluster would refuse; nothing is changed."""
    from kdist.client.admin.topics import create_topics
    from kdist.ops.topic_plan import Create

    made = [_new(step.topic) for step in steps if isinstance(step, Create)]
    if made:
        await create_topics(cluster, made, validate_only=True)
    for step in steps:
        if not isinstance(step, Create):
            await _carry_out(step, cluster, validate_only=True)


async def _carry_out_all(steps: Sequence[Step], cluster: Cluster, as_json: bool) -> None:
    """Carry out the steps, and print those that were, even if a later one fails."""
    done: list[str] = []
    try:
        for step in steps:
            await _carry_out(step, cluster)
            done.append(str(step))
            if not as_json:
                click.echo(f"do    {step}")
    finally:
        if as_json:
            _print_json(done, (), is_done=True)
    if not steps and not as_json:
        click.echo(_NOTHING_TO_DO)


async def _carry_out(step: Step, cluster: Cluster, *, validate_only: bool = False) -> None:
    from kdist.client.admin.settings import incremental_alter_topic_configs
    from kdist.client.admin.topics import create_partitions, create_topics, delete_topic
    from kdist.ops.topic_plan import Configure, Create, Delete, Grow

    match step:
        case Create(topic):
            await create_topics(cluster, [_new(topic)], validate_only=validate_only)
        case Grow(name, partitions):
            await create_partitions(cluster, {name: partitions}, validate_only=validate_only)
        case Configure(name, settings):
            await incremental_alter_topic_configs(
                cluster, name, settings, validate_only=validate_only
            )
        case Delete(name) if not validate_only:  # the protocol cannot validate a deletion
            await delete_topic(cluster, name)


def _new(topic: Wanted) -> NewTopic:
    from kdist.client.admin.topics import NewTopic

    return NewTopic(topic.name, topic.partitions, topic.replication_factor, dict(topic.settings))


def _show_plan(plan: TopicPlan, as_json: bool) -> None:
    steps = [str(step) for step in plan.steps]
    if as_json:
        _print_json(steps, plan.refusals, is_done=False)
        return
    for refusal in plan.refusals:
        click.echo(click.style("no    ", fg="red") + refusal)
    for step in steps:
        click.echo(f"plan  {step}")
    if not plan.steps and not plan.refusals:
        click.echo(_NOTHING_TO_DO)


def _print_json(steps: Sequence[str], refusals: Sequence[str], *, is_done: bool) -> None:
    print_json({"steps": steps, "refusals": refusals, "carried_out": is_done})
