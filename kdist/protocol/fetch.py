"""Fetch (key 1): read record batches from partitions, for consumers and followers alike.

    version  changed
    0        message sets of magic 0; a single partial message may end them
    1        response: throttle time (KIP-13)
    2        message sets of magic 1 (KIP-32)
    3        max_bytes over all partitions, in request order, at least one whole batch (KIP-74)
    4        record batches of magic 2; isolation level, last stable offset, aborted ones (KIP-98)
    5        log start offset, both ways (KIP-107)
    6        response: KAFKA_STORAGE_ERROR may come (KIP-112)
    7        fetch sessions: a session's requests and responses name only what changed (KIP-227)
    8        throttling happens after the response is sent (KIP-219)
    9        current leader epoch, by which a stale client or leader is fenced (KIP-320)
    10       zstd may come; earlier it is UNSUPPORTED_COMPRESSION_TYPE (KIP-110)
    11       rack id and preferred read replica: consumers read from followers (KIP-392)
    12       flexible (KIP-482); last fetched epoch, diverging epoch, current leader (KIP-595)
    13       topic ids instead of names; their errors may come (KIP-516)
    14       OFFSET_MOVED_TO_TIERED_STORAGE may come (KIP-405); a log without tiers never sends it
    15       replica state instead of replica id (KIP-903)
    16       response: where current leaders listen (KIP-951)
    17       directory id of a follower's replica (KIP-853)

In a response to be encoded, `records` is a buffer, or a `Splice` that goes from its file to the
socket.
"""

from __future__ import annotations

from kdist.model import ZERO_UUID
from kdist.protocol.api import Api
from kdist.protocol.schema import (
    at,
    int8,
    int16,
    int32,
    int64,
    message,
    nullable_string,
    spliced_record_set,
    string,
    struct,
    uuid,
)

VERSION_OF_TOPIC_IDS = 13  # the first; all before it have names
NEWEST_BY_NAME = VERSION_OF_TOPIC_IDS - 1  # for clients that know topics by their names
CONSUMER = -1  # as the replica id


@struct
class FetchPartition:
    """`log_start_offset` is the follower's own; consumers leave it at -1."""

    partition: int32
    current_leader_epoch: int32 = at(since=9, default=-1, ignorable=True)
    fetch_offset: int64
    last_fetched_epoch: int32 = at(since=12, default=-1)
    log_start_offset: int64 = at(since=5, default=-1, ignorable=True)
    partition_max_bytes: int32
    replica_directory_id: uuid = at(since=17, tag=0, default=ZERO_UUID, ignorable=True)


@struct
class FetchTopic:
    """The partitions of one topic; their order matters since version 3.

    A name is refused where only an id can be sent: the fetch would be of no topic.
    """

    topic: string = at(until=12, default="")
    topic_id: uuid = at(since=13, default=ZERO_UUID, ignorable=True)
    partitions: list[FetchPartition]


@struct
class ForgottenTopic:
    topic: string = at(until=12, default="")
    topic_id: uuid = at(since=13, default=ZERO_UUID, ignorable=True)
    partitions: list[int32]


@struct
class ReplicaState:
    """The follower that fetches, and its broker epoch."""

    replica_id: int32 = CONSUMER
    replica_epoch: int64 = -1


@message(flexible=12)
class FetchRequest:
    """The defaults of the session fields ask for a full fetch outside any session.

    `follower_id` says who fetches, in every version.
    """

    cluster_id: nullable_string = at(since=12, tag=0, default=None, ignorable=True)
    replica_id: int32 = at(until=14, default=CONSUMER)
    replica_state: ReplicaState | None = at(since=15, tag=1, default=None)
    max_wait_ms: int32
    min_bytes: int32
    max_bytes: int32 = at(since=3, default=0x7FFFFFFF, ignorable=True)
    isolation_level: int8 = at(since=4, default=0, ignorable=True)
    session_id: int32 = at(since=7, default=0, ignorable=True)
    session_epoch: int32 = at(since=7, default=-1, ignorable=True)
    topics: list[FetchTopic]
    forgotten_topics_data: list[ForgottenTopic] = at(since=7, default=[])
    rack_id: string = at(since=11, default="", ignorable=True)

    @property
    def follower_id(self) -> int:
        """The broker id of the follower that fetches; negative if a consumer does."""
        return self.replica_id if self.replica_state is None else self.replica_state.replica_id


@struct
class DivergingEpoch:
    """Where the follower's log diverges from the leader's: the largest common epoch and its end."""

    epoch: int32 = -1
    end_offset: int64 = -1


@struct
class CurrentLeader:
    """The broker to ask instead, without asking for metadata before (KIP-951); in Produce, too."""

    leader_id: int32 = -1
    leader_epoch: int32 = -1


@struct
class NodeEndpoint:
    """Where that broker listens, for clients of the listener that the request came in on."""

    node_id: int32
    host: string
    port: int32
    rack: nullable_string = None


@struct
class SnapshotId:
    """A snapshot to fetch instead; only KRaft's own log has any."""

    end_offset: int64 = -1
    epoch: int32 = -1


@struct
class AbortedTransaction:
    """Records of `producer_id` from `first_offset` to its abort marker are to be skipped."""

    producer_id: int64
    first_offset: int64


@struct
class FetchPartitionResult:
    """`aborted_transactions` is None where the isolation level is read_uncommitted."""

    partition_index: int32
    error_code: int16
    high_watermark: int64
    last_stable_offset: int64 = at(since=4, default=-1, ignorable=True)
    log_start_offset: int64 = at(since=5, default=-1, ignorable=True)
    diverging_epoch: DivergingEpoch | None = at(since=12, tag=0, default=None)
    current_leader: CurrentLeader | None = at(since=12, tag=1, default=None)
    snapshot_id: SnapshotId | None = at(since=12, tag=2, default=None)
    aborted_transactions: list[AbortedTransaction] | None = at(
        since=4, default=None, ignorable=True
    )
    preferred_read_replica: int32 = at(since=11, default=-1)
    records: spliced_record_set = None


@struct
class FetchTopicResult:
    topic: string = at(until=12, default="", ignorable=True)
    topic_id: uuid = at(since=13, default=ZERO_UUID, ignorable=True)
    partitions: list[FetchPartitionResult]


@message(flexible=12)
class FetchResponse:
    """Within a session only partitions with something new appear."""

    throttle_time_ms: int32 = at(since=1, default=0, ignorable=True)
    error_code: int16 = at(since=7, default=0, ignorable=True)
    session_id: int32 = at(since=7, default=0)
    responses: list[FetchTopicResult]
    node_endpoints: list[NodeEndpoint] = at(since=16, tag=0, default=[], ignorable=True)


API = Api(1, FetchRequest, FetchResponse, newest=17)
