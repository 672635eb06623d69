"""DescribeLogDirs (key 35): a broker's log directories, and the size of each replica (KIP-113).

version  changed
1        throttling happens after the response is sent (KIP-219)
2        flexible (KIP-482)
3        response: an error for the whole request (KIP-784)
4        response: total and usable bytes of the volume (KIP-827)
"""

from __future__ import annotations

from kdist.protocol.api import Api
from kdist.protocol.schema import at, int16, int32, int64, message, string, struct


@struct
class AskedLogDirTopic:
    topic: string
    partitions: list[int32]


@message(flexible=2)
class DescribeLogDirsRequest:
    """`topics` None asks for every replica on the broker."""

    topics: list[AskedLogDirTopic] | None


@struct
class LogDirPartition:
    """`partition_size` in bytes; `offset_lag`: records that it is behind the high watermark."""

    partition_index: int32
    partition_size: int64
    offset_lag: int64
    is_future_key: bool = False


@struct
class LogDirTopic:
    name: string
    partitions: list[LogDirPartition]


@struct
class LogDirResult:
    """One log directory; sizes of its volume in bytes, -1 if not known."""

    error_code: int16
    log_dir: string
    topics: list[LogDirTopic]
    total_bytes: int64 = at(since=4, default=-1, ignorable=True)
    usable_bytes: int64 = at(since=4, default=-1, ignorable=True)


@message(flexible=2)
class DescribeLogDirsResponse:
    """Replicas that are not on this broker are left out."""

    throttle_time_ms: int32 = 0
    error_code: int16 = at(since=3, default=0, ignorable=True)
    results: list[LogDirResult]


API = Api(35, DescribeLogDirsRequest, DescribeLogDirsResponse, newest=4)
