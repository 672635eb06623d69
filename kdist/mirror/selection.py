"""Which topics a mirror flow copies, under which names, and which it may not (pure)."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Literal, NamedTuple

from kdist.config.mirror import Flow
from kdist.model import TopicPartition, topic_name_fault

INTERNAL = "__"  # the prefix of internal topics' names


class Origin(NamedTuple):
    """Where a topic was mirrored from. `through` are the ids of the clusters, the first one first.

    `topic` and `id` are its name and id in the last of them; `id` is empty if unknown. The first
    `old_partitions` partitions existed when the mirror began; None, for unknown, means all of them.
    """

    topic: str
    through: tuple[str, ...]
    id: str = ""
    old_partitions: int | None = None

    def is_recreated(self, now: Origin) -> bool:
        """Whether `now` is another topic of the same name in the same cluster."""
        return self._is_same_way(now) and "" not in (self.id, now.id) and self.id != now.id

    def seen_again(self, now: Origin) -> Origin:
        """`now`, but with our `old_partitions` if it has our name and came the same way."""
        return now._replace(old_partitions=self.old_partitions) if self._is_same_way(now) else now

    def _is_same_way(self, now: Origin) -> bool:
        return (self.topic, self.through) == (now.topic, now.through)


def begin_at(
    flow: Flow, partition: TopicPartition, origins: Mapping[str, Origin]
) -> Literal["earliest", "latest"]:
    """From where to mirror a partition of the source; `origins` are the target's.

    A partition that was added after the mirror began is mirrored from its first record.
    """
    noted = origins.get(flow.renamed(partition.topic))
    if noted is None or noted.old_partitions is None or partition.partition < noted.old_partitions:
        return flow.settings.start
    return "earliest"


class Refusal(str):
    """Why the target cannot have a topic, which somebody must mend: a reason to hold it back."""

    __slots__ = ()


class Selection(NamedTuple):
    """The topics to mirror, with their names in the target; and why others are held back.

    A topic is in both if only some of its partitions are held back.
    """

    mirrored: dict[str, str]
    held: dict[str, str]

    @property
    def refused(self) -> frozenset[str]:
        """The topics held back, or some of whose partitions are, as the target cannot have them."""
        return frozenset(each for each, why in self.held.items() if isinstance(why, Refusal))


def select(
    flow: Flow, topics: Collection[str], origins: Mapping[str, Origin], target_id: str
) -> Selection:
    """Select from a source's topics; `origins` are those of topics that were mirrored to it."""
    mirrored: dict[str, str] = {}
    held: dict[str, str] = {}
    refused = {}
    for topic in sorted(topics):
        if topic.startswith(INTERNAL) or not flow.wants(topic):
            continue
        reason = _held(flow, topic, origins.get(topic), target_id)
        fault = topic_name_fault(flow.renamed(topic))
        if reason is not None:
            held[topic] = reason
        elif fault:
            refused[topic] = f"as {flow.renamed(topic)} its name {fault}"
        else:
            mirrored[topic] = flow.renamed(topic)
    return without(Selection(mirrored, held), refused)


def _held(flow: Flow, topic: str, origin: Origin | None, target_id: str) -> str | None:
    if origin is not None and target_id in origin.through:
        return "it was mirrored from this flow's target, and is not mirrored back"
    prefix = flow.settings.prefix
    if prefix and topic.startswith(prefix):
        return f"it already has the prefix {prefix}"
    return None


def without(
    selection: Selection, topics: Mapping[str, str], partitions: Mapping[str, str] | None = None
) -> Selection:
    """The selection with what the target refuses held back, each topic for its reason.

    A topic in `partitions` lacks only some of its partitions there: the others are mirrored.
    """
    mirrored = {key: name for key, name in selection.mirrored.items() if key not in topics}
    refused = {**topics, **(partitions or {})}
    refusals = {topic: Refusal(why) for topic, why in refused.items()}
    return Selection(mirrored, {**selection.held, **refusals})
