"""`kdist topics create`, `alter` and `delete`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from kdist.cli.shared.client_settings import Clients, client_options
from kdist.cli.shared.completing import complete_topics
from kdist.cli.shared.confirming import confirm, yes_option
from kdist.cli.shared.connecting import ask_cluster
from kdist.cli.shared.options import json_option, names_argument, not_empty, say
from kdist.cli.shared.settings import parse_settings, require_apart, settings_option, unset_option
from kdist.cli.shared.show import show_count
from kdist.errors import ApiError, Error
from kdist.model import format_uuid

if TYPE_CHECKING:
    from kdist.client.admin.topics import CreatedTopic, NewTopic
    from kdist.client.cluster import Cluster


@click.command()
@names_argument("TOPIC...", None)
@click.option(
    "--partitions",
    type=click.IntRange(min=1),
    help="How many; by default the brokers' num.partitions.",
)
@click.option(
    "--replication-factor",
    type=click.IntRange(min=1),
    help="Replicas of each partition; by default the brokers' default.replication.factor.",
)
@settings_option("--config", "A setting")
@click.option("--if-not-exists", is_flag=True, help="Leave a topic that exists as it is.")
@client_options(takes_config=False)
@json_option
def create(
    names: tuple[str, ...],
    partitions: int | None,
    replication_factor: int | None,
    texts: tuple[str, ...],
    if_not_exists: bool,
    clients: Clients,
    as_json: bool,
) -> None:
    """Create topics.

    \b
    Examples:
      kdist topics create clicks --partitions 3
      kdist topics create clicks --config retention.ms=86400000 --if-not-exists
    """
    settings = parse_settings(texts, "--config")

    async def work(cluster: Cluster) -> None:
        from kdist.client.admin.topics import NewTopic, create_topic

        wanted = [NewTopic(name, partitions, replication_factor, settings) for name in names]
        if len(wanted) > 1:
            await _require_possible(cluster, wanted, if_not_exists)
        for name in names:
            try:
                made = await create_topic(cluster, name, partitions, replication_factor, settings)
            except ApiError as error:
                if error.error is Error.TOPIC_ALREADY_EXISTS and if_not_exists:
                    say(f"Topic {name} exists already.", as_json, topic=name, created=False)
                    continue
                raise
            count = made.partitions or partitions or 1
            sentence = f"Created topic {name} with {show_count(count, 'partition')}."
            say(sentence, as_json, topic=name, created=True, partitions=count, id=_id(made))

    ask_cluster(clients, work)


async def _require_possible(cluster: Cluster, wanted: list[NewTopic], if_not_exists: bool) -> None:
    """`ApiError` for the first topic that could not be created; none is created."""
    from kdist.client.admin.outcomes import SomeFailed
    from kdist.client.admin.topics import create_topics

    try:
        await create_topics(cluster, wanted, validate_only=True)
    except SomeFailed as some:
        for error in some.failed.values():
            if not (if_not_exists and error.error is Error.TOPIC_ALREADY_EXISTS):
                raise error from None


def _id(made: CreatedTopic) -> str | None:
    return None if made.id is None else format_uuid(made.id)


@click.command()
@click.argument("name", metavar="TOPIC", callback=not_empty, shell_complete=complete_topics)
@click.option(
    "--partitions",
    type=click.IntRange(min=1),
    help="The new number of partitions, larger than the present one.",
)
@settings_option("--config", "A setting to change")
@unset_option("Remove the topic's own value")
@client_options(takes_config=False)
@json_option
def alter(
    name: str,
    partitions: int | None,
    texts: tuple[str, ...],
    removed: tuple[str, ...],
    clients: Clients,
    as_json: bool,
) -> None:
    """Add partitions to a topic, or change its settings.

    Adding partitions moves no records, but from then on many keys go to another partition.

    \b
    Examples:
      kdist topics alter clicks --partitions 6
      kdist topics alter clicks --config retention.ms=86400000 --unset segment.bytes
    """
    settings = parse_settings(texts, "--config")
    if not settings and not removed and partitions is None:
        raise click.UsageError("Say what to change: --partitions, --config or --unset.")
    require_apart(settings, removed)

    async def work(cluster: Cluster) -> None:
        from kdist.cli.shared.settings import own_settings, require_known
        from kdist.client.admin.settings import incremental_alter_topic_configs
        from kdist.client.admin.topics import create_partitions, describe_topics

        await describe_topics(cluster, [name])
        if settings or removed:
            await require_known(cluster, name, removed)
            await incremental_alter_topic_configs(
                cluster, name, settings, removed, validate_only=True
            )
        if partitions is not None:  # first, as a refusal must leave the settings unchanged
            await create_partitions(cluster, {name: partitions})
            sentence = f"Topic {name} has {show_count(partitions, 'partition')} now."
            say(sentence, as_json, topic=name, partitions=partitions)
        if settings or removed:
            await incremental_alter_topic_configs(cluster, name, settings, removed)
            now = (await own_settings(cluster, [name])).get(name, {})
            shown = ", ".join(f"{each}={value}" for each, value in now.items())
            sentence = f"Topic {name} has {shown or 'no settings of its own'} now."
            say(sentence, as_json, topic=name, settings=now)

    ask_cluster(clients, work)


@click.command()
@names_argument("TOPIC...", complete_topics)
@click.option("--if-exists", is_flag=True, help="Ignore a topic that does not exist.")
@yes_option
@client_options()
@json_option
def delete(
    names: tuple[str, ...], if_exists: bool, yes: bool, clients: Clients, as_json: bool
) -> None:
    """Delete topics with all their records. This cannot be undone."""

    async def work(cluster: Cluster) -> None:
        from kdist.client.admin.topics import delete_topics, describe_topics, list_topics

        known = {topic.name: len(topic.partitions) for topic in await list_topics(cluster)}
        if not if_exists:
            await describe_topics(cluster, names)  # if one is unknown, none is deleted
        there = [
            f"{name} ({show_count(known[name], 'partition')})"
            for name in dict.fromkeys(names)
            if name in known
        ]
        if there:
            noun = "topic" if len(there) == 1 else "topics"
            await confirm(f"{noun} {', '.join(there)} will be deleted with all records", yes=yes)
        for name in dict.fromkeys(names):
            if name in known:
                await delete_topics(cluster, [name])
                say(f"Deleted topic {name}.", as_json, topic=name, deleted=True)
            else:
                say(f"There is no topic {name}.", as_json, topic=name, deleted=False)

    ask_cluster(clients, work)
