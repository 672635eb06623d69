"""A mirror flow's topics: selects them, writes their origins, and creates their copies.

A topic is mirrored only after its origin is written to the target and the source's origins are
read again after that; `origins.py` says why in this order. The topic id in the origin distinguishes
a topic from a later one of the same name: the records of the two do not continue each other, even
if their offsets seem to.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping
from typing import Literal

from kdist.client.admin.topics import list_topics
from kdist.client.cluster import Cluster
from kdist.config.mirror import Flow
from kdist.errors import UserError
from kdist.mirror.copying import count_partitions, follow_topics
from kdist.mirror.origins import read_origins, write_origins
from kdist.mirror.position_marker import mark_of
from kdist.mirror.selection import (
    Origin,
    Selection,
    begin_at,
    is_position_lost,
    select,
    vanished,
    without,
)
from kdist.mirror.trouble import Loss, loss_of_topic
from kdist.model import TopicPartition

logger = logging.getLogger(__name__)


class FlowTopics:
    """The topics of one flow. Owner: the flow."""

    def __init__(
        self,
        flow: Flow,
        source: Cluster,
        target: Cluster,
        cluster_ids: tuple[str, str],
        on_ready: Callable[[Collection[str]], None],
    ) -> None:
        """`cluster_ids` are the ids of source and target. `on_ready` is called in `refresh` with
        topics that may be mirrored from then on, while others are still being created.
        """
        self.selection = Selection({}, {})
        self._flow = flow
        self._source = source
        self._target = target
        self._source_id, self._target_id = cluster_ids
        self._on_ready = on_ready
        self.unmatched: tuple[str, ...] = ()  # patterns that match no topic of the source
        self._first_seen: frozenset[str] | None = None  # the source's topics at the first refresh
        self._noted: dict[str, Origin] | None = None  # the origins in the target
        self._known: dict[str, Origin] = {}  # those that were there when we began
        self._recreated: frozenset[str] = frozenset()  # the source's, since they were mirrored
        self._copies: dict[str, str] = {}  # ids of the target's topics, as last seen
        self._recreated_copies: frozenset[str] = frozenset()  # the target's, by the last refresh

    async def refresh(self, now_ms: int) -> Selection:
        """Select topics, write origins, create and grow copies. `ApiError`, `NoBroker`."""
        topics = [each for each in await list_topics(self._source) if not each.is_internal]
        counts = {each.name: len(each.partitions) for each in topics}
        ids = {each.name: str(each.id or "") for each in topics}
        if self._first_seen is None:
            self._first_seen = frozenset(counts)
        old = {name: count if name in self._first_seen else 0 for name, count in counts.items()}
        while True:
            origins = await read_origins(self._source)
            copies = await ids_if_released(self._target, origins)
            selection = select(self._flow, counts, origins, self._target_id, copies)
            wanted = self._origins_of(selection, origins, ids, old, now_ms)
            if not await self._note(wanted, now_ms):
                break
        self._tell_unmatched(counts)
        self.selection = self.selection._replace(returning=selection.returning)
        refused = await follow_topics(
            self._source, self._target, selection.mirrored, counts, self._on_ready
        )
        gone: Mapping[str, str] = {}
        if vanished(self._flow, counts, self._noted or {}, self._source_id):
            self._noted = await read_origins(self._target)  # it may be released by now
            found = vanished(self._flow, counts, self._noted, self._source_id)
            gone = await why_gone(found, self._target)
        selection = without(selection, {**refused.topics, **gone}, refused.partitions)
        selection = selection._replace(larger=refused.larger)
        for topic, larger in selection.larger.items():
            if self.selection.larger.get(topic) != larger:
                logger.warning(
                    "flow %s: topic %s differs from its copy: %s", self._flow.name, topic, larger
                )
        for topic, reason in selection.held.items():
            if self.selection.held.get(topic) != reason:
                what = "is mirrored in part" if topic in selection.mirrored else "is not mirrored"
                logger.warning("flow %s: topic %s %s: %s", self._flow.name, topic, what, reason)
        await self._check_copies()
        self.selection = selection
        return selection

    def _tell_unmatched(self, topics: Collection[str]) -> None:
        unmatched = self._flow.unmatched(topics)
        for pattern in unmatched:
            if pattern not in self.unmatched:
                logger.warning(
                    "flow %s: the pattern %s matches no topic of the source",
                    self._flow.name,
                    pattern,
                )
        self.unmatched = unmatched

    async def _check_copies(self) -> None:
        """Find the target's topics that were recreated since the last refresh, by anyone."""
        now = await topic_ids(self._target)
        before = self._copies
        self._recreated_copies = frozenset(
            name
            for name, id_ in now.items()
            if (known := before.get(name)) and id_ and id_ != known
        )
        self._copies = before | now

    def is_copy_recreated(self, topic: str) -> bool:
        """Whether the target's topic for this one of the source was recreated, by `refresh`."""
        return self._flow.renamed(topic) in self._recreated_copies

    def begin_at(self, partition: TopicPartition) -> Literal["earliest", "latest"]:
        """Where to begin with a partition of the source that was never mirrored."""
        returning = self.selection.returning
        return begin_at(self._flow, partition, self._noted or {}, self._source_id, returning)

    def returning_mark(self, partition: TopicPartition) -> int | None:
        """The mark of the batches of the source that came from the target; None if none did."""
        if partition.topic not in self.selection.returning:
            return None
        there = TopicPartition(self._flow.renamed(partition.topic), partition.partition)
        return mark_of(self._target_id, there)

    def _known_origin(self, topic: str) -> Origin | None:
        """The origin of the copy, if the topic was mirrored before this process began."""
        origin = self._known.get(self._flow.renamed(topic))
        return origin.from_topic(topic, self._source_id) if origin is not None else None

    def is_known(self, topic: str) -> bool:
        """Whether the topic was mirrored before this process began."""
        return self._known_origin(topic) is not None

    def is_position_lost(
        self, topic: str, now_ms: int, *, is_emptied: bool, would_skip: bool
    ) -> bool:
        """Whether nobody knows up to where a partition was mirrored before this process began."""
        noted = self._known_origin(topic)
        return is_position_lost(noted, now_ms, is_emptied=is_emptied, would_skip=would_skip)

    def loss(self, topic: str) -> Loss | None:
        """Why a topic of the source does not continue its copy; None if it does."""
        return loss_of_topic(topic) if topic in self._recreated else None

    def _origins_of(
        self,
        selection: Selection,
        origins: Mapping[str, Origin],
        ids: Mapping[str, str],
        old: Mapping[str, int],
        now_ms: int,
    ) -> dict[str, Origin]:
        """The origins that the target should have, by its names of the topics."""
        found = {}
        for topic, name in selection.mirrored.items():
            known = origins.get(topic)
            ways = known.each if known is not None and not known.is_released else ()
            before = dict.fromkeys(cluster for each in ways for cluster in each.through)
            through = (*before, self._source_id)
            found[name] = Origin(topic, through, ids[topic], old[topic], since_ms=now_ms)
        return found

    async def _note(self, wanted: Mapping[str, Origin], now_ms: int) -> bool:
        """Write the origins that the target lacks; whether there were any.

        For a recreated topic the old origin stays as long as the target has the old copy.
        """
        is_first = self._noted is None
        if self._noted is None or self._replaced(wanted, self._noted):
            self._noted = await read_origins(self._target)
        if is_first:
            self._known = dict(self._noted)
        kept = self._replaced(wanted, self._noted)
        if kept:
            kept &= (await count_partitions(self._target)).keys()
        self._recreated = frozenset(wanted[name].topic for name in kept)
        new = {}
        for name, origin in wanted.items():
            noted = self._noted.get(name)
            origin = noted.seen_again(origin) if noted is not None else origin
            if name not in kept and noted != origin:
                new[name] = origin
        if new:
            await write_origins(self._target, new, now_ms)
            self._noted |= new
        return bool(new)

    @staticmethod
    def _replaced(wanted: Mapping[str, Origin], noted: Mapping[str, Origin]) -> set[str]:
        return {
            name
            for name, origin in wanted.items()
            if name in noted and noted[name].is_recreated(origin)
        }


async def topic_ids(cluster: Cluster) -> dict[str, str]:
    """The ids of a cluster's topics, by name; empty for those that have none."""
    return {each.name: str(each.id or "") for each in await list_topics(cluster)}


async def why_gone(found: Mapping[str, str], target: Cluster) -> dict[str, str]:
    """Why those topics that vanished, and have a copy in the target, are no longer mirrored."""
    there = await count_partitions(target) if found else {}
    return {
        topic: f"the source no longer has it, and {name} of the target gets nothing more. If that"
        " is meant so, `kdist mirror release` makes it the target's own"
        for topic, name in found.items()
        if name in there
    }


async def ids_if_released(target: Cluster, origins: Mapping[str, Origin]) -> dict[str, str]:
    """The ids of the target's topics if `select` needs them, for released topics of the source."""
    return await topic_ids(target) if any(each.is_released for each in origins.values()) else {}


def id_of(metadata: object, which: str) -> str:
    """The cluster id in a metadata response. `UserError` if there is none."""
    cluster_id: str | None = getattr(metadata, "cluster_id", None)
    if cluster_id is None:
        raise UserError(f"the {which} has no cluster id: Kafka has one from 0.10.1 on")
    return cluster_id
