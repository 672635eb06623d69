"""Which topics a mirror flow copies, under which names, and which it may not (pure)."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Literal, NamedTuple

from kdist.config.mirror import Flow
from kdist.model import TopicPartition, topic_name_fault

INTERNAL = "__"  # the prefix of internal topics' names
_YOUNG_MS = 3_600_000  # in which all mirrors of a flow commit where they begin; commits stay longer


class Origin(NamedTuple):
    """Where a topic was mirrored from. `through` are the ids of the clusters, the first one first.

    `topic` and `id` are its name and id in the last of them; `id` is empty if unknown. The first
    `old_partitions` partitions existed when the mirror began; None, for unknown, means all of them.
    A released topic is the cluster's own: its origin only tells which of its records came from it.
    `others` are the origins of a topic that is mirrored from several. `since_ms` is when the mirror
    began; None if unknown.
    """

    topic: str
    through: tuple[str, ...]
    id: str = ""
    old_partitions: int | None = None
    is_released: bool = False
    others: tuple[Origin, ...] = ()
    since_ms: int | None = None

    @property
    def each(self) -> tuple[Origin, ...]:
        """This one without the others, and the others."""
        return (self._replace(others=()), *self.others)

    def from_topic(self, topic: str, cluster_id: str) -> Origin | None:
        """The one of these that is a topic of a cluster."""
        wanted = topic, (cluster_id,)
        return next((o for o in self.each if (o.topic, o.through[-1:]) == wanted), None)

    def is_recreated(self, now: Origin) -> bool:
        """Whether `now` is another topic of the same name in the same cluster."""
        known = self.from_topic(now.topic, now.through[-1])
        return known is not None and "" not in (known.id, now.id) and known.id != now.id

    def seen_again(self, now: Origin) -> Origin:
        """`now` as its mirror began: with its `old_partitions`, and beside the other origins.

        If the topic was released or its origin unreadable, there are no others any more.
        """
        known = self.from_topic(now.topic, now.through[-1])
        if known is not None:
            now = now._replace(old_partitions=known.old_partitions, since_ms=known.since_ms)
        if self.is_released or not self.through:
            return now
        first, *others = sorted(
            [now, *(each for each in self.each if each != known)],
            key=lambda each: (each.through, each.topic),
        )
        return first._replace(others=tuple(others))


UNREADABLE = Origin("", ())
"""What stands for an origin that cannot be read."""


def begin_at(
    flow: Flow,
    partition: TopicPartition,
    origins: Mapping[str, Origin],
    source_id: str,
    returning: Collection[str],
) -> Literal["earliest", "latest"]:
    """From where to mirror a partition of the source; `origins` are the target's.

    A partition that was added after the mirror began is mirrored from its first record, and so are
    the topics `returning` to the target: else what the source took meanwhile would be skipped.
    """
    if partition.topic in returning:
        return "earliest"
    found = origins.get(flow.renamed(partition.topic))
    noted = found and found.from_topic(partition.topic, source_id)
    if noted is None or noted.old_partitions is None or partition.partition < noted.old_partitions:
        return flow.settings.start
    return "earliest"


def is_position_lost(
    noted: Origin | None, now_ms: int, *, is_emptied: bool, would_skip: bool
) -> bool:
    """Whether a partition had a position once, which neither a commit nor the target's log tells.

    `noted` is its origin in the target, if it was mirrored before. `is_emptied`: the target had
    records of it. `would_skip`: to begin anew would skip some, as that is not at offset 0.
    """
    if noted is None:
        return False
    is_old = noted.since_ms is None or now_ms - noted.since_ms > _YOUNG_MS
    return is_emptied or (is_old and would_skip)


def vanished(
    flow: Flow, topics: Collection[str], origins: Mapping[str, Origin], source_id: str
) -> dict[str, str]:
    """Topics that the flow has mirrored and the source no longer has, with their names in the
    target; `origins` are the target's.
    """
    return {
        each.topic: name
        for name, origin in origins.items()
        for each in (origin.each if not origin.is_released else ())
        if each.through[-1:] == (source_id,)
        and name == flow.renamed(each.topic)
        and each.topic not in topics
        and flow.wants(each.topic)
    }


class Refusal(str):
    """Why the target cannot have a topic, or the source no longer has it: somebody must mend that,
    or say that it is meant so. A reason to hold it back.
    """

    __slots__ = ()


class Selection(NamedTuple):
    """The topics to mirror, with their names in the target; and why others are held back.

    A topic is in both if only some of its partitions are held back. `returning` are those that were
    mirrored from the same topic of the target, which still has what came from it. `larger` says of
    which the target has more partitions.
    """

    mirrored: dict[str, str]
    held: dict[str, str]
    returning: frozenset[str] = frozenset()
    larger: Mapping[str, str] = {}

    @property
    def refused(self) -> frozenset[str]:
        """The topics held back, or some of whose partitions are, until somebody acts."""
        return frozenset(each for each, why in self.held.items() if isinstance(why, Refusal))


def select(
    flow: Flow,
    topics: Collection[str],
    origins: Mapping[str, Origin],
    target_id: str,
    copies: Mapping[str, str] = {},
) -> Selection:
    """Select from a source's topics; `origins` are those of topics that were mirrored to it.

    `copies` are the ids of the target's topics, by name.
    """
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
    returning = frozenset(
        topic
        for topic, name in mirrored.items()
        if topic in origins and _is_of(origins[topic], name, target_id, copies.get(name))
    )
    return without(Selection(mirrored, held, returning), refused)


def _is_of(origin: Origin, name: str, target_id: str, id_: str | None) -> bool:
    """Whether a released topic was mirrored from the target's topic of this name and id."""
    there = origin.from_topic(name, target_id)
    return there is not None and origin.is_released and there.id != "" and there.id == id_


def _held(flow: Flow, topic: str, origin: Origin | None, target_id: str) -> str | None:
    if origin == UNREADABLE:
        return Refusal(
            "its record in __kdist_mirror_origins of the source cannot be read, so nobody knows"
            " whether it came from the target. The flow that mirrors it into the source mends that;"
            " else `kdist mirror release`, with a flow into the source, makes it the source's own"
        )
    for each in origin.each if origin is not None else ():
        if target_id not in each.through:
            continue
        if origin is not None and not origin.is_released:
            return "it was mirrored from this flow's target, and is not mirrored back"
        if target_id != each.through[-1] and flow.renamed(topic) == each.topic:
            return (
                f"it came from this flow's target by way of cluster {each.through[-1]}, and can"
                " only be mirrored back the same way"
            )
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
    return selection._replace(mirrored=mirrored, held={**selection.held, **refusals})
