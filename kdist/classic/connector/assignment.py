"""Algorithm 1: which stream of which consumer owns which partition (pure).

Every consumer of a group computes the whole assignment, from the same registry, and takes its part:

    range       each topic's partitions, in order, in runs to its streams, sorted by name; the
                first streams get one more where it does not come out even
    roundrobin  all topics' partitions, in the order of their hashes, to the streams in turn

Source: the founding paper, section 3.2; Kafka 0.8.2's `PartitionAssignor.scala`, so that a group
may have members of both. The paper orders partitions by broker, so that a consumer fetches from few
brokers: `ordered` takes each partition's preferred leader, which failures do not change. 0.8 orders
by partition number alone. A group orders by broker only if all its members do; all see the same
registrations, and so choose the same order.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import cycle

from kdist.errors import UserError
from kdist.model import TopicPartition

Owners = dict[TopicPartition, str]
"""The stream that should own each partition, by its name in the registry."""


def ordered(preferred: Mapping[int, int], *, by_broker: bool) -> list[int]:
    """A topic's partitions in the order to assign them; `preferred` has each one's broker.

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
    """Every partition's owner; by topic, `partitions` are in order and `streams` are names.

    Topics without streams are left out. `UserError` if the strategy does not allow this group.
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
            "partition.assignment.strategy roundrobin needs consumers that all have the same "
            f"topics, and as many streams of each: these differ in {', '.join(streams)}"
        )
    turns = cycle(next(iter(streams.values()), ()))
    every = [TopicPartition(topic, n) for topic in streams for n in partitions[topic]]
    return dict(zip(sorted(every, key=_rank), turns, strict=False))


def _rank(partition: TopicPartition) -> tuple[int, TopicPartition]:
    """0.8's order, Java's hash of Scala's text: spreads a topic's partitions over the streams."""
    code = 0
    for character in f"[{partition.topic},{partition.partition}]":
        code = (31 * code + ord(character)) & 0xFFFFFFFF
    return (code - (1 << 32) if code >> 31 else code), partition


_STRATEGIES = {"range": _assign_ranges, "roundrobin": _assign_in_turn}
