"""`kdist topics`: create, list, describe, alter, delete and apply topics."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import click

from kdist.cli.connecting import ask_cluster, broker_option
from kdist.cli.options import json_option, print_json
from kdist.cli.settings_given import parse_given
from kdist.cli.show import show_count
from kdist.cli.table import Column, Row, print_table
from kdist.cli.topics_apply import apply
from kdist.errors import ApiError, Error
from kdist.model import ZERO_UUID, TopicPartition
from kdist.storage.meta import format_uuid

if TYPE_CHECKING:
    from kdist.client.cluster import Cluster
    from kdist.protocol.create_topics import NewTopicResult
    from kdist.protocol.metadata import MetadataPartitionResult, MetadataTopicResult

_TOPICS = (
    Column("TOPIC"),
    Column("PARTITIONS", is_number=True),
    Column("REPLICAS", is_number=True),
    Column("ID"),
)
_PARTITIONS = (
    Column("PARTITION", is_number=True),
    Column("LEADER", is_number=True),
    Column("REPLICAS"),
    Column("ISR"),
    Column("START", is_number=True),
    Column("END", is_number=True),
    Column("RECORDS", is_number=True),
)

zookeeper_option = click.option(
    "--zookeeper",
    envvar="KDIST_ZOOKEEPER",
    show_envvar=True,
    metavar="HOST:PORT[/PATH]",
    help="The cluster's ZooKeeper, where topics' settings are kept.",
)


@click.group()
def topics() -> None:
    """Create, list, describe, alter and delete topics, or apply a file of them."""


topics.add_command(apply)


# create


@topics.command()
@click.argument("names", metavar="TOPIC...", nargs=-1, required=True)
@click.option(
    "--partitions", type=click.IntRange(min=1), help="How many; else the broker's num.partitions."
)
@click.option(
    "--replication-factor",
    type=click.IntRange(min=1),
    help="Replicas of each partition; else the broker's default.",
)
@click.option(
    "--config", "given", metavar="NAME=VALUE", multiple=True, help="A setting; may be repeated."
)
@click.option("--if-not-exists", is_flag=True, help="Leave a topic that exists as it is.")
@broker_option
@json_option
def create(
    names: tuple[str, ...],
    partitions: int | None,
    replication_factor: int | None,
    given: tuple[str, ...],
    if_not_exists: bool,
    broker: str,
    as_json: bool,
) -> None:
    """Create topics.

    \b
    Examples:
      kdist topics create clicks --partitions 3
      kdist topics create clicks --config retention.ms=86400000 --if-not-exists
    """
    settings = parse_given(given, "--config")

    async def work(cluster: Cluster) -> None:
        from kdist.client.admin import create_topic

        for name in names:
            try:
                made = await create_topic(
                    cluster, name, partitions or -1, replication_factor or -1, settings
                )
            except ApiError as error:
                if error.error is Error.TOPIC_ALREADY_EXISTS and if_not_exists:
                    _say(as_json, f"Topic {name} exists already.", topic=name, created=False)
                    continue
                raise
            count = made.num_partitions if made.num_partitions > 0 else (partitions or 1)
            shown = show_count(count, "partition")
            sentence = f"Created topic {name} with {shown}."
            _say(as_json, sentence, topic=name, created=True, partitions=count, id=_id(made))

    ask_cluster(broker, work)


# list


@topics.command("list")
@click.option("--internal", is_flag=True, help="Internal topics too, as __consumer_offsets.")
@broker_option
@json_option
def list_them(internal: bool, broker: str, as_json: bool) -> None:
    """List the topics."""
    from kdist.client.admin import list_topics

    found = [
        topic for topic in ask_cluster(broker, list_topics) if internal or not topic.is_internal
    ]
    if as_json:
        for topic in found:
            print_json(
                {
                    "topic": topic.name,
                    "id": _id(topic),
                    "partitions": len(topic.partitions),
                    "replication_factor": _replication_factor(topic),
                    "internal": topic.is_internal,
                }
            )
    elif not print_table(_TOPICS, (Row(_topic_cells(topic)) for topic in found)):
        click.echo("There are no topics: `kdist topics create NAME` makes one.")


def _topic_cells(topic: MetadataTopicResult) -> tuple[str, ...]:
    count, factor = len(topic.partitions), _replication_factor(topic)
    return topic.name or "", str(count), str(factor), _id(topic) or "-"


# describe


@topics.command()
@click.argument("names", metavar="[TOPIC...]", nargs=-1)
@zookeeper_option
@broker_option
@json_option
def describe(names: tuple[str, ...], zookeeper: str | None, broker: str, as_json: bool) -> None:
    """Show leader, replicas, in-sync replicas and offsets of each partition.

    Without a name, of every topic that is not internal. RECORDS counts offsets, which compaction
    leaves gaps in. A topic's own settings are shown if --zookeeper is given.
    """

    async def work(cluster: Cluster) -> None:
        from kdist.client.admin import pick_topics

        found = await pick_topics(cluster, names)
        shown = [topic for topic in found if names or not topic.is_internal]
        settings = await _settings_of(zookeeper, [topic.name or "" for topic in shown])
        show = _describe_json if as_json else _describe_text
        for topic in shown:
            show(topic, await _offsets(cluster, topic), settings.get(topic.name or ""))

    ask_cluster(broker, work)


Offsets = dict[int, tuple[int, int]]  # start and end by partition


async def _offsets(cluster: Cluster, topic: MetadataTopicResult) -> Offsets:
    """Of the partitions that have a leader to ask."""
    from kdist.client.positions import find_offsets
    from kdist.protocol.list_offsets import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP

    led = [
        TopicPartition(topic.name or "", each.partition_index)
        for each in topic.partitions
        if each.leader_id >= 0
    ]
    starts = await find_offsets(cluster, led, EARLIEST_TIMESTAMP)
    ends = await find_offsets(cluster, led, LATEST_TIMESTAMP)
    return {each.partition: (starts[each], ends[each]) for each in led}


def _describe_text(
    topic: MetadataTopicResult, offsets: Offsets, settings: dict[str, str] | None
) -> None:
    count = show_count(len(topic.partitions), "partition")
    click.echo(f"{topic.name}  {count}, replication factor {_replication_factor(topic)}")
    for name, value in (settings or {}).items():
        click.echo(f"  {name}={value}")
    print_table(_PARTITIONS, _partition_rows(topic, offsets), indent=2)
    click.echo()


def _partition_rows(topic: MetadataTopicResult, offsets: Offsets) -> Iterator[Row]:
    for each in topic.partitions:
        found = offsets.get(each.partition_index)
        start, end, count = (*found, found[1] - found[0]) if found else ("-", "-", "-")
        leader = str(each.leader_id) if each.leader_id >= 0 else "none"
        cells = (str(each.partition_index), leader, _ids(each.replica_nodes), _ids(each.isr_nodes))
        yield Row((*cells, str(start), str(end), str(count)))


def _describe_json(
    topic: MetadataTopicResult, offsets: Offsets, settings: dict[str, str] | None
) -> None:
    row: dict[str, object] = {
        "topic": topic.name,
        "id": _id(topic),
        "internal": topic.is_internal,
        "replication_factor": _replication_factor(topic),
        "partitions": [_partition_json(each, offsets) for each in topic.partitions],
    }
    if settings is not None:
        row["settings"] = settings
    print_json(row)


def _partition_json(each: MetadataPartitionResult, offsets: Offsets) -> dict[str, object]:
    start, end = offsets.get(each.partition_index, (None, None))
    return {
        "partition": each.partition_index,
        "leader": each.leader_id if each.leader_id >= 0 else None,
        "leader_epoch": each.leader_epoch,
        "replicas": each.replica_nodes,
        "isr": each.isr_nodes,
        "start_offset": start,
        "end_offset": end,
    }


# alter


@topics.command()
@click.argument("name", metavar="TOPIC")
@click.option("--partitions", type=click.IntRange(min=1), help="How many in all; only more.")
@click.option(
    "--config", "given", metavar="NAME=VALUE", multiple=True, help="Set it; may be repeated."
)
@click.option(
    "--unset", "removed", metavar="NAME", multiple=True, help="Back to the broker's value."
)
@zookeeper_option
@broker_option
def alter(
    name: str,
    partitions: int | None,
    given: tuple[str, ...],
    removed: tuple[str, ...],
    zookeeper: str | None,
    broker: str,
) -> None:
    """Add partitions to a topic, or change its settings.

    Records stay where they are when partitions are added, and keys go elsewhere from then on.
    Settings are changed in ZooKeeper, so --zookeeper must be given with them.

    \b
    Examples:
      kdist topics alter clicks --partitions 6
      kdist topics alter clicks --config retention.ms=86400000 --zookeeper 127.0.0.1:9091
    """
    settings = parse_given(given, "--config")
    changes_settings = bool(settings or removed)
    if not changes_settings and partitions is None:
        raise click.UsageError("Say what to change: --partitions, --config or --unset.")
    if changes_settings and not zookeeper:
        raise click.UsageError("Settings are kept in ZooKeeper: give its address by --zookeeper.")

    async def work(cluster: Cluster) -> None:
        from kdist.client.admin import grow_topic, pick_topics

        await pick_topics(cluster, [name])
        if changes_settings:
            assert zookeeper
            await _change_settings(zookeeper, name, settings, removed)
        if partitions is not None:
            await grow_topic(cluster, name, partitions)
            click.echo(f"Topic {name} has {show_count(partitions, 'partition')} now.")

    ask_cluster(broker, work)


# delete


@topics.command()
@click.argument("names", metavar="TOPIC...", nargs=-1, required=True)
@click.option("--if-exists", is_flag=True, help="Let pass a topic that does not exist.")
@broker_option
@json_option
def delete(names: tuple[str, ...], if_exists: bool, broker: str, as_json: bool) -> None:
    """Delete topics with all their records. Nothing brings them back."""

    async def work(cluster: Cluster) -> None:
        from kdist.client.admin import delete_topic, list_topics, pick_topics

        known = {topic.name for topic in await list_topics(cluster)}
        if not if_exists:
            await pick_topics(cluster, names)  # all or none
        for name in dict.fromkeys(names):
            if name in known:
                await delete_topic(cluster, name)
                _say(as_json, f"Deleted topic {name}.", topic=name, deleted=True)
            else:
                _say(as_json, f"There is no topic {name}.", topic=name, deleted=False)

    ask_cluster(broker, work)


# What they share


async def _settings_of(zookeeper: str | None, topics: list[str]) -> dict[str, dict[str, str]]:
    """Each topic's own settings; of none where nobody says who keeps them."""
    if not zookeeper:
        return {}
    from kdist.client.topic_settings import topic_settings, zookeeper_at

    async with zookeeper_at(zookeeper) as keeper:
        return {topic: await topic_settings(keeper, topic) for topic in topics}


async def _change_settings(
    zookeeper: str, topic: str, given: dict[str, str], removed: tuple[str, ...]
) -> None:
    from kdist.client.topic_settings import change_topic_settings, zookeeper_at

    async with zookeeper_at(zookeeper) as keeper:
        now = await change_topic_settings(keeper, topic, given, removed)
    shown = ", ".join(f"{name}={value}" for name, value in now.items())
    click.echo(f"Topic {topic} has {shown or 'no settings of its own'} now.")


def _say(as_json: bool, sentence: str, **row: object) -> None:
    if as_json:
        print_json(row)
    else:
        click.echo(sentence)


def _replication_factor(topic: MetadataTopicResult) -> int:
    return max((len(each.replica_nodes) for each in topic.partitions), default=0)


def _ids(brokers: list[int]) -> str:
    return ",".join(map(str, brokers)) or "-"


def _id(topic: MetadataTopicResult | NewTopicResult) -> str | None:
    return None if topic.topic_id == ZERO_UUID else format_uuid(topic.topic_id)
