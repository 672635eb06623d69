"""Checks of the arguments that applications pass to a producer, before anything is sent (pure).

`WrongType` for an argument of the wrong type, `ApiError` for an impossible topic or partition.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import repeat
from typing import Any, SupportsIndex

from kdist.client.coding import Coder, CodingContext, Role, WithContext, coded
from kdist.client.producer.topic import Topic
from kdist.errors import ApiError, Error, WrongType
from kdist.model import topic_name_fault
from kdist.records.record import Headers


def check_name(topic: Any) -> None:
    """Reject a topic name that no request can carry: a metadata request with it would fail for
    the other topics in it too.
    """
    if not isinstance(topic, str):
        raise WrongType(f"a topic is of type {type(topic).__name__}, not str")
    fault = topic_name_fault(topic)
    if fault is not None:
        raise ApiError(Error.INVALID_TOPIC_EXCEPTION, f"topic {topic!r} {fault}")


def check_partition(topic: Topic, partition: int | None) -> None:
    """`ApiError` if a partition was named that the topic does not have."""
    count = len(topic.queues)
    if partition is not None and not 0 <= partition < count:
        raise ApiError(
            Error.UNKNOWN_TOPIC_OR_PARTITION,
            f"topic {topic.name} has partitions 0 to {count - 1}, and no {partition}",
        )


def encoded(
    encoder: Coder | None, data: Any, topic: str, role: Role, headers: Headers
) -> bytes | None:
    """The bytes to send, by the encoder if there is one; None is null. `WrongType`."""
    if encoder is not None and data is not None:
        if isinstance(encoder, WithContext):
            data = encoder.call(data, CodingContext(topic, role, headers))
        else:
            data = encoder(data)
    if data is None or type(data) is bytes:
        return data
    if isinstance(data, bytes | bytearray | memoryview):
        return bytes(data)
    raise WrongType(
        f"a {role} is of type {type(data).__name__}, not bytes or None: give the producer "
        f"a {role}_encoder"
    )


def encoded_column(
    encoder: Coder | None, rows: Sequence[Any], topic: str, role: Role
) -> Sequence[Any]:
    """As `encoded`, for many; `Bulk` checks that the results are bytes."""
    if encoder is None:
        return rows
    return list(coded(encoder, rows, topic, role, repeat(())))


def listed(rows: Iterable[Any], name: str) -> Sequence[Any]:
    """The rows of a column as a sequence; `WrongType` if they are not iterable."""
    if not isinstance(rows, Iterable) or isinstance(rows, str | bytes):
        raise WrongType(f"{name} must be an iterable, such as a list of bytes, not {rows!r}")
    return rows if isinstance(rows, list | tuple) else list(rows)


TIMESTAMP_END = 1 << 62  # so that the difference of any two fits into 64 bits
_DATA = (bytes, type(None))
_NO_HEADERS = (str, bytes, Mapping)  # not even a mapping: a header's name may be repeated


def checked_headers(headers: Any) -> tuple[Any, ...]:
    """Headers as a tuple of pairs, each of a str and of bytes or None; `WrongType`."""
    if type(headers) is not list and isinstance(headers, _NO_HEADERS):
        raise WrongType(f"headers must be pairs of name and value, not a {type(headers).__name__}")
    if not isinstance(headers, Iterable):
        raise WrongType(f"headers must be pairs of name and value, not {headers!r}")
    pairs = tuple(headers)
    for pair in pairs:
        # The common pair is checked without calls, which would take longer than all else that is
        # done for its record.
        is_usual = type(pair) is tuple and len(pair) == 2 and type(pair[0]) is str
        if not is_usual or type(pair[1]) not in _DATA:
            _check_header(pair)
    return pairs


def _check_header(pair: Any) -> None:
    is_pair = isinstance(pair, (tuple, list)) and len(pair) == 2
    if not is_pair or not isinstance(pair[0], str) or not isinstance(pair[1], _DATA):
        raise WrongType(f"a header must be a pair of str and bytes (or None), not {pair!r}")


def checked_partition(partition: Any) -> Any:
    """A partition number, or None; `WrongType` for anything else."""
    if partition is None or type(partition) is int:
        return partition
    if not isinstance(partition, SupportsIndex) or isinstance(partition, bool):
        raise WrongType(f"a partition must be an int, not {partition!r}")
    return partition


def checked_timestamp(timestamp: Any) -> int:
    """Milliseconds since the epoch."""
    if type(timestamp) is not int or not 0 <= timestamp < TIMESTAMP_END:
        raise WrongType(f"a timestamp must be an int of ms since the epoch, not {timestamp!r}")
    return timestamp
