"""A flow's topics: chosen anew at each look, with their origins noted and their copies there.

A topic is mirrored only after its origin is written to the target, and the source's origins are
read after that: see `origins.py` for why in this order.
"""

from __future__ import annotations

import logging

from kdist.client.cluster import Cluster
from kdist.config.mirror import Flow
from kdist.mirror.copying import count_partitions, follow_topics
from kdist.mirror.origins import read_origins, write_origins
from kdist.mirror.selection import Origin, Selection, select, without

logger = logging.getLogger(__name__)


class FlowTopics:
    """Owner: the flow."""

    def __init__(
        self, flow: Flow, source: Cluster, target: Cluster, cluster_ids: tuple[str, str]
    ) -> None:
        """`cluster_ids` of source and target."""
        self.selection = Selection({}, {})
        self._flow = flow
        self._source = source
        self._target = target
        self._source_id, self._target_id = cluster_ids
        self._noted: dict[str, Origin] | None = None  # what the target knows

    async def refresh(self, now_ms: int) -> Selection:
        """Look, note, create and grow; what is to be mirrored. `ApiError`, `NoBroker`."""
        counts = await count_partitions(self._source)
        while True:
            origins = await read_origins(self._source)
            selection = select(self._flow, counts, origins, self._target_id)
            if not await self._note(selection, origins, now_ms):
                break
        refused = await follow_topics(self._source, self._target, selection.mirrored, counts)
        selection = without(selection, refused)
        for topic, reason in selection.held.items():
            if self.selection.held.get(topic) != reason:
                logger.warning(
                    "flow %s: topic %s is not mirrored: %s", self._flow.name, topic, reason
                )
        self.selection = selection
        return selection

    async def _note(self, selection: Selection, origins: dict[str, Origin], now_ms: int) -> bool:
        """Write the origins that the target lacks; whether there were any."""
        if self._noted is None:
            self._noted = await read_origins(self._target)
        new = {}
        for topic, name in selection.mirrored.items():
            before = origins[topic].through if topic in origins else ()
            origin = Origin(topic, (*before, self._source_id))
            if self._noted.get(name) != origin:
                new[name] = origin
        if new:
            await write_origins(self._target, new, now_ms)
            self._noted.update(new)
        return bool(new)
