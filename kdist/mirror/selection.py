"""Which topics of its source a flow mirrors, under which names, and which it must not (pure)."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Literal, NamedTuple

from kdist.config.mirror import Flow
from kdist.model import TopicPartition, topic_name_fault

INTERNAL = "__"  # topics whose names begin so are a cluster's own


class Origin(NamedTuple):
    """Where a topic was mirrored from: the clusters on its way, its first home first.

    `id` is the topic's in the cluster that it was last mirrored from; empty if that is not known.
    Its first `old_partitions` are older than their mirror, all of them if that is not known.
    """

    topic: str
    through: tuple[str, ...]
    id: str = ""
    old_partitions: int | None = None

    def is_made_anew(self, now: Origin) -> bool:
        """Whether `now` is another topic of the same name in the same place."""
        return self._is_same_place(now) and "" not in (self.id, now.id) and self.id != now.id

    def seen_again(self, now: Origin) -> Origin:
        """`now`, with the `old_partitions` noted here if it is the same place."""
        return now._replace(old_partitions=self.old_partitions) if self._is_same_place(now) else now

    def _is_same_place(self, now: Origin) -> bool:
        return (self.topic, self.through) == (now.topic, now.through)


def begin_at(
    flow: Flow, partition: TopicPartition, origins: Mapping[str, Origin]
) -> Literal["earliest", "latest"]:
    """Where a partition of the source begins to be mirrored; `origins` are what its target knows.

    What is newer than its mirror is mirrored whole.
    """
    noted = origins.get(flow.renamed(partition.topic))
    if noted is None or noted.old_partitions is None or partition.partition < noted.old_partitions:
        return flow.settings.start
    return "earliest"


class Selection(NamedTuple):
    """The topics to mirror with their names in the target, and why others are held back."""

    mirrored: dict[str, str]
    held: dict[str, str]


def select(
    flow: Flow, topics: Collection[str], origins: Mapping[str, Origin], target_id: str
) -> Selection:
    """Judge a source's topics; `origins` are what is known of those that were mirrored to it."""
    mirrored: dict[str, str] = {}
    held: dict[str, str] = {}
    for topic in sorted(topics):
        if topic.startswith(INTERNAL) or not flow.wants(topic):
            continue
        reason = _held(flow, topic, origins.get(topic), target_id)
        if reason is None:
            mirrored[topic] = flow.renamed(topic)
        else:
            held[topic] = reason
    return Selection(mirrored, held)


def _held(flow: Flow, topic: str, origin: Origin | None, target_id: str) -> str | None:
    if origin is not None and target_id in origin.through:
        return "it came from this flow's target, and is not sent back"
    prefix = flow.settings.prefix
    if prefix and topic.startswith(prefix):
        return f"it has the prefix {prefix} already"
    fault = topic_name_fault(flow.renamed(topic))
    return f"as {flow.renamed(topic)} its name {fault}" if fault else None


def without(selection: Selection, refused: Mapping[str, str]) -> Selection:
    """The selection with the refused topics held back, each for its reason."""
    mirrored = {key: name for key, name in selection.mirrored.items() if key not in refused}
    return Selection(mirrored, {**selection.held, **refused})
