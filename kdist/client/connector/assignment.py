"""Algorithm 1: which stream of which consumer owns which partition (pure).

Every consumer of a group computes it for itself, from the same registries, and takes its part:

    range       each topic's partitions, in order, in runs to its streams, sorted by name; the
                first streams get one more where it does not come out even
    roundrobin  all topics' partitions, in the order of their hashes, to the streams in turn

Source: the founding paper, section 3.2; Kafka 0.8.2's `PartitionAssignor.scala`, for groups with
both. The paper's order keeps the partitions of one broker together, so that a consumer has few
brokers to ask: `ordered` by broker, the one that leads if it can, which no failure moves. 0.8 goes
by number alone. A group goes by broker if all its members do, and by number as soon as one does
not; its members see the same registrations, and so the same order.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import cycle

from kdist.errors import UserError
from kdist.model import TopicPartition

Owners = dict[TopicPartition, str]
"""The stream, by its name in the registry, that is to own each partition."""


def ordered(preferred: Mapping[int, int], *, by_broker: bool) -> list[int]:
    """A topic's partitions in the order to share them out; `preferred` has the broker of each.

    >>> ordered({0: 7, 1: 8, 2: 7, 3: 8}, by_broker=True)
    [0, 2, 1, 3]
    """
    if by_broker:
        return sorted(preferred, key=lambda number: (preferred[number], number))
    return sorted(preferred)


def assign(
    strategy: str,
    partitions: Mapping[str, Sequence[int]],
    streams: Mapping[str, Iterable[str]],
) -> Owners:
    """Every partition's owner; `partitions` in order, and `streams` by name, both by topic.

    Topics that nobody wants are left out. `UserError` if the strategy cannot do it.
    """
    wanted = {topic: sorted(streams[topic]) for topic in sorted(streams) if streams[topic]}
    known = {topic: names for topic, names in wanted.items() if partitions.get(topic)}
    return _STRATEGIES[strategy](partitions, known)


def _assign_ranges(
    partitions: Mapping[str, Sequence[int]], streams: Mapping[str, list[str]]
) -> Owners:
    found: Owners = {}
    for topic, names in streams.items():
        each, more = divmod(len(partitions[topic]), len(names))
        start = 0
        for index, name in enumerate(names):
            end = start + each + (index < more)
            found |= {TopicPartition(topic, n): name for n in partitions[topic][start:end]}
            start = end
    return found


def _assign_in_turn(
    partitions: Mapping[str, Sequence[int]], streams: Mapping[str, list[str]]
) -> Owners:
    if len({tuple(names) for names in streams.values()}) > 1:
        raise UserError(
            "partition.assignment.strategy roundrobin takes consumers that all have the same "
            f"topics, and as many streams of each: these differ in {', '.join(streams)}"
        )
    turns = cycle(next(iter(streams.values()), ()))
    every = [TopicPartition(topic, n) for topic in streams for n in partitions[topic]]
    return dict(zip(sorted(every, key=_rank), turns, strict=False))


def _rank(partition: TopicPartition) -> tuple[int, TopicPartition]:
    """Java's hash of Scala's text, so that the partitions of a topic go to different streams."""
    code = 0
    for character in f"[{partition.topic},{partition.partition}]":
        code = (31 * code + ord(character)) & 0xFFFFFFFF
    return (code - (1 << 32) if code >> 31 else code), partition


_STRATEGIES = {"range": _assign_ranges, "roundrobin": _assign_in_turn}
