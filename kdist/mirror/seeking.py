"""A position chosen by an operator: a commit with a note that overrides the target's log.

It never moves a mirror back: the target's brokers would take batches with old sequences for
duplicates. A seek in a recreated topic also makes the new topic the origin of the target's.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import NamedTuple

from kdist.client.admin.offsets import HAS_MEMBERS, alter_group_offsets
from kdist.client.admin.topics import describe_topics
from kdist.client.cluster import Cluster
from kdist.client.offsets import OffsetAndMetadata, find_ranges
from kdist.config.mirror import Flow
from kdist.errors import ApiError, Error, UserError
from kdist.mirror.origins import read_origins, write_origins
from kdist.mirror.position_lookup import SOUGHT, look_up_position
from kdist.mirror.position_marker import mark_of
from kdist.mirror.selection import Origin
from kdist.model import TopicPartition


class Sought(NamedTuple):
    """From where the mirror will go on in each partition, and which topics were recreated.

    Of those the target has other records before these offsets, and takes none of the new ones.
    """

    offsets: dict[TopicPartition, int]
    recreated: frozenset[str]


async def seek(
    flow: Flow,
    source: Cluster,
    target: Cluster,
    offsets: Mapping[TopicPartition, int],
    now_ms: int,
) -> Sought:
    """Commit `offsets` as positions; returns those from which the mirror will really go on.

    They are larger where the target has later records already. `ApiError`, also if the mirror is
    running. `UserError` for only some of the partitions of a recreated topic.
    """
    cluster_id = (await source.metadata()).cluster_id or ""
    origins = await _origins(flow, (source, cluster_id), target, offsets)
    found = {}
    for each, offset in offsets.items():
        there = TopicPartition(flow.renamed(each.topic), each.partition)
        found[each] = offset
        if await _exists(target, there):
            sought = OffsetAndMetadata(offset, SOUGHT)
            offsets_there = (await find_ranges(target, [there]))[there]
            mark = mark_of(cluster_id, each)
            known = await look_up_position(target, there, mark, sought, offsets_there)
            found[each] = max(offset, known.position or 0)
    try:
        await alter_group_offsets(source, flow.group, offsets, SOUGHT)
    except ApiError as error:
        if error.error in HAS_MEMBERS:
            sentence = f"the mirror of group {flow.group} is running: stop it first"
            raise ApiError(error.error, sentence) from None
        raise
    if origins:
        await write_origins(target, origins, now_ms)
    return Sought(
        found, frozenset(each.topic for each in offsets if flow.renamed(each.topic) in origins)
    )


async def _origins(
    flow: Flow,
    source_and_id: tuple[Cluster, str],
    target: Cluster,
    sought: Collection[TopicPartition],
) -> dict[str, Origin]:
    """The new origins of recreated topics, by their names in the target."""
    source, cluster_id = source_and_id
    noted = await read_origins(target)
    found: dict[str, Origin] = {}
    for topic in (await describe_topics(source, {each.topic for each in sought})).values():
        name = flow.renamed(topic.name)
        if name not in noted or topic.id is None:
            continue
        known = noted[name].from_topic(topic.name, cluster_id)
        if known is None:
            continue
        origin = known._replace(id=str(topic.id))
        if noted[name].is_recreated(origin):
            if any((topic.name, each.number) not in sought for each in topic.partitions):
                raise UserError(f"{topic.name} was recreated: seek in all of its partitions")
            found[name] = noted[name].seen_again(origin)
    return found


async def _exists(cluster: Cluster, partition: TopicPartition) -> bool:
    (topic,) = (await cluster.metadata([partition.topic])).topics
    if topic.error_code == Error.UNKNOWN_TOPIC_OR_PARTITION:
        return False
    return any(each.partition_index == partition.partition for each in topic.partitions)
