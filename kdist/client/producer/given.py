"""What applications give a producer, checked before anything is done with it (pure).

`TypeError` for what is of another kind, `ApiError` for topics and partitions that cannot be.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import isnan
from numbers import Real
from typing import Any, SupportsIndex

from kdist.client.producer.settings import Encoder
from kdist.client.producer.topics import Topic
from kdist.errors import ApiError, Error
from kdist.model import topic_name_fault


def check_name(topic: Any) -> None:
    """What no request can carry is refused here: asked for, it would be in the way of others."""
    if not isinstance(topic, str):
        raise TypeError(f"a topic is of type {type(topic).__name__}, not str")
    fault = topic_name_fault(topic)
    if fault is not None:
        raise ApiError(Error.INVALID_TOPIC_EXCEPTION, f"topic {topic!r} {fault}")


def check_partition(topic: Topic, partition: int | None) -> None:
    """The partition, if one was named, is one of the topic's; `ApiError`."""
    count = len(topic.queues)
    if partition is not None and not 0 <= partition < count:
        raise ApiError(
            Error.UNKNOWN_TOPIC_OR_PARTITION,
            f"topic {topic.name} has partitions 0 to {count - 1}, and no {partition}",
        )


def encoded(encoder: Encoder | None, data: Any, what: str) -> bytes | None:
    """Bytes to be sent, None for null; `TypeError`."""
    if encoder is not None and data is not None:
        data = encoder(data)
    if data is None or type(data) is bytes:
        return data
    if isinstance(data, bytes | bytearray | memoryview):
        return bytes(data)
    raise TypeError(
        f"a {what} is of type {type(data).__name__}, not bytes or None: give the producer "
        f"a {what}_encoder"
    )


def encoded_column(encoder: Encoder | None, rows: Sequence[Any]) -> Sequence[Any]:
    """As `encoded`, of many, but that bytes are checked where they are encoded."""
    if encoder is None:
        return rows
    return [None if row is None else encoder(row) for row in rows]


def listed(rows: Iterable[Any], name: str) -> Sequence[Any]:
    """The rows of a column; `TypeError` for what has none."""
    if not isinstance(rows, Iterable):
        raise TypeError(f"{name} is something to iterate over, as a list of bytes, not {rows!r}")
    return rows if isinstance(rows, list | tuple) else list(rows)


TIMESTAMP_END = 1 << 62  # no two are over 64 bits apart
_DATA = (bytes, type(None))
_NO_HEADERS = (str, bytes, Mapping)  # a name may come more than once


def checked_headers(headers: Any) -> tuple[Any, ...]:
    """Pairs of a str, and bytes or None."""
    if type(headers) is not list and isinstance(headers, _NO_HEADERS):
        raise TypeError(f"headers are pairs of name and value, not a {type(headers).__name__}")
    pairs = tuple(headers)
    for pair in pairs:
        # The usual pair without calls: with them a header takes longer than the rest of its record.
        is_usual = type(pair) is tuple and len(pair) == 2 and type(pair[0]) is str
        if not is_usual or type(pair[1]) not in _DATA:
            _check_header(pair)
    return pairs


def _check_header(pair: Any) -> None:
    is_pair = isinstance(pair, (tuple, list)) and len(pair) == 2
    if not is_pair or not isinstance(pair[0], str) or not isinstance(pair[1], _DATA):
        raise TypeError(f"a header is a str with bytes or None, not {pair!r}")


def checked_partition(partition: Any) -> Any:
    """A number, or None."""
    if partition is None or type(partition) is int:
        return partition
    if not isinstance(partition, SupportsIndex):
        raise TypeError(f"a partition is an int, not {partition!r}")
    return partition


def checked_timestamp(timestamp: Any) -> int:
    """Milliseconds since the epoch."""
    if type(timestamp) is not int or not 0 <= timestamp < TIMESTAMP_END:
        raise TypeError(f"a timestamp is an int of ms since the epoch, not {timestamp!r}")
    return timestamp


def check_timeout(timeout: Any) -> None:
    """A number of seconds, or None."""
    if timeout is not None and (not isinstance(timeout, Real) or isnan(timeout)):
        raise TypeError(f"timeout is a number of seconds or None, not {timeout!r}")
