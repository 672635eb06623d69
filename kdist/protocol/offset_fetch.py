"""OffsetFetch (key 9): read a group's committed offsets.

    version  changed
    0        from ZooKeeper
    1        from __consumer_offsets
    2        topics None asks for all; response: an error for the whole group (KIP-88)
    3        response: throttle time (KIP-124)
    4        throttling happens after the response is sent (KIP-219)
    5        response: leader epoch of the committed offset (KIP-320)
    6        flexible (KIP-482)
    7        require_stable: UNSTABLE_OFFSET_COMMIT while a transaction is open (KIP-447)
    8        many groups at once: `groups` instead of the fields of one group (KIP-709)

A partition without a committed offset, and an unknown group, give offset -1 and no error.
"""

from __future__ import annotations

from kdist.protocol.api import Api
from kdist.protocol.schema import at, int16, int32, int64, message, nullable_string, string, struct


@struct
class OffsetFetchTopic:
    name: string
    partition_indexes: list[int32]


@struct
class OffsetFetchGroup:
    """A group; `topics` None asks for all it has committed."""

    group_id: string
    topics: list[OffsetFetchTopic] | None


@message(flexible=6)
class OffsetFetchRequest:
    """Up to version 7 `group_id` and `topics`, from 8 on `groups`."""

    group_id: string = at(until=7, default="")
    topics: list[OffsetFetchTopic] | None = at(until=7, nullable_since=2, default=[])
    groups: list[OffsetFetchGroup] = at(since=8, default=[])
    require_stable: bool = at(since=7, default=False)


@struct
class OffsetFetchPartitionResult:
    """`committed_offset` -1: none."""

    partition_index: int32
    committed_offset: int64
    committed_leader_epoch: int32 = at(since=5, default=-1, ignorable=True)
    metadata: nullable_string
    error_code: int16


@struct
class OffsetFetchTopicResult:
    name: string
    partitions: list[OffsetFetchPartitionResult]


@struct
class OffsetFetchGroupResult:
    group_id: string
    topics: list[OffsetFetchTopicResult]
    error_code: int16 = 0


@message(flexible=6)
class OffsetFetchResponse:
    """Up to version 7 `topics` and `error_code`, from 8 on `groups`."""

    throttle_time_ms: int32 = at(since=3, default=0, ignorable=True)
    topics: list[OffsetFetchTopicResult] = at(until=7, default=[])
    error_code: int16 = at(since=2, until=7, default=0, ignorable=True)
    groups: list[OffsetFetchGroupResult] = at(since=8, default=[])


API = Api(9, OffsetFetchRequest, OffsetFetchResponse, newest=8)
