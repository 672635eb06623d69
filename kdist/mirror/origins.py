"""The topic `__kdist_mirror_origins` of a cluster: which of its topics are mirrored, from where.

    key     the topic's name in this cluster
    value   {"topic": its name in the source, "id": its id in the source,
            "through": [id of the first cluster, ..., id of the source],
            "old_partitions": how many it had when its mirror began,
            "since_ms": when that was,
            "is_released": whether the topic is this cluster's own from now on,
            "others": [the same of each other topic that is mirrored into this one, ...]};
            null: the same, but of a topic whose former origin does not matter

It has one partition and is compacted; the last record of a key counts. A flow first writes a
topic's origin to its target, then reads the origins in its source, and only then sends records: so
if two flows would mirror a topic into each other, at least one of them sees the other's origin.

A record that is not an origin holds back its own topic: in a source it is not mirrored on. In a
target the flow that mirrors it there writes it anew.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from typing import Any

from kdist.client.admin.topics import create_topic
from kdist.client.cluster import Cluster
from kdist.client.fetch_once import fetch_at
from kdist.client.offsets import find_ranges
from kdist.client.produce_once import produce
from kdist.errors import ApiError, Error
from kdist.mirror.selection import UNREADABLE, Origin
from kdist.model import TopicPartition
from kdist.records.batch import iter_headers
from kdist.records.build import build_batch, read_batch
from kdist.records.record import Record

logger = logging.getLogger(__name__)

TOPIC = "__kdist_mirror_origins"
_PARTITION = TopicPartition(TOPIC, 0)
_NAMES_MAX = 1_000  # per batch: even with the longest names it is smaller than a broker's limit


async def read_origins(cluster: Cluster) -> dict[str, Origin]:
    """The origins of a cluster's mirrored topics, by name; empty if nothing was mirrored to it."""
    (topic,) = (await cluster.metadata([TOPIC])).topics
    if topic.error_code == Error.UNKNOWN_TOPIC_OR_PARTITION:
        return {}
    offset, end = (await find_ranges(cluster, [_PARTITION]))[_PARTITION]
    origins: dict[str, Origin] = {}
    while offset < end:
        buffer = (await fetch_at(cluster, _PARTITION, offset)).buffer
        begin = offset
        for at, header in iter_headers(buffer, may_end_partial=True):
            offset = header.next_offset
            for record in read_batch(buffer, at) if not header.is_control else ():
                _apply(record, origins)
        if offset == begin:
            break  # the remaining offsets were compacted away
    return origins


async def write_origins(
    cluster: Cluster, origins: Mapping[str, Origin | None], now_ms: int
) -> None:
    """Write the origins of topics of this cluster; None makes a topic the cluster's own."""
    (topic,) = (await cluster.metadata([TOPIC])).topics
    if topic.error_code == Error.UNKNOWN_TOPIC_OR_PARTITION:
        try:
            await create_topic(cluster, TOPIC, 1, settings={"cleanup.policy": "compact"})
        except ApiError as error:
            if error.error is not Error.TOPIC_ALREADY_EXISTS:
                raise
    names = sorted(origins)
    for start in range(0, len(names), _NAMES_MAX):
        some = names[start : start + _NAMES_MAX]
        batch = build_batch(
            [_value(origins[name]) for name in some],
            [name.encode() for name in some],
            timestamp_ms=now_ms,
        )
        await produce(cluster, {_PARTITION: batch})


def _value(origin: Origin | None) -> bytes | None:
    if origin is None or not origin.through:  # releasing one that is unreadable leaves nothing
        return None
    return json.dumps(_as_json(origin)).encode()


def _as_json(origin: Origin) -> dict[str, Any]:
    others = [_as_json(each) for each in origin.others]
    return {**origin._asdict(), "others": others}


def _origin(said: Mapping[str, Any]) -> Origin:
    if not said["through"]:
        raise ValueError("no cluster")
    return Origin(
        said["topic"],
        tuple(said["through"]),
        said.get("id", ""),
        said.get("old_partitions"),
        said.get("is_released", False),
        tuple(map(_origin, said.get("others", ()))),
        said.get("since_ms"),
    )


def _apply(record: Record, origins: dict[str, Origin]) -> None:
    name = (record.key or b"").decode(errors="replace")
    if record.value is None:
        origins.pop(name, None)
        return
    try:
        origins[name] = _origin(json.loads(record.value))
    except (ValueError, KeyError, TypeError) as error:
        logger.warning("%s has a record of %s that is not an origin: %r", TOPIC, name, error)
        origins[name] = UNREADABLE
