"""What a consumer of a group wants: topics by name, or all that match a filter (pure).

    pattern      subscription in the registration    streams
    static       {"clicks": 2, "views": 1}           each topic has its own
    white_list   {"clicks|views.*": 2}               one lot for all topics that match
    black_list   {"test.*": 1}                       one lot for all that do not

A filter is matched against whole names, and commas in it are read as "or". Stream number n of a
consumer is called by the consumer's id, `-` and n: that is what owns partitions.
Source: Kafka 0.8's `TopicCount.scala`, `TopicFilter.scala`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Protocol

from kdist.errors import UserError
from kdist.model import INTERNAL_TOPICS, topic_name_fault
from kdist.zk.cluster_values import ConsumerRegistration

STATIC, _WHITE, _BLACK = "static", "white_list", "black_list"


class Subscription(Protocol):
    """What one consumer wants."""

    pattern: str

    @property
    def counts(self) -> Mapping[str, int]:
        """The registration's `subscription`: numbers of streams, by topic or filter."""
        ...

    def streams(self, topics: Iterable[str]) -> dict[str, int]:
        """How many streams each of these topics has, of those that are wanted."""
        ...


class Topics:
    """Topics by name, with the number of streams of each."""

    pattern = STATIC

    def __init__(self, counts: Mapping[str, int]) -> None:
        if not isinstance(counts, Mapping):
            raise UserError(f"topics are a dict with the number of streams of each, not {counts!r}")
        for topic, count in counts.items():
            if fault := topic_name_fault(topic):
                raise UserError(f"topic {topic!r} {fault}")
            _check_count(count, topic)
        self.counts = dict(counts)

    def streams(self, topics: Iterable[str]) -> dict[str, int]:
        return {topic: self.counts[topic] for topic in topics if topic in self.counts}


class TopicFilter:
    """Topics by a regular expression; `Whitelist` or `Blacklist`."""

    pattern: str

    def __init__(self, expression: str) -> None:
        if not isinstance(expression, str):
            raise UserError(f"a filter's regular expression is text, not {expression!r}")
        text = expression.strip().replace(",", "|").replace(" ", "")
        self.expression = re.sub("^[\"']+|[\"']+$", "", text)
        try:
            self._compiled = re.compile(self.expression)
        except re.error as error:
            raise UserError(f"{expression!r} is no regular expression: {error}") from None

    def allows(self, topic: str, *, exclude_internal: bool = True) -> bool:
        """Whether a topic passes.

        >>> Whitelist("clicks, view.*").allows("views"), Blacklist("test.*").allows("views")
        (True, True)
        """
        if exclude_internal and topic in INTERNAL_TOPICS:
            return False
        return bool(self._compiled.fullmatch(topic)) == (self.pattern == _WHITE)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.expression!r})"


class Whitelist(TopicFilter):
    """All topics that match."""

    pattern = _WHITE


class Blacklist(TopicFilter):
    """All topics that do not match."""

    pattern = _BLACK


class Filtered:
    """The topics that a filter lets pass, with streams for all of them together."""

    def __init__(self, passes: TopicFilter, count: int, *, exclude_internal: bool = True) -> None:
        if not isinstance(passes, TopicFilter):
            raise UserError(f"a filter is a Whitelist or a Blacklist, not {passes!r}")
        _check_count(count, repr(passes))
        self.pattern = passes.pattern
        self.counts = {passes.expression: count}
        self._filter = passes
        self._count = count
        self._exclude_internal = exclude_internal

    def streams(self, topics: Iterable[str]) -> dict[str, int]:
        exclude = self._exclude_internal
        return {
            topic: self._count
            for topic in topics
            if self._filter.allows(topic, exclude_internal=exclude)
        }


def _check_count(count: int, of: str) -> None:
    if type(count) is not int or count < 1:
        raise UserError(f"{of} has {count!r} streams, and must have 1 or more")


def read_subscription(
    registration: ConsumerRegistration, *, exclude_internal: bool = True
) -> Subscription:
    """What a registration says; `UserError` if it says nothing that can be."""
    counts, pattern = registration.subscription, registration.pattern
    if pattern == STATIC:
        return Topics(counts)
    kinds: dict[str, type[TopicFilter]] = {_WHITE: Whitelist, _BLACK: Blacklist}
    if pattern not in kinds or len(counts) != 1:
        raise UserError(f"a registration with pattern {pattern!r} and {len(counts)} entries")
    ((expression, count),) = counts.items()
    return Filtered(kinds[pattern](expression), count, exclude_internal=exclude_internal)


def stream_id(consumer_id: str, number: int) -> str:
    """What owns partitions: a stream's name in the registry."""
    return f"{consumer_id}-{number}"
