"""`kdist topics`: lists and describes topics; `topics_*.py` have the commands that change them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import click

from kdist.cli.shared.click_groups import CommandGroup
from kdist.cli.shared.client_settings import Clients, client_options
from kdist.cli.shared.completing import complete_topics
from kdist.cli.shared.connecting import ask_cluster
from kdist.cli.shared.options import json_option, names_argument, print_json
from kdist.cli.shared.show import show_count, show_size
from kdist.cli.shared.table import OMITTED, Field, json_row, print_rows
from kdist.cli.topics.apply import apply
from kdist.cli.topics.change import alter, create, delete
from kdist.cli.topics.records import delete_records
from kdist.model import TopicPartition, format_uuid

if TYPE_CHECKING:
    from kdist.client.admin.replicas import ReplicaState
    from kdist.client.admin.topics import Partition, Topic
    from kdist.client.cluster import Cluster


class Located(NamedTuple):
    """A partition with its offsets, None if it has no leader to ask; its replicas if asked for."""

    partition: Partition
    start: int | None = None
    end: int | None = None
    replicas: Sequence[ReplicaState] | None = None

    @property
    def record_count(self) -> int | None:
        """How many offsets; after compaction there are fewer records."""
        return None if self.start is None or self.end is None else self.end - self.start


def _ids(brokers: Sequence[int]) -> str:
    return ",".join(map(str, brokers)) or "-"


def _state(replica: ReplicaState) -> str:
    if replica.end_offset is None:
        return "silent"
    if replica.is_leader:
        return "leader"
    return "in sync" if replica.is_in_sync else "behind"


def _size(size_bytes: int | None) -> str:
    return "-" if size_bytes is None else show_size(size_bytes)


def _age(ms: int | None) -> str:
    return "-" if ms is None else f"{ms / 1000:.1f} s"


def _leader(broker: int | None) -> str:
    return "none" if broker is None else str(broker)


_TOPICS: tuple[Field[Topic], ...] = (
    Field("TOPIC", lambda each: each.name, "topic"),
    Field("", lambda each: _id(each), "id"),
    Field("PARTITIONS", lambda each: len(each.partitions), "partitions", is_number=True),
    Field("REPLICAS", lambda each: each.replication_factor, "replication_factor", is_number=True),
    Field("", lambda each: each.is_internal, "internal"),
    Field("ID", lambda each: _id(each)),
)
_PARTITIONS: tuple[Field[Located], ...] = (
    Field("PARTITION", lambda each: each.partition.number, "partition", is_number=True),
    Field("LEADER", lambda each: each.partition.leader, "leader", _leader, is_number=True),
    Field("", lambda each: each.partition.leader_epoch, "leader_epoch"),
    Field("REPLICAS", lambda each: each.partition.replicas, "replicas", _ids),
    Field("ISR", lambda each: each.partition.isr, "isr", _ids),
    Field("START", lambda each: each.start, "start_offset", is_number=True),
    Field("END", lambda each: each.end, "end_offset", is_number=True),
    Field("RECORDS", lambda each: each.record_count, is_number=True),
    Field("", lambda each: _replica_rows(each), "replica_states"),
)
_REPLICAS: tuple[Field[tuple[Located, ReplicaState]], ...] = (
    Field("PARTITION", lambda row: row[0].partition.number, is_number=True),
    Field("REPLICA", lambda row: row[1].broker, "broker", is_number=True),
    Field("STATE", lambda row: _state(row[1]), "state"),
    Field("END", lambda row: row[1].end_offset, "end_offset", is_number=True),
    Field("BEHIND", lambda row: row[1].lag_records, "lag_records", is_number=True),
    Field("BYTES", lambda row: row[1].lag_bytes, "lag_bytes", _size, is_number=True),
    Field("AGE", lambda row: row[1].lag_ms, "lag_ms", _age, is_number=True),
)
_NO_TOPICS = "There are no topics: `kdist topics create NAME` creates one."


def _replica_rows(each: Located) -> object:
    if each.replicas is None:
        return OMITTED
    return [json_row(_REPLICAS, (each, state)) for state in each.replicas]


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
@client_options()
@json_option
def list_them(internal: bool, clients: Clients, as_json: bool) -> None:
    """List the topics."""
    from kdist.client.admin.topics import list_topics

    found = ask_cluster(clients, list_topics)
    shown = (topic for topic in found if internal or not topic.is_internal)
    print_rows(_TOPICS, shown, as_json=as_json, if_none=_NO_TOPICS)


def _id(topic: Topic) -> str | None:
    return None if topic.id is None else format_uuid(topic.id)


# describe


@topics.command()
@names_argument("[TOPIC...]", complete_topics)
@click.option(
    "--replicas", is_flag=True, help="Every replica, with how far it is behind the leader."
)
@client_options()
@json_option
def describe(names: tuple[str, ...], replicas: bool, clients: Clients, as_json: bool) -> None:
    """Show each partition's leader, replicas, ISR and offsets, and the topic's own settings.

    Without a name, shows every topic that is not internal. RECORDS counts offsets, so after
    compaction there are fewer records. `kdist configs describe topic TOPIC` shows all settings.

    With --replicas each broker is asked: BEHIND is how many records the leader has and the replica
    lacks, BYTES how much larger the leader's log is, AGE how old the oldest committed record is
    that it lacks, by that record's timestamp. A broker that does not answer is silent.
    """

    async def work(cluster: Cluster) -> None:
        from kdist.cli.shared.settings import own_settings
        from kdist.client.admin.topics import describe_topics, list_topics

        shown: Sequence[Topic]
        if names:
            shown = list((await describe_topics(cluster, names)).values())
        else:
            shown = [topic for topic in await list_topics(cluster) if not topic.is_internal]
        settings = await own_settings(cluster, [topic.name for topic in shown])
        show = _describe_json if as_json else _describe_text
        for topic in shown:
            parts = await _locate(cluster, topic, with_replicas=replicas)
            show(topic, parts, settings.get(topic.name))
        if not shown and not as_json:
            click.echo(_NO_TOPICS)

    ask_cluster(clients, work)


async def _locate(cluster: Cluster, topic: Topic, *, with_replicas: bool) -> list[Located]:
    """The partitions, with the offsets of those that have a leader."""
    from kdist.client.admin.replicas import describe_replicas
    from kdist.client.offsets import find_ranges
    from kdist.runtime.clock import SystemClock

    parts = {TopicPartition(topic.name, each.number): each for each in topic.partitions}
    led = [partition for partition, each in parts.items() if each.leader is not None]
    found = await find_ranges(cluster, led)
    located = [Located(each, *found.get(partition, ())) for partition, each in parts.items()]
    if not with_replicas:
        return located
    states = await describe_replicas(cluster, [topic], SystemClock().now_ms())
    return [each._replace(replicas=states[key]) for key, each in zip(parts, located, strict=True)]


def _describe_text(topic: Topic, parts: list[Located], settings: dict[str, str] | None) -> None:
    count = show_count(len(parts), "partition")
    click.echo(f"{topic.name}  {count}, replication factor {topic.replication_factor}")
    for name, value in (settings or {}).items():
        click.echo(f"  {name}={value}")
    print_rows(_PARTITIONS, parts, indent=2)
    print_rows(
        _REPLICAS, [(each, state) for each in parts for state in each.replicas or ()], indent=2
    )
    click.echo()


def _describe_json(topic: Topic, parts: list[Located], settings: dict[str, str] | None) -> None:
    row: dict[str, object] = {
        "topic": topic.name,
        "id": _id(topic),
        "internal": topic.is_internal,
        "replication_factor": topic.replication_factor,
        "partitions": [json_row(_PARTITIONS, each) for each in parts],
    }
    if settings is not None:
        row["settings"] = settings
    print_json(row)
