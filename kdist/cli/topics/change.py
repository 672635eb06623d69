"""`kdist topics create`, `alter`, `delete` and `delete-records`."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, NamedTuple

import click

from kdist.cli.shared.client_settings import Clients, client_options
from kdist.cli.shared.completing import complete_topics
from kdist.cli.shared.confirming import (
    confirm,
    out_of_range_option,
    require_within,
    yes_option,
)
from kdist.cli.shared.connecting import ask_cluster
from kdist.cli.shared.options import TIME_FORMS, Time, json_option, names_argument, not_empty, say
from kdist.cli.shared.settings import parse_settings, require_apart, settings_option, unset_option
from kdist.cli.shared.show import show_count
from kdist.cli.shared.table import Field, print_rows
from kdist.cli.shared.topic_arguments import PartitionsParam, TopicPartitions, resolve_partitions
from kdist.errors import ApiError, Error, UserError
from kdist.model import NO_OFFSET, OffsetRange, TopicPartition, format_uuid

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


_TRIMS: tuple[Field[Trim], ...] = (
    Field("TOPIC", lambda each: each.partition.topic, "topic"),
    Field("PARTITION", lambda each: each.partition.partition, "partition", is_number=True),
    Field("START", lambda each: each.start, is_number=True),
    Field("", lambda each: each.new_start, "start_offset"),
    Field("END", lambda each: each.end, "end_offset", is_number=True),
    Field("NEW START", lambda each: each.new_start, is_number=True),
    Field("OFFSETS", lambda each: each.offsets, "deleted", is_number=True),
    Field("", lambda each: each.is_done, "carried_out"),
)


class Trim(NamedTuple):
    """What is deleted from a partition: the offsets from `start` up to `new_start`, exclusive."""

    partition: TopicPartition
    start: int
    end: int
    new_start: int
    is_done: bool
    is_compacted: bool

    @property
    def offsets(self) -> int:
        return self.new_start - self.start


@click.command("delete-records")
@click.argument(
    "topics",
    metavar="TOPIC[:P,...]...",
    type=PartitionsParam(),
    nargs=-1,
    required=True,
    shell_complete=complete_topics,
)
@click.option("--before-offset", type=click.IntRange(min=0), help="Records before this offset.")
@click.option(
    "--before-time",
    type=Time(),
    help=f"Records before the first one of this time: {TIME_FORMS}.",
)
@click.option("--all", "takes_all", is_flag=True, help="All records.")
@click.option("--dry-run", is_flag=True, help="Show what would be deleted, and delete nothing.")
@out_of_range_option
@yes_option
@client_options()
@json_option
def delete_records(  # noqa: PLR0913 - one for each option
    topics: tuple[TopicPartitions, ...],
    before_offset: int | None,
    before_time: int | None,
    takes_all: bool,
    dry_run: bool,
    out_of_range: bool,
    yes: bool,
    clients: Clients,
    as_json: bool,
) -> None:
    """Delete the oldest records of topics. This cannot be undone.

    The topic stays, and the offsets of later records are not affected. A time after a topic's last
    record is refused without --out-of-range, as all records would go.

    \b
    Examples:
      kdist topics delete-records clicks --before-time 2026-11-01 --dry-run
      kdist topics delete-records clicks:0 --before-offset 4711
    """
    if takes_all + (before_offset is not None) + (before_time is not None) != 1:
        raise click.UsageError("Give one of --before-offset, --before-time and --all.")

    async def work(cluster: Cluster) -> list[Trim]:
        from kdist.client.admin.records import delete_records as delete_before
        from kdist.client.offsets import find_ranges

        partitions = await resolve_partitions(cluster, topics)
        compacted = await _compacted(cluster, {each.topic for each in partitions})
        if before_time is not None and not out_of_range:
            await require_within(cluster, partitions, before_time, may_be_before=True)
        ranges = await find_ranges(cluster, partitions)
        goals = await _goals(cluster, ranges, before_offset, before_time)
        trims = [
            Trim(each, *span, _clamp(goals[each], span), not dry_run, each.topic in compacted)
            for each, span in ranges.items()
        ]
        if not as_json:
            print_rows(_TRIMS, trims, as_json=False)
        wanted = {each.partition: each.new_start for each in trims if each.offsets}
        if wanted and not dry_run:
            await confirm(f"{_total(trims)} will be deleted", yes=yes)
            await delete_before(cluster, wanted)
        return trims

    trims = ask_cluster(clients, work)
    if as_json:
        print_rows(_TRIMS, trims, as_json=True)
    else:
        total = _total(trims)
        click.echo(f"{total.capitalize()} would be deleted." if dry_run else f"Deleted {total}.")


async def _compacted(cluster: Cluster, topics: Collection[str]) -> set[str]:
    """Those that are compacted as well; `UserError` for one that may not be deleted from."""
    from kdist.client.admin.settings import describe_topic_configs

    found = set()
    for topic, settings in (await describe_topic_configs(cluster, topics)).items():
        policy = settings["cleanup.policy"].value or ""
        if "delete" not in policy:
            raise UserError(f"topic {topic} has cleanup.policy={policy}, which has no delete")
        if "compact" in policy:
            found.add(topic)
    return found


async def _goals(
    cluster: Cluster,
    ranges: Mapping[TopicPartition, OffsetRange],
    before_offset: int | None,
    before_time: int | None,
) -> Mapping[TopicPartition, int]:
    from kdist.client.offsets import find_offsets

    if before_time is not None:
        return await find_offsets(cluster, list(ranges), before_time)
    if before_offset is None:
        return {each: span.end for each, span in ranges.items()}
    for each, span in ranges.items():
        if before_offset > span.end:
            raise UserError(f"{each} ends at offset {span.end}, before {before_offset}")
    return dict.fromkeys(ranges, before_offset)


def _clamp(goal: int, offsets: OffsetRange) -> int:
    return offsets.end if goal == NO_OFFSET else max(offsets.start, min(goal, offsets.end))


def _total(trims: list[Trim]) -> str:
    """How many records; after compaction there may be fewer than offsets."""
    count = show_count(sum(each.offsets for each in trims), "record")
    return f"up to {count}" if any(each.is_compacted for each in trims) else count
