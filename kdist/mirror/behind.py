"""The lag of a flow, for each partition.

    records   the source's log end offset, less the position
    bytes     an estimate: those records, times the mean record size of the first batch of them
    seconds   the age of the first record that is not in the target; 0 if there is none, or if it
              has no timestamp

Offsets of control records and of records compacted away count until the position is past them;
records that retention has deleted do not count.
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
    """The lag of one partition; `bytes_about` is an estimate."""

    records: int
    bytes_about: float
    seconds: float


NO_LAG = Lag(0, 0.0, 0.0)


async def measure_lag(flow: RunningFlow, now_ms: int) -> None:
    """Update the lag metrics of a running flow's partitions. `ApiError`."""
    positions = await _positions(flow)
    ranges = await find_ranges(flow.source, positions, is_committed_only=True)
    for partition, position in positions.items():
        start, end = ranges[partition]
        lag = _held_lag(flow.streams.get(partition), end, now_ms)
        if lag is None:
            lag = await look_behind(flow.source, partition, (max(position, start), end), now_ms)
        if partition not in flow.streams:
            continue  # revoked meanwhile
        metrics = flow.measures.streams[flow.labels(partition)]
        metrics.lag_records = lag.records
        metrics.lag_bytes = lag.bytes_about
        metrics.lag_seconds = lag.seconds


async def _positions(flow: RunningFlow) -> dict[TopicPartition, int]:
    """The streams' positions; for a stream that does not know its own yet, the committed offset.

    Without that, 0 for a partition that is to be mirrored from the earliest record, and none for
    one from the latest.
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
    """The lag, by the oldest batch that the stream holds; None if it holds none."""
    held = stream.oldest if stream is not None else None
    if stream is None or held is None or stream.position is None:
        return None
    records = max(end - stream.position, 0)
    return Lag(records, records * len(held) / held.count, _age_s(held.timestamp, now_ms))


async def look_behind(
    cluster: Cluster, partition: TopicPartition, span: tuple[int, int], now_ms: int
) -> Lag:
    """The lag of a partition, whose position and log end offset are `span`. `ApiError`."""
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
    """A record's age; 0 for one without a timestamp, as written by producers before Kafka 0.10."""
    return max(0.0, (now_ms - timestamp_ms) / 1000) if timestamp_ms >= 0 else 0.0
