"""A mirror flow's topics: selects them, writes their origins, and creates their copies.

A topic is mirrored only after its origin is written to the target and the source's origins are
read again after that; `origins.py` says why in this order. The topic id in the origin distinguishes
a topic from a later one of the same name: the records of the two do not continue each other, even
if their offsets seem to.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from typing import Literal

from kdist.client.admin.topics import list_topics
from kdist.client.cluster import Cluster
from kdist.config.mirror import Flow
from kdist.errors import UserError
from kdist.mirror.copying import count_partitions, follow_topics
from kdist.mirror.loss import Loss, loss_of_topic
from kdist.mirror.origins import read_origins, write_origins
from kdist.mirror.selection import Origin, Selection, begin_at, select, without
from kdist.model import TopicPartition

logger = logging.getLogger(__name__)


class FlowTopics:
    """The topics of one flow. Owner: the flow."""

    def __init__(
        self, flow: Flow, source: Cluster, target: Cluster, cluster_ids: tuple[str, str]
    ) -> None:
        """`cluster_ids` are the ids of source and target."""
        self.selection = Selection({}, {})
        self._flow = flow
        self._source = source
        self._target = target
        self._source_id, self._target_id = cluster_ids
        self.unmatched: tuple[str, ...] = ()  # patterns that match no topic of the source
        self._first_seen: frozenset[str] | None = None  # the source's topics at the first refresh
        self._noted: dict[str, Origin] | None = None  # the origins in the target
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
            selection = select(self._flow, counts, origins, self._target_id)
            if not await self._note(self._origins_of(selection, origins, ids, old), now_ms):
                break
        self._tell_unmatched(counts)
        refused = await follow_topics(self._source, self._target, selection.mirrored, counts)
        selection = without(selection, refused.topics, refused.partitions)
        for topic, reason in selection.held.items():
            if self.selection.held.get(topic) != reason:
                what = "is mirrored in part" if topic in selection.mirrored else "is not mirrored"
                logger.warning("flow %s: topic %s %s: %s", self._flow.name, topic, what, reason)
        self.selection = selection
        await self._check_copies()
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
        now = {each.name: str(each.id or "") for each in await list_topics(self._target)}
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
        return begin_at(self._flow, partition, self._noted or {})

    def loss(self, topic: str) -> Loss | None:
        """Why a topic of the source does not continue its copy; None if it does."""
        return loss_of_topic(topic) if topic in self._recreated else None

    def _origins_of(
        self,
        selection: Selection,
        origins: Mapping[str, Origin],
        ids: Mapping[str, str],
        old: Mapping[str, int],
    ) -> dict[str, Origin]:
        """The origins that the target should have, by its names of the topics."""
        found = {}
        for topic, name in selection.mirrored.items():
            before = origins[topic].through if topic in origins else ()
            found[name] = Origin(topic, (*before, self._source_id), ids[topic], old[topic])
        return found

    async def _note(self, wanted: Mapping[str, Origin], now_ms: int) -> bool:
        """Write the origins that the target lacks; whether there were any.

        For a recreated topic the old origin stays as long as the target has the old copy.
        """
        if self._noted is None or self._replaced(wanted, self._noted):
            self._noted = await read_origins(self._target)
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


def id_of(metadata: object, which: str) -> str:
    """The cluster id in a metadata response. `UserError` if there is none."""
    cluster_id: str | None = getattr(metadata, "cluster_id", None)
    if cluster_id is None:
        raise UserError(f"the {which} has no cluster id: Kafka has one from 0.10.1 on")
    return cluster_id
