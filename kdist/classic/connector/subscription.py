"""What a consumer subscribes to: topics by name, or all that pass a filter (pure).

    pattern      subscription in the registration    streams
    static       {"clicks": 2, "views": 1}           each topic has its own
    white_list   {"clicks|views.*": 2}               shared by all topics that match
    black_list   {"test.*": 1}                       shared by all that do not match

A filter must match the whole name, and a comma in it means "or". A consumer's stream number n is
named by the consumer's id, `-` and n: streams, not consumers, own partitions.
Source: Kafka 0.8's `TopicCount.scala`, `TopicFilter.scala`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Protocol

from kdist.config.kinds import split_list
from kdist.errors import UserError
from kdist.model import INTERNAL_TOPICS, topic_name_fault
from kdist.zk.values import ConsumerRegistration

STATIC, _WHITE, _BLACK = "static", "white_list", "black_list"


class Subscription(Protocol):
    """What one consumer subscribes to."""

    pattern: str

    @property
    def counts(self) -> Mapping[str, int]:
        """The registration's `subscription`: numbers of streams, by topic or filter."""
        ...

    def streams(self, topics: Iterable[str]) -> dict[str, int]:
        """The number of streams of each of these topics that is subscribed to."""
        ...


class Topics:
    """Topics by name, with the number of streams of each."""

    pattern = STATIC

    def __init__(self, counts: Mapping[str, int]) -> None:
        if not isinstance(counts, Mapping):
            raise UserError(f"topics must be a dict of numbers of streams, not {counts!r}")
        for topic, count in counts.items():
            if fault := topic_name_fault(topic):
                raise UserError(f"topic {topic!r} {fault}")
            _check_count(count, topic)
        self.counts = dict(counts)

    def streams(self, topics: Iterable[str]) -> dict[str, int]:
        return {topic: self.counts[topic] for topic in topics if topic in self.counts}


class TopicFilter:
    """Selects topics by a regular expression; use `Whitelist` or `Blacklist`."""

    pattern: str

    def __init__(self, expression: str) -> None:
        if not isinstance(expression, str):
            raise UserError(f"a filter's regular expression must be text, not {expression!r}")
        text = "|".join(split_list(expression.replace(" ", "")))
        self.expression = re.sub("^[\"']+|[\"']+$", "", text)
        try:
            self._compiled = re.compile(self.expression)
        except re.error as error:
            raise UserError(f"{expression!r} is not a regular expression: {error}") from None

    def allows(self, topic: str, *, exclude_internal: bool = True) -> bool:
        """Whether a topic passes the filter.

        >>> Whitelist("clicks, view.*").allows("views"), Blacklist("test.*").allows("views")
        (True, True)
        """
        if exclude_internal and topic in INTERNAL_TOPICS:
            return False
        return bool(self._compiled.fullmatch(topic)) == (self.pattern == _WHITE)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.expression!r})"


class Whitelist(TopicFilter):
    """Selects the topics whose names match."""

    pattern = _WHITE


class Blacklist(TopicFilter):
    """Selects the topics whose names do not match."""

    pattern = _BLACK


class Filtered:
    """The topics that pass a filter, with streams shared by all of them."""

    def __init__(self, passes: TopicFilter, count: int, *, exclude_internal: bool = True) -> None:
        if not isinstance(passes, TopicFilter):
            raise UserError(f"a filter must be a Whitelist or a Blacklist, not {passes!r}")
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
        raise UserError(f"{of} must have 1 or more streams, not {count!r}")


def read_subscription(
    registration: ConsumerRegistration, *, exclude_internal: bool = True
) -> Subscription:
    """The subscription in a registration; `UserError` if it is malformed."""
    counts, pattern = registration.subscription, registration.pattern
    if pattern == STATIC:
        return Topics(counts)
    kinds: dict[str, type[TopicFilter]] = {_WHITE: Whitelist, _BLACK: Blacklist}
    if pattern not in kinds or len(counts) != 1:
        entries = f"{len(counts)} entries"
        raise UserError(f"a malformed registration, with pattern {pattern!r} and {entries}")
    ((expression, count),) = counts.items()
    return Filtered(kinds[pattern](expression), count, exclude_internal=exclude_internal)


def stream_id(consumer_id: str, number: int) -> str:
    """A stream's name in the registry, as the owner of partitions."""
    return f"{consumer_id}-{number}"
