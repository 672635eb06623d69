"""How far a flow is behind, partition by partition.

    records   the source's log end, less the position
    bytes     those records, each as large as those that were looked at last
    seconds   the age of the first record that is not in the target; 0 when all are, or if it has
              no time

Records that only count offsets, markers of transactions and what was compacted away, are counted
until they are passed; what retention took is not.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from kdist.client.cluster import Cluster
from kdist.client.offsets import find_ranges
from kdist.mirror.looking import look_at
from kdist.mirror.stream import Stream
from kdist.model import TopicPartition

if TYPE_CHECKING:
    from kdist.mirror.flow import RunningFlow


class Lag(NamedTuple):
    """Of one partition; `bytes_about` is an estimate."""

    records: int
    bytes_about: float
    seconds: float


NO_LAG = Lag(0, 0.0, 0.0)


async def measure_lag(flow: RunningFlow, now_ms: int) -> None:
    """Bring the metrics of a running flow's partitions up to date. `ApiError`."""
    positions = await _positions(flow)
    ranges = await find_ranges(flow.source, positions, is_committed_only=True)
    for partition, position in positions.items():
        start, end = ranges[partition]
        lag = _held_lag(flow.streams.get(partition), end, now_ms)
        if lag is None:
            lag = await look_behind(flow.source, partition, (max(position, start), end), now_ms)
        if partition not in flow.streams:
            continue  # given to another meanwhile
        metrics = flow.measures.streams[flow.labels(partition)]
        metrics.lag_records = lag.records
        metrics.lag_bytes = lag.bytes_about
        metrics.lag_seconds = lag.seconds


async def _positions(flow: RunningFlow) -> dict[TopicPartition, int]:
    """Where the streams stand; of those that are still finding it out, by what was committed.

    A partition that is new is behind by all that it has, if it begins with the earliest.
    """
    known = {partition: stream.position for partition, stream in flow.streams.items()}
    unknown = [partition for partition, position in known.items() if position is None]
    committed = await flow.commits(unknown) if unknown else {}
    assert flow.topics is not None, "looked at first"
    for partition in unknown:
        if (found := committed[partition]) is not None:
            known[partition] = found.offset
        elif flow.topics.begin_at(partition) == "earliest":
            known[partition] = 0
    return {partition: position for partition, position in known.items() if position is not None}


def _held_lag(stream: Stream | None, end: int, now_ms: int) -> Lag | None:
    """The lag by what the stream holds, which is the first that is behind; None if nothing."""
    held = stream.oldest if stream is not None else None
    if stream is None or held is None or stream.position is None:
        return None
    records = max(end - stream.position, 0)
    return Lag(records, records * len(held) / held.count, _age_s(held.timestamp, now_ms))


async def look_behind(
    cluster: Cluster, partition: TopicPartition, span: tuple[int, int], now_ms: int
) -> Lag:
    """The lag of a partition whose position and log end are `span`. `ApiError`."""
    position, end = span
    if end <= position:
        return NO_LAG
    looked = await look_at(cluster, partition, position, 1)
    header = next(looked.headers(), None)
    if header is None:
        return Lag(end - position, 0.0, 0.0)
    record_bytes = header.size / max(header.record_count, 1)
    age_s = _age_s(header.base_timestamp, now_ms)
    return Lag(end - position, (end - position) * record_bytes, age_s)


def _age_s(timestamp_ms: int, now_ms: int) -> float:
    """How old a record is; 0 for one without a time, as producers before Kafka 0.10 send them."""
    return max(0.0, (now_ms - timestamp_ms) / 1000) if timestamp_ms >= 0 else 0.0
