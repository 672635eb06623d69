"""Checks the arguments of consumer methods, and brings them into the core's form (pure).

A wrong argument raises `UserError` at once: used later, in a background request, it would stop the
consumer with an error that nobody sees.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from math import isnan
from numbers import Real
from typing import Any, SupportsIndex

from kdist.client.committed import Offsets
from kdist.client.consumer.batch import Decoder
from kdist.client.offsets import OffsetAndMetadata, OffsetAndTimestamp, check_time
from kdist.config.kinds import INT32_MAX, INT64_MAX
from kdist.errors import KdistError, UserError
from kdist.model import NO_EPOCH, TopicPartition, topic_name_fault

Given = Mapping[TopicPartition, int | OffsetAndMetadata]


def checked_decoders(
    key: Decoder | None, value: Decoder | None
) -> tuple[Decoder | None, Decoder | None]:
    """The decoders; `UserError` unless each is callable or None."""
    for each in (key, value):
        if each is not None and not callable(each):
            raise UserError(f"a decoder must be a callable that takes bytes, not {each!r}")
    return key, value


def checked_topics(given: Iterable[str] | re.Pattern[str]) -> list[str] | re.Pattern[str]:
    """What to subscribe to; `UserError` for a bare string, which would be a list of letters."""
    if isinstance(given, str):
        raise UserError(f"topics must be a list: [{given!r}]")
    if isinstance(given, re.Pattern) and not isinstance(given.pattern, str):
        raise UserError(f"{given!r} matches bytes, but topic names are text")
    if not isinstance(given, re.Pattern | Iterable):
        raise UserError(f"topics must be a list of names or a pattern, not {given!r}")
    return given if isinstance(given, re.Pattern) else list(given)


def checked_names(topics: Iterable[Any]) -> set[str]:
    """These topics; `UserError` for a name that no topic can have."""
    names = set(topics)
    for name in names:
        _check_name(name)
    return names


def _check_name(topic: Any) -> None:
    fault = topic_name_fault(topic) if isinstance(topic, str) else "is not text"
    if fault:
        raise UserError(f"topic {topic!r} {fault}")


def check_listener(given: Any, kind: type) -> None:
    """`UserError` unless it is None or has the methods of `kind`; it need not be a subclass."""
    for name in vars(kind):
        if not (name.startswith("_") or given is None or callable(getattr(given, name, None))):
            raise UserError(f"{given!r} is not a {kind.__name__}: it has no method {name}")


def check_callable(given: Any, name: str) -> None:
    """It can be called: who finds out later does so in the background."""
    if not callable(given):
        raise UserError(f"{name} is a callable, not {given!r}")


def to_commit(given: Given | None) -> Offsets | None:
    """The offsets to commit, checked; None, which means all positions, stays None."""
    if given is None:
        return None
    _check_mapping(given, "offsets to commit")
    places = [
        each if isinstance(each, OffsetAndMetadata) else OffsetAndMetadata(each)
        for each in given.values()
    ]
    offsets = dict(zip(checked_partitions(given), places, strict=True))
    for key, each in offsets.items():
        check_offset(each.offset, each.leader_epoch, f" to commit for {key}")
    return offsets


def checked_partitions(given: Iterable[TopicPartition]) -> list[TopicPartition]:
    """Partitions, which may be given as plain pairs; `UserError` for anything else."""
    if not isinstance(given, Iterable):
        raise UserError(f"partitions must be a list of TopicPartition, not {given!r}")
    return [_partition(each) for each in given]


def _partition(given: Any) -> TopicPartition:
    is_pair = isinstance(given, tuple | list) and len(given) == 2
    if not is_pair or not _is_number(given[1], 0, INT32_MAX):
        raise UserError(f"{given!r} is not a partition: give TopicPartition(topic, number)")
    _check_name(given[0])
    return TopicPartition(*given)


def checked_times(given: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
    """Times by partition; partitions may be given as plain pairs."""
    _check_mapping(given, "times")
    for each in given.values():
        check_time(each)
    return dict(zip(checked_partitions(given), given.values(), strict=True))


def checked_max(given: int, name: str) -> int:
    """A limit on how many to return; `UserError` if it is below 1."""
    if not _is_number(given, 1, INT64_MAX):
        raise UserError(f"{name} must be 1 or more, not {given!r}")
    return given


def checked_end(timeout_s: Any, now_s: float) -> float | None:
    """The deadline of a poll that starts now; None for none. `UserError` also for NaN, with which
    the poll would never end.
    """
    check_timeout(timeout_s)
    return None if timeout_s is None else now_s + float(timeout_s)


def check_timeout(timeout_s: Any) -> None:
    """`UserError` unless it is a number of seconds, or None."""
    if timeout_s is not None and (not isinstance(timeout_s, Real) or isnan(timeout_s)):
        raise UserError(f"timeout_s must be a number of seconds or None, not {timeout_s!r}")


def _check_mapping(given: Any, what: str) -> None:
    if not isinstance(given, Mapping):
        raise UserError(f"{what} must be a dict by partition, not {given!r}")


def check_offset(offset: Any, leader_epoch: Any, what: str = "") -> None:
    """`UserError` unless both are numbers within their ranges."""
    if not _is_number(offset, 0, INT64_MAX):
        raise UserError(f"{offset!r} is not an offset{what}: they go from 0 to {INT64_MAX}")
    if not _is_number(leader_epoch, NO_EPOCH, INT32_MAX):
        raise UserError(f"{leader_epoch!r} is not a leader epoch: they go from 0 to {INT32_MAX}")


def _is_number(given: Any, least: int, most: int) -> bool:
    return isinstance(given, SupportsIndex) and least <= given.__index__() <= most


def found_offsets(
    found: Mapping[TopicPartition, OffsetAndTimestamp | None],
) -> dict[TopicPartition, int]:
    """The offsets alone; none is missing, as every partition has a first and an end offset."""
    return {key: each.offset for key, each in found.items() if each is not None}


def ignore(offsets: Offsets, error: KdistError | None) -> None:
    """The default `on_committed`, which does nothing."""
