"""StopReplica (key 5): the controller tells a broker to stop replicas, and maybe delete them.

    version  changed
    0        partitions in one list, each with its topic
    1        broker epoch (KIP-380); partitions by topic
    2        flexible (KIP-482)
    3        leader epoch, and whether to delete, for each partition (KIP-570)
    4        whether the controller is a KRaft one (KIP-866)

Between brokers only.
"""

from __future__ import annotations

from kdist.protocol.api import Api
from kdist.protocol.schema import at, int16, int32, int64, message, string, struct


@struct
class UngroupedPartition:
    """A partition with its topic, as version 0 has it."""

    topic_name: string
    partition_index: int32


@struct
class StoppedTopic:
    """The partitions of one topic, as versions 1 and 2 have them."""

    name: string
    partition_indexes: list[int32]


@struct
class StoppedPartition:
    """`leader_epoch` -2 goes with the deletion of the topic, and fences nothing."""

    partition_index: int32
    leader_epoch: int32 = -1
    delete_partition: bool


@struct
class StoppedTopicState:
    """The partitions of one topic, as version 3 has them."""

    topic_name: string
    partition_states: list[StoppedPartition]


@message(flexible=2)
class StopReplicaRequest:
    """Up to version 2, `delete_partitions` applies to all partitions."""

    controller_id: int32
    is_kraft_controller: bool = at(since=4, default=False)
    controller_epoch: int32
    broker_epoch: int64 = at(since=1, default=-1, ignorable=True)
    delete_partitions: bool = at(until=2, default=False)
    ungrouped_partitions: list[UngroupedPartition] = at(until=0, default=[])
    topics: list[StoppedTopic] = at(since=1, until=2, default=[])
    topic_states: list[StoppedTopicState] = at(since=3, default=[])


@struct
class StoppedPartitionResult:
    topic_name: string
    partition_index: int32
    error_code: int16


@message(flexible=2)
class StopReplicaResponse:
    error_code: int16
    partition_errors: list[StoppedPartitionResult]


API = Api(5, StopReplicaRequest, StopReplicaResponse, newest=4, is_between_brokers=True)
