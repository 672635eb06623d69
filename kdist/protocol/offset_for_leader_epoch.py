"""OffsetForLeaderEpoch (key 23): where a leader epoch of a partition ends (KIP-101).

    version  changed
    0        the end offset of the epoch
    1        response: the epoch that the offset belongs to (KIP-279)
    2        the leader epoch that the client knows; response: throttle time (KIP-320)
    3        replica id: a follower, a consumer, or a consumer that debugs (KIP-320)
    4        flexible (KIP-482)

Sent to the partition's leader, by followers before they truncate, and by consumers before they go
on after a change of leader.
"""

from __future__ import annotations

from kdist.protocol.api import Api
from kdist.protocol.schema import at, int16, int32, int64, message, string, struct

CONSUMER, DEBUG_CONSUMER = -1, -2  # replica ids of clients that are not brokers
UNDEFINED = -1  # as epoch and end offset: the leader has no epoch that is old enough, or none


@struct
class AskedEpoch:
    """`current_leader_epoch` -1 is not compared with the leader's."""

    partition: int32
    current_leader_epoch: int32 = at(since=2, default=-1, ignorable=True)
    leader_epoch: int32


@struct
class AskedEpochTopic:
    topic: string
    partitions: list[AskedEpoch]


@message(flexible=4)
class OffsetForLeaderEpochRequest:
    """The epochs to look up, and the sender's replica id."""

    replica_id: int32 = at(since=3, default=DEBUG_CONSUMER, ignorable=True)
    topics: list[AskedEpochTopic]


@struct
class EpochEnd:
    """The largest epoch up to the requested one, and the offset after its last record."""

    error_code: int16
    partition: int32
    leader_epoch: int32 = at(since=1, default=UNDEFINED, ignorable=True)
    end_offset: int64 = UNDEFINED


@struct
class EpochEndTopic:
    topic: string
    partitions: list[EpochEnd]


@message(flexible=4)
class OffsetForLeaderEpochResponse:
    throttle_time_ms: int32 = at(since=2, default=0, ignorable=True)
    topics: list[EpochEndTopic]


API = Api(23, OffsetForLeaderEpochRequest, OffsetForLeaderEpochResponse, newest=4)
