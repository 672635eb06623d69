"""Partitions as a command line names them: `TOPIC` for all, or `TOPIC:0,2` for some."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

import click

from kdist.model import TopicPartition, read_digits

if TYPE_CHECKING:
    from kdist.client.cluster import Cluster


class GivenPartitions(NamedTuple):
    """A topic, and numbers of its partitions; None for all of them."""

    topic: str
    numbers: tuple[int, ...] | None


class PartitionsParam(click.ParamType):  # type: ignore[type-arg]  # generic as of click 8.3
    """`TOPIC[:P,...]`."""

    name = "partitions"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> GivenPartitions:
        """The topic and partition numbers in `value`."""
        topic, colon, listed = str(value).partition(":")
        if not topic.strip():
            self.fail(f"{value!r} names no topic.", param, ctx)
        if not colon:
            return GivenPartitions(topic, None)
        numbers: set[int] = set()
        for word in listed.split(","):
            number = read_digits(word)
            if number is None:
                self.fail(f"{value!r} is not TOPIC or TOPIC:0,1,...", param, ctx)
            numbers.add(number)
        return GivenPartitions(topic, tuple(sorted(numbers)))


async def resolve_partitions(
    cluster: Cluster, given: Iterable[GivenPartitions]
) -> list[TopicPartition]:
    """Each partition once, in order; `ApiError` for one that does not exist."""
    from kdist.client.admin.topics import describe_topics, require_partitions

    wanted = list(given)
    topics = await describe_topics(cluster, dict.fromkeys(each.topic for each in wanted))
    found: set[TopicPartition] = set()
    for each in wanted:
        every = range(len(topics[each.topic].partitions))
        numbers = every if each.numbers is None else each.numbers
        found |= {TopicPartition(each.topic, number) for number in numbers}
    await require_partitions(cluster, found)
    return sorted(found)
