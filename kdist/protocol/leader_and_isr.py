"""LeaderAndIsr (key 4): the controller tells a broker which partitions it leads or follows.

    version  changed
    0        partitions in one list, each with its topic
    1        is_new: the replica has no log yet, and creating one is right (KIP-112)
    2        broker epoch (KIP-380); partitions by topic
    3        replicas that a reassignment adds and removes (KIP-455)
    4        flexible (KIP-482)
    5        topic id; type of the request; response by topic id (KIP-516)
    6        leader recovery state after an unclean election (KIP-704)
    7        whether the controller is a KRaft one (KIP-866)

Between brokers only.
"""

from __future__ import annotations

from kdist.model import ZERO_UUID
from kdist.protocol.alter_partition import ELIGIBLE_REPLICAS_TAG
from kdist.protocol.api import Api
from kdist.protocol.schema import at, int8, int16, int32, int64, message, string, struct, uuid

INCREMENTAL, FULL = 1, 2  # types of this request, and of UpdateMetadata


@struct
class LeaderAndIsrPartition:
    """`partition_epoch` is the version of the partition's state znode.

    `eligible_replicas`, kdist's own, may be elected besides the ISR (KIP-966).
    """

    topic_name: string = at(until=1, default="", ignorable=True)
    partition_index: int32
    controller_epoch: int32
    leader: int32
    leader_epoch: int32
    isr: list[int32]
    partition_epoch: int32
    replicas: list[int32]
    adding_replicas: list[int32] = at(since=3, default=[], ignorable=True)
    removing_replicas: list[int32] = at(since=3, default=[], ignorable=True)
    is_new: bool = at(since=1, default=False, ignorable=True)
    leader_recovery_state: int8 = at(since=6, default=0)
    eligible_replicas: list[int32] = at(
        since=4, tag=ELIGIBLE_REPLICAS_TAG, default=[], ignorable=True
    )


@struct
class LeaderAndIsrTopic:
    topic_name: string
    topic_id: uuid = at(since=5, default=ZERO_UUID, ignorable=True)
    partition_states: list[LeaderAndIsrPartition]


@struct
class LiveLeader:
    """Where followers reach a leader."""

    broker_id: int32
    host_name: string
    port: int32


@message(flexible=4)
class LeaderAndIsrRequest:
    """Type FULL: all the broker's partitions are listed; INCREMENTAL: only some; 0: not known."""

    controller_id: int32
    is_kraft_controller: bool = at(since=7, default=False)
    controller_epoch: int32
    broker_epoch: int64 = at(since=2, default=-1, ignorable=True)
    type: int8 = at(since=5, default=0)
    ungrouped_partition_states: list[LeaderAndIsrPartition] = at(until=1, default=[])
    topic_states: list[LeaderAndIsrTopic] = at(since=2, default=[])
    live_leaders: list[LiveLeader]


@struct
class LeaderAndIsrPartitionResult:
    topic_name: string = at(until=4, default="", ignorable=True)
    partition_index: int32
    error_code: int16


@struct
class LeaderAndIsrTopicResult:
    topic_id: uuid
    partition_errors: list[LeaderAndIsrPartitionResult]


@message(flexible=4)
class LeaderAndIsrResponse:
    """Up to version 4 `partition_errors`, from 5 on `topics`."""

    error_code: int16
    partition_errors: list[LeaderAndIsrPartitionResult] = at(until=4, default=[])
    topics: list[LeaderAndIsrTopicResult] = at(since=5, default=[])


API = Api(4, LeaderAndIsrRequest, LeaderAndIsrResponse, newest=7, is_between_brokers=True)
