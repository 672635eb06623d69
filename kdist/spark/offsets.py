"""The JSON of Spark's options for partitions, offsets and times (pure).

    {"clicks": {"0": 23, "1": -2}}        offsets; -2 is earliest, -1 latest
    {"clicks": {"0": 1672531200000}}      times, ms since the epoch
    {"clicks": [0, 1], "views": [0]}      partitions alone

Source: Spark's "Structured Streaming + Kafka Integration Guide".
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from kdist.config.texts import NameTwice, parse_json
from kdist.errors import UserError
from kdist.model import TopicPartition, read_digits, topic_name_fault

EARLIEST = -2
LATEST = -1

ByPartition = dict[TopicPartition, int]


class Everywhere(NamedTuple):
    """The same place in every partition: EARLIEST or LATEST."""

    offset: int


class AtOffsets(NamedTuple):
    """An offset, EARLIEST or LATEST for each partition."""

    offsets: ByPartition


class AtTime(NamedTuple):
    """The first record at or after a time, the same for every partition."""

    timestamp_ms: int


class AtTimes(NamedTuple):
    """The first record at or after a time of each partition's own."""

    timestamps_ms: ByPartition


Place = Everywhere | AtOffsets | AtTime | AtTimes


def parse_offsets(name: str, text: str) -> ByPartition:
    """The offsets or times by partition; `UserError`, which names the option `name`."""
    example = '{"topic": {"0": 23}}'
    found: ByPartition = {}
    for topic, numbers in _topics(name, text, example).items():
        if not isinstance(numbers, dict):
            raise _not_like(name, example)
        for digits, number in numbers.items():
            partition = read_digits(digits)
            if partition is None or not _is_number(number):
                raise _not_like(name, example)
            found[TopicPartition(topic, partition)] = number
    return found


def parse_assign(name: str, text: str) -> tuple[TopicPartition, ...]:
    """The partitions; `UserError`, which names the option `name`."""
    example = '{"topic": [0, 1]}'
    found: set[TopicPartition] = set()
    for topic, partitions in _topics(name, text, example).items():
        is_list = isinstance(partitions, list) and partitions
        if not is_list or not all(_is_number(each) and each >= 0 for each in partitions):
            raise _not_like(name, example)
        found.update(TopicPartition(topic, each) for each in partitions)
    return tuple(sorted(found))


def show_offsets(offsets: Mapping[TopicPartition, int]) -> str:
    """The JSON for `parse_offsets`."""
    found: dict[str, dict[str, int]] = {}
    for (topic, partition), offset in sorted(offsets.items()):
        found.setdefault(topic, {})[str(partition)] = offset
    return json.dumps(found)


def show_assign(partitions: Iterable[TopicPartition]) -> str:
    """The JSON for `parse_assign`."""
    found: dict[str, list[int]] = {}
    for topic, partition in sorted(partitions):
        found.setdefault(topic, []).append(partition)
    return json.dumps(found)


def _topics(name: str, text: str, example: str) -> dict[str, Any]:
    try:
        found = parse_json(text)
    except NameTwice as error:
        raise UserError(f"{name}: {error}") from None
    except ValueError:
        raise _not_like(name, example) from None
    if not isinstance(found, dict) or not found:
        raise _not_like(name, example)
    for topic in found:
        fault = topic_name_fault(topic)
        if fault:
            raise UserError(f"{name} names the topic {topic!r}, which {fault}")
    return found


def _is_number(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _not_like(name: str, example: str) -> UserError:
    return UserError(f"{name} must be JSON like {example}")
