"""A plan in a file, as JSON that Kafka's kafka-reassign-partitions takes too.

    {"version": 1, "partitions": [
      {"topic": "clicks", "partition": 0, "replicas": [1, 2, 3],
       "kdist_before": [1, 2, 4], "kdist_size_bytes": 1073741824}]}

The fields of kdist's own are what the way back, and progress, are known by; Kafka ignores them.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any, TypeGuard

from kdist.config.json_text import NameTwice, parse_json
from kdist.errors import UserError
from kdist.model import TopicPartition, topic_name_fault
from kdist.ops.reassignment.plan import Move

_VERSION = 1
_BEFORE, _SIZE = "kdist_before", "kdist_size_bytes"


def encode_plan(moves: Iterable[Move]) -> bytes:
    """The moves as the text of a file, a line for each."""
    rows = [
        json.dumps(
            {
                "topic": each.partition.topic,
                "partition": each.partition.partition,
                "replicas": each.after,
                _BEFORE: each.before,
                _SIZE: each.size_bytes,
            }
        )
        for each in moves
    ]
    lines = ",\n".join(rows)
    return f'{{"version": {_VERSION}, "partitions": [\n{lines}\n]}}\n'.encode()


def parse_plan(path: str, data: bytes) -> list[Move]:
    """The moves of a file. `UserError` with the first mistake in it."""
    try:
        found = parse_json(data)
    except NameTwice as error:
        raise UserError(f"{path}: {error}, so it would not be said which value counts") from None
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path} is not JSON: {error}") from None
    rows = found.get("partitions") if isinstance(found, dict) else None
    if not isinstance(rows, list) or found.get("version") != _VERSION:
        raise UserError(f'{path} is not a plan: it is not {{"version": 1, "partitions": […]}}')
    moves = [_move(path, row) for row in rows]
    seen: set[TopicPartition] = set()
    for each in moves:
        if each.partition in seen:
            raise UserError(f"{path} names {each.partition} twice")
        seen.add(each.partition)
    return moves


def _move(path: str, row: Any) -> Move:
    if not isinstance(row, dict):
        raise UserError(f"{path}: {row!r} is not a partition")
    topic, number = row.get("topic"), row.get("partition")
    if not isinstance(topic, str) or topic_name_fault(topic) or not _is_number(number):
        raise UserError(f"{path}: {row!r} does not name a topic and a partition")
    partition = TopicPartition(topic, number)
    size = row.get(_SIZE, 0)
    if not _is_number(size):
        raise UserError(f"{path}: {partition}: {_SIZE} is not a number of bytes")
    before, after = (_replicas(path, partition, row.get(each)) for each in (_BEFORE, "replicas"))
    return Move(partition, before, after, size)


def _replicas(path: str, partition: TopicPartition, found: Any) -> tuple[int, ...]:
    if not (isinstance(found, list) and found and all(map(_is_number, found))):
        why = f"needs lists of brokers as replicas and {_BEFORE}: `kdist reassign plan` has both"
        raise UserError(f"{path}: {partition} {why}")
    if len({*found}) < len(found):
        raise UserError(f"{path}: {partition} names a broker twice")
    return tuple(found)


def _is_number(value: Any) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0
