"""Checks the arguments of consumer methods, and brings them into the core's form (pure).

A wrong argument raises `UserError`, or `WrongType`, at once: used later, in a background request,
it would stop the consumer with an error that nobody sees.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, SupportsIndex

from kdist.client.committed import Offsets
from kdist.client.offsets import OffsetAndMetadata, OffsetAndTimestamp
from kdist.client.operation import check_timeout
from kdist.config.kinds import INT32_MAX, INT64_MAX
from kdist.config.times import check_time
from kdist.errors import KdistError, UserError, WrongType
from kdist.model import NO_EPOCH, TopicPartition, topic_name_fault

ToCommit = Mapping[TopicPartition, int | OffsetAndMetadata]


def checked_topics(topics: Iterable[str] | re.Pattern[str]) -> list[str] | re.Pattern[str]:
    """What to subscribe to; `UserError` for a bare string, which would be a list of letters."""
    if isinstance(topics, str):
        raise WrongType(f"topics must be a list: [{topics!r}]")
    if isinstance(topics, re.Pattern) and not isinstance(topics.pattern, str):
        raise WrongType(f"{topics!r} matches bytes, but topic names are text")
    given: Any = topics
    if isinstance(given, bytes) or not isinstance(given, re.Pattern | Iterable):
        raise WrongType(f"topics must be a list of names or a pattern, not {topics!r}")
    return topics if isinstance(topics, re.Pattern) else list(topics)


def checked_names(topics: Iterable[Any]) -> set[str]:
    """These topics; `UserError` for a name that no topic can have."""
    names = list(topics)  # what no topic can be called may not fit into a set
    for name in names:
        _check_name(name)
    return set(names)


def _check_name(topic: Any) -> None:
    fault = topic_name_fault(topic) if isinstance(topic, str) else "is not text"
    if fault:
        raise UserError(f"topic {topic!r} {fault}")


def check_listener(listener: Any, kind: type) -> None:
    """`UserError` unless it is None or has the methods of `kind`; it need not be a subclass."""
    for name in vars(kind):
        if not (
            name.startswith("_") or listener is None or callable(getattr(listener, name, None))
        ):
            raise UserError(f"{listener!r} is not a {kind.__name__}: it has no method {name}")


def check_callable(function: Any, name: str) -> None:
    """It can be called: who finds out later does so in the background."""
    if not callable(function):
        raise WrongType(f"{name} is a callable, not {function!r}")


def to_commit(wanted: ToCommit | None) -> Offsets | None:
    """The offsets to commit, checked; None, which means all positions, stays None."""
    if wanted is None:
        return None
    _check_mapping(wanted, "offsets to commit")
    places = [
        each if isinstance(each, OffsetAndMetadata) else OffsetAndMetadata(each)
        for each in wanted.values()
    ]
    offsets = dict(zip(checked_partitions(wanted), places, strict=True))
    for key, each in offsets.items():
        check_offset(each.offset, each.leader_epoch, f" to commit for {key}")
    return offsets


def checked_partitions(partitions: Iterable[TopicPartition]) -> list[TopicPartition]:
    """Partitions, which may be given as plain pairs; `UserError` for anything else."""
    is_one = isinstance(partitions, str | bytes | TopicPartition)
    if is_one or not isinstance(partitions, Iterable):
        raise WrongType(f"partitions must be a list of TopicPartition, not {partitions!r}")
    return [_partition(each) for each in partitions]


def _partition(pair: Any) -> TopicPartition:
    is_pair = isinstance(pair, tuple | list) and len(pair) == 2
    if not is_pair or not _is_number(pair[1], 0, INT32_MAX):
        raise UserError(f"{pair!r} is not a partition: give TopicPartition(topic, number)")
    _check_name(pair[0])
    return TopicPartition(*pair)


def checked_times(times: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
    """Times by partition; partitions may be given as plain pairs."""
    _check_mapping(times, "times")
    for each in times.values():
        check_time(each)
    return dict(zip(checked_partitions(times), times.values(), strict=True))


def checked_max(limit: int, name: str) -> int:
    """A limit on how many to return; `UserError` if it is below 1."""
    if not _is_number(limit, 1, INT64_MAX):
        raise UserError(f"{name} must be 1 or more, not {limit!r}")
    return limit


def checked_end(timeout_s: Any, now_s: float) -> float | None:
    """The deadline of a poll that starts now; None for none. `UserError` also for NaN, with which
    the poll would never end.
    """
    check_timeout(timeout_s)
    return None if timeout_s is None else now_s + float(timeout_s)


def _check_mapping(mapping: Any, what: str) -> None:
    if not isinstance(mapping, Mapping):
        raise WrongType(f"{what} must be a dict by partition, not {mapping!r}")


def check_offset(offset: Any, leader_epoch: Any, what: str = "") -> None:
    """`UserError` unless both are numbers within their ranges."""
    if not _is_number(offset, 0, INT64_MAX):
        raise UserError(f"{offset!r} is not an offset{what}: they go from 0 to {INT64_MAX}")
    if not _is_number(leader_epoch, NO_EPOCH, INT32_MAX):
        raise UserError(f"{leader_epoch!r} is not a leader epoch: they go from 0 to {INT32_MAX}")


def _is_number(value: Any, least: int, most: int) -> bool:
    is_number = isinstance(value, SupportsIndex) and not isinstance(value, bool)
    return is_number and least <= value.__index__() <= most


def found_offsets(
    found: Mapping[TopicPartition, OffsetAndTimestamp | None],
) -> dict[TopicPartition, int]:
    """The offsets alone; none is missing, as every partition has a first and an end offset."""
    return {key: each.offset for key, each in found.items() if each is not None}


def ignore(offsets: Offsets, error: KdistError | None) -> None:
    """The default `on_committed`, which does nothing."""
