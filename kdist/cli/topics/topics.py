"""`kdist topics`: lists and describes topics; `topics_*.py` have the commands that change them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import click

from kdist.cli.shared.command_group import CommandGroup
from kdist.cli.shared.completing import complete_topics
from kdist.cli.shared.connecting import ask_cluster, broker_option
from kdist.cli.shared.options import json_option, not_empty, print_json
from kdist.cli.shared.show import show_count
from kdist.cli.shared.table import Column, Row, print_table
from kdist.cli.topics.apply import apply
from kdist.cli.topics.change import alter, create, delete
from kdist.cli.topics.records import delete_records
from kdist.model import OffsetRange, TopicPartition, format_uuid

if TYPE_CHECKING:
    from kdist.client.admin.topics import Partition, Topic
    from kdist.client.cluster import Cluster

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


_NO_TOPICS = "There are no topics: `kdist topics create NAME` creates one."


@click.group(cls=CommandGroup)
def topics() -> None:
    """Create, list, describe, alter and delete topics, or apply a file of them."""


for command in (apply, create, alter, delete, delete_records):
    topics.add_command(command)


# list


@topics.command("list")
@click.option(
    "--internal", is_flag=True, help="Show internal topics too, such as __consumer_offsets."
)
@broker_option
@json_option
def list_them(internal: bool, broker: str, as_json: bool) -> None:
    """List the topics."""
    from kdist.client.admin.topics import list_topics

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
                    "replication_factor": topic.replication_factor,
                    "internal": topic.is_internal,
                }
            )
    elif not print_table(_TOPICS, (Row(_topic_cells(topic)) for topic in found)):
        click.echo(_NO_TOPICS)


def _topic_cells(topic: Topic) -> tuple[str, ...]:
    count, factor = len(topic.partitions), topic.replication_factor
    return topic.name, str(count), str(factor), _id(topic) or "-"


def _id(topic: Topic) -> str | None:
    return None if topic.id is None else format_uuid(topic.id)


# describe


@topics.command()
@click.argument(
    "names", metavar="[TOPIC...]", nargs=-1, callback=not_empty, shell_complete=complete_topics
)
@broker_option
@json_option
def describe(names: tuple[str, ...], broker: str, as_json: bool) -> None:
    """Show each partition's leader, replicas, ISR and offsets, and the topic's own settings.

    Without a name, shows every topic that is not internal. RECORDS counts offsets, so after
    compaction there are fewer records. `kdist configs describe topic TOPIC` shows all settings.
    """

    async def work(cluster: Cluster) -> None:
        from kdist.cli.shared.settings_shown import own_settings
        from kdist.client.admin.topics import describe_topics, list_topics

        shown: Sequence[Topic]
        if names:
            shown = list((await describe_topics(cluster, names)).values())
        else:
            shown = [topic for topic in await list_topics(cluster) if not topic.is_internal]
        settings = await own_settings(cluster, [topic.name for topic in shown])
        show = _describe_json if as_json else _describe_text
        for topic in shown:
            show(topic, await _offsets(cluster, topic), settings.get(topic.name))
        if not shown and not as_json:
            click.echo(_NO_TOPICS)

    ask_cluster(broker, work)


Offsets = dict[int, OffsetRange]  # by partition


async def _offsets(cluster: Cluster, topic: Topic) -> Offsets:
    """The offsets of the partitions that have a leader."""
    from kdist.client.offsets import find_ranges

    led = [
        TopicPartition(topic.name, each.number)
        for each in topic.partitions
        if each.leader is not None
    ]
    return {each.partition: found for each, found in (await find_ranges(cluster, led)).items()}


def _describe_text(topic: Topic, offsets: Offsets, settings: dict[str, str] | None) -> None:
    count = show_count(len(topic.partitions), "partition")
    click.echo(f"{topic.name}  {count}, replication factor {topic.replication_factor}")
    for name, value in (settings or {}).items():
        click.echo(f"  {name}={value}")
    print_table(_PARTITIONS, _partition_rows(topic, offsets), indent=2)
    click.echo()


def _partition_rows(topic: Topic, offsets: Offsets) -> Iterator[Row]:
    for each in topic.partitions:
        found = offsets.get(each.number)
        start, end, count = (*found, found[1] - found[0]) if found else ("-", "-", "-")
        leader = "none" if each.leader is None else str(each.leader)
        cells = (str(each.number), leader, _ids(each.replicas), _ids(each.isr))
        yield Row((*cells, str(start), str(end), str(count)))


def _ids(brokers: Sequence[int]) -> str:
    return ",".join(map(str, brokers)) or "-"


def _describe_json(topic: Topic, offsets: Offsets, settings: dict[str, str] | None) -> None:
    row: dict[str, object] = {
        "topic": topic.name,
        "id": _id(topic),
        "internal": topic.is_internal,
        "replication_factor": topic.replication_factor,
        "partitions": [_partition_json(each, offsets) for each in topic.partitions],
    }
    if settings is not None:
        row["settings"] = settings
    print_json(row)


def _partition_json(each: Partition, offsets: Offsets) -> dict[str, object]:
    start, end = offsets.get(each.number, (None, None))
    return {
        "partition": each.number,
        "leader": each.leader,
        "leader_epoch": each.leader_epoch,
        "replicas": each.replicas,
        "isr": each.isr,
        "start_offset": start,
        "end_offset": end,
    }
