"""`kdist topics list` and `describe`: partitions, leaders and ISRs, how far replicas are behind.

The brokers are asked. What only ZooKeeper knows, who is eligible besides the ISR, is read there, if
it is named.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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
from kdist.cli.topics.change import alter, create, delete, delete_records
from kdist.model import OffsetRange, TopicPartition, format_uuid

if TYPE_CHECKING:
    from kdist.client.admin.replicas import ReplicaState
    from kdist.client.admin.topics import Partition, Topic
    from kdist.client.cluster import Cluster
    from kdist.zk.values import PartitionState

_TOPICS: tuple[Field[Topic], ...] = (
    Field("TOPIC", lambda each: each.name, "topic"),
    Field("", lambda each: show_id(each), "id"),
    Field("PARTITIONS", lambda each: len(each.partitions), "partitions", is_number=True),
    Field("REPLICAS", lambda each: each.replication_factor, "replication_factor", is_number=True),
    Field("", lambda each: _moving(each), "moving"),
    Field("", lambda each: each.is_internal, "internal"),
    Field("ID", lambda each: show_id(each)),
)

_MOVING: Field[Topic] = Field("MOVING", lambda each: _moving(each), is_number=True)


def _moving(topic: Topic) -> int:
    """How many partitions are being moved."""
    return sum(each.is_moving for each in topic.partitions)


@click.group(cls=CommandGroup)
def topics() -> None:
    """Create, list, describe, alter and delete topics, or apply a file of them."""


for command in (apply, create, alter, delete, delete_records):
    topics.add_command(command)


@topics.command("list")
@click.option(
    "--internal", is_flag=True, help="Show internal topics too, such as __consumer_offsets."
)
@client_options()
@json_option
def list_them(internal: bool, clients: Clients, as_json: bool) -> None:
    """List the topics.

    REPLICAS is how many are wanted of each partition, whatever a move adds on its way; MOVING says
    of how many partitions replicas are being moved, while there are any.
    """
    from kdist.client.admin.reassignments import with_moves
    from kdist.client.admin.topics import list_topics

    async def work(cluster: Cluster) -> list[Topic]:
        found = await list_topics(cluster)
        return await with_moves(cluster, (e for e in found if internal or not e.is_internal))

    shown = ask_cluster(clients, work)
    fields = (*_TOPICS, _MOVING) if any(map(_moving, shown)) else _TOPICS
    print_rows(fields, shown, as_json=as_json, if_none=NO_TOPICS)


NO_TOPICS = "There are no topics: `kdist topics create NAME` creates one."


class Besides(NamedTuple):
    """What is shown besides the usual, of all topics; None for what was not asked for."""

    replicas: Mapping[TopicPartition, Sequence[ReplicaState]] | None
    states: Mapping[TopicPartition, PartitionState] | None


class Located(NamedTuple):
    """A partition with its offsets, None if it has no leader to ask; and what was asked for."""

    partition: Partition
    start: int | None = None
    end: int | None = None
    replicas: Sequence[ReplicaState] | None = None
    state: PartitionState | None = None

    @property
    def offset_count(self) -> int | None:
        return None if self.start is None or self.end is None else self.end - self.start


def show_id(topic: Topic) -> str | None:
    """The topic's id as text."""
    return None if topic.id is None else format_uuid(topic.id)


def _ids(brokers: Sequence[int]) -> str:
    return ",".join(map(str, brokers)) or "-"


def _state(replica: ReplicaState, partition: Partition) -> str:
    if replica.end_offset is None:
        return "silent"
    if replica.is_leader:
        return "leader"
    if replica.is_in_sync:
        return "in sync"
    return "adding" if replica.broker in partition.adding else "behind"


def _age(ms: int | None) -> str:
    return "-" if ms is None else f"{ms / 1000:.1f} s"


def _leader(broker: int | None) -> str:
    return "none" if broker is None else str(broker)


def _yes(is_so: bool) -> str:
    return "yes" if is_so else "-"


_REPLICAS: tuple[Field[tuple[Located, ReplicaState]], ...] = (
    Field("PARTITION", lambda row: row[0].partition.number, is_number=True),
    Field("REPLICA", lambda row: row[1].broker, "broker", is_number=True),
    Field("STATE", lambda row: _state(row[1], row[0].partition), "state"),
    Field("END", lambda row: row[1].end_offset, "end_offset", is_number=True),
    Field("BEHIND", lambda row: row[1].lag_records, "lag_records", is_number=True),
    Field("BYTES", lambda row: row[1].lag_bytes, "lag_bytes", show_size, is_number=True),
    Field("AGE", lambda row: row[1].lag_ms, "lag_ms", _age, is_number=True),
)
_PARTITIONS: tuple[Field[Located], ...] = (
    Field("PARTITION", lambda each: each.partition.number, "partition", is_number=True),
    Field("LEADER", lambda each: each.partition.leader, "leader", _leader, is_number=True),
    Field("", lambda each: each.partition.leader_epoch, "leader_epoch"),
    Field("REPLICAS", lambda each: each.partition.replicas, "replicas", _ids),
    Field("ISR", lambda each: each.partition.isr, "isr", _ids),
    Field("", lambda each: each.partition.adding, "adding"),
    Field("", lambda each: each.partition.removing, "removing"),
    Field("START", lambda each: each.start, "start_offset", is_number=True),
    Field("END", lambda each: each.end, "end_offset", is_number=True),
    Field("OFFSETS", lambda each: each.offset_count, is_number=True),
    Field("", lambda each: _replica_rows(each), "replica_states"),
)
_MOVES: tuple[Field[Located], ...] = (
    Field("ADDING", lambda each: each.partition.adding, show=_ids),
    Field("REMOVING", lambda each: each.partition.removing, show=_ids),
)
_STATES: tuple[Field[PartitionState], ...] = (
    Field("ELIGIBLE", lambda each: each.eligible, "eligible", _ids),
    Field("NEW DISK", lambda each: each.emptied, "emptied", _ids),
    Field("RECOVERING", lambda each: each.is_recovering, "recovering", _yes),
)


