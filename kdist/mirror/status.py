"""The lag of a mirror flow, from both clusters, without asking the mirror.

Positions are the offsets that the flow's group has committed in its source. A partition that was
never mirrored is behind by all its records from where the flow would start.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from kdist.client.admin.offsets import group_commits
from kdist.client.cluster import Cluster
from kdist.config.mirror import Flow
from kdist.errors import UserError
from kdist.mirror.copying import count_partitions, refused_topics
from kdist.mirror.flow_topics import ids_if_released, why_gone
from kdist.mirror.lag import Lag, LagMeter, ask_ranges
from kdist.mirror.origins import read_origins
from kdist.mirror.position_lookup import why_stopped
from kdist.mirror.selection import (
    Origin,
    Selection,
    begin_at,
    is_position_lost,
    select,
    vanished,
    without,
)
from kdist.mirror.topic_settings import ask_differing, merged
from kdist.mirror.trouble import position_lost
from kdist.model import TopicPartition


class PartitionStatus(NamedTuple):
    """One partition. `position` is None if it was never mirrored.

    `lost` counts the records that were deleted before they were mirrored. `stopped` is the reason,
    by the last commit, for which its mirror has stopped, or None. `end` and `lag` are None if the
    partition's leader in the source does not answer, for the reason `unknown`.
    """

    source: TopicPartition
    target: TopicPartition
    position: int | None
    end: int | None
    lag: Lag | None
    lost: int
    stopped: str | None
    unknown: str | None = None


class FlowStatus(NamedTuple):
    """One flow: its partitions, and why topics are held back.

    A topic that the target refuses is in both: its records are behind. `unmatched` are patterns
    that match no topic of the source. `differing` has in what copies are not like their topics.
    """

    name: str
    partitions: list[PartitionStatus]
    held: dict[str, str]
    unmatched: tuple[str, ...] = ()
    in_part: frozenset[str] = frozenset()  # held topics of which only some partitions are
    differing: Mapping[str, str] = {}


async def flow_status(flow: Flow, source: Cluster, target: Cluster, now_ms: int) -> FlowStatus:
    """Ask source and target. `ApiError`, `NoBroker`."""
    counts = await count_partitions(source)
    selection = await _selection(flow, source, target, counts)
    committed = await group_commits(source, flow.group)
    noted = await read_origins(target)
    partitions = [
        TopicPartition(topic, number)
        for topic in selection.mirrored
        for number in range(counts[topic])
    ]
    ranges, unknown = await ask_ranges(source, partitions)
    source_id = (await source.metadata()).cluster_id or ""
    begins = {}
    for each, offsets in ranges.items():
        begin = begin_at(flow, each, noted, source_id, selection.returning)
        anew = offsets.start if begin == "earliest" else offsets.end
        begins[each] = committed[each].offset if each in committed else anew
    lags = await LagMeter(source).measure(begins, ranges, now_ms)
    lost_positions = await _lost_positions(
        flow,
        target,
        {each: begin for each, begin in begins.items() if each not in committed},
        (noted, source_id),
        now_ms,
    )
    rows = []
    for each in partitions:
        found, there = committed.get(each), ranges.get(each)
        position, stopped = (found.offset, why_stopped(found.metadata)) if found else (None, None)
        stopped = stopped or lost_positions.get(each)
        lost = max(0, there.start - begins[each]) if there else 0
        name = TopicPartition(flow.renamed(each.topic), each.partition)
        end, lag = there.end if there else None, lags.known.get(each)
        why = unknown.get(each) or lags.unknown.get(each)
        rows.append(PartitionStatus(each, name, position, end, lag, lost, stopped, why))
    refused = await refused_topics(source, target, selection.mirrored, counts)
    gone = await why_gone(vanished(flow, counts, noted, source_id), target)
    held = without(selection, {**refused.topics, **gone}, refused.partitions).held
    in_part = frozenset(refused.partitions)
    settings = await ask_differing(source, target, selection.mirrored)
    differing = merged(refused.larger, settings)
    return FlowStatus(flow.name, rows, held, flow.unmatched(counts), in_part, differing)


async def _lost_positions(
    flow: Flow,
    target: Cluster,
    uncommitted: Mapping[TopicPartition, int],
    origins: tuple[Mapping[str, Origin], str],
    now_ms: int,
) -> dict[TopicPartition, str]:
    """Why those partitions do not go on that had a position once, which has no commit to be in.

    `uncommitted` has where the partitions would begin anew. `origins` are the target's, with the
    source's id.
    """
    noted, source_id = origins
    known: dict[TopicPartition, tuple[TopicPartition, Origin]] = {}
    for each in uncommitted:
        name = flow.renamed(each.topic)
        origin = noted[name].from_topic(each.topic, source_id) if name in noted else None
        if origin is not None:
            known[TopicPartition(name, each.partition)] = each, origin
    ranges, _ = await ask_ranges(target, known)
    return {
        each: str(position_lost(each))
        for name, (each, origin) in known.items()
        if (there := ranges.get(name)) and there.start == there.end
        if is_position_lost(
            origin,
            now_ms,
            is_emptied=there.start > 0,
            would_skip=uncommitted[each] > 0,
        )
    }


async def _selection(
    flow: Flow, source: Cluster, target: Cluster, counts: dict[str, int]
) -> Selection:
    target_id = (await target.metadata()).cluster_id
    if target_id is None:
        raise UserError(f"flow {flow.name}: the target does not say which cluster it is")
    origins = await read_origins(source)
    copies = await ids_if_released(target, origins)
    return select(flow, counts, origins, target_id, copies)