def _replica_rows(each: Located) -> object:
    if each.replicas is None:
        return OMITTED
    return [json_row(_REPLICAS, (each, state)) for state in each.replicas]


@topics.command()
@names_argument("[TOPIC...]", complete_topics)
@click.option(
    "--replicas", is_flag=True, help="Every replica, with how far it is behind the leader."
)
@click.option(
    "--zookeeper",
    metavar="HOST:PORT[/PATH]",
    help="The cluster's ZooKeeper, for what only it knows: who is eligible besides the ISR.",
)
@client_options()
@json_option
def describe(
    names: tuple[str, ...], replicas: bool, zookeeper: str | None, clients: Clients, as_json: bool
) -> None:
    """Show each partition's leader, replicas, ISR and offsets, and the topic's own settings.

    Without a name, shows every topic that is not internal. OFFSETS is END less START: after
    compaction there are fewer records. `kdist configs describe topic TOPIC` shows all settings.
    While partitions are moved, ADDING and REMOVING are the replicas that they are to get, and to
    lose; the replication factor is the one that is wanted.

    With --replicas each broker is asked: BEHIND is how many records the leader has and the replica
    lacks, BYTES how much larger the leader's log is, AGE how old the oldest committed record is
    that it lacks, by that record's timestamp. A broker that does not answer is silent.

    With --zookeeper, ELIGIBLE are the replicas that may lead if all of the ISR are gone, as they
    have all committed records; those with a NEW DISK may not, and a partition is RECOVERING
    whose leader was elected though committed records may be lost.
    """
    show = _describe_json if as_json else _describe_text

    async def work(cluster: Cluster) -> None:
        from kdist.cli.shared.settings import own_settings
        from kdist.client.admin.reassignments import with_moves
        from kdist.client.admin.topics import describe_topics, list_topics

        shown: Sequence[Topic]
        if names:
            shown = list((await describe_topics(cluster, names)).values())
        else:
            shown = [topic for topic in await list_topics(cluster) if not topic.is_internal]
        shown = await with_moves(cluster, shown)
        settings = await own_settings(cluster, [topic.name for topic in shown])
        besides = await _look(cluster, shown, replicas, zookeeper)
        for topic in shown:
            parts = await _locate(cluster, topic, besides)
            show(topic, parts, _fields(besides), settings.get(topic.name))
        if not shown and not as_json:
            click.echo(NO_TOPICS)

    ask_cluster(clients, work)


async def _look(
    cluster: Cluster, topics: Sequence[Topic], with_replicas: bool, zookeeper: str | None
) -> Besides:
    replicas = states = None
    if with_replicas:
        from kdist.client.admin.replicas import describe_replicas
        from kdist.runtime.clock import SystemClock

        replicas = await describe_replicas(cluster, topics, SystemClock().now_ms())
    if zookeeper is not None:
        from kdist.client import zookeeper_session
        from kdist.ops.cluster_view import read_states

        parts = [TopicPartition(t.name, each.number) for t in topics for each in t.partitions]
        async with zookeeper_session.zookeeper_at(zookeeper) as keeper:
            states = await read_states(keeper, parts)
    return Besides(replicas, states)


async def _locate(cluster: Cluster, topic: Topic, besides: Besides) -> list[Located]:
    """The partitions, with the offsets of those that have a leader."""
    from kdist.client.offsets import find_ranges

    parts = {TopicPartition(topic.name, each.number): each for each in topic.partitions}
    led = [partition for partition, each in parts.items() if each.leader is not None]
    found = await find_ranges(cluster, led)
    replicas, states = besides.replicas or {}, besides.states or {}
    return [
        Located(each, *_ends(found.get(key)), replicas.get(key), states.get(key))
        for key, each in parts.items()
    ]


def _ends(found: OffsetRange | None) -> tuple[int | None, int | None]:
    return (None, None) if found is None else (found.start, found.end)


def _known_state(each: Located) -> PartitionState | None:
    return each.state


def _fields(besides: Besides) -> tuple[Field[Located], ...]:
    if besides.states is None:
        return _PARTITIONS
    return (*_PARTITIONS, *(field.of(_known_state) for field in _STATES))


def _describe_text(
    topic: Topic,
    parts: list[Located],
    fields: Sequence[Field[Located]],
    settings: dict[str, str] | None,
) -> None:
    count = show_count(len(parts), "partition")
    moving = sum(each.is_moving for each in topic.partitions)
    moves = f", {moving} moving" if moving else ""
    click.echo(f"{topic.name}  {count}, replication factor {topic.replication_factor}{moves}")
    for name, value in (settings or {}).items():
        click.echo(f"  {name}={value}")
    print_rows((*fields, *_MOVES) if moving else fields, parts, indent=2)
    print_rows(
        _REPLICAS, [(each, state) for each in parts for state in each.replicas or ()], indent=2
    )
    click.echo()


def _describe_json(
    topic: Topic,
    parts: list[Located],
    fields: Sequence[Field[Located]],
    settings: dict[str, str] | None,
) -> None:
    row: dict[str, object] = {
        "topic": topic.name,
        "id": show_id(topic),
        "internal": topic.is_internal,
        "replication_factor": topic.replication_factor,
        "partitions": [json_row(fields, each) for each in parts],
    }
    if settings is not None:
        row["settings"] = settings
    print_json(row)
