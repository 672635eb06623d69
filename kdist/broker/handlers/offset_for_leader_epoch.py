"""OffsetForLeaderEpoch (key 23): where a leader epoch of a partition ends, from its leader's log.

A client whose log or position lies beyond that end has seen records that are no longer in the log.
Source: KIP-101, KIP-279, KIP-320.
"""

from __future__ import annotations

from kdist.errors import ApiError, Error
from kdist.model import TopicPartition
from kdist.protocol.offset_for_leader_epoch import (
    AskedEpoch,
    EpochEnd,
    EpochEndTopic,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
)
from kdist.replication.replicas import Replicas


def answer(
    request: OffsetForLeaderEpochRequest, replicas: Replicas
) -> OffsetForLeaderEpochResponse:
    """Epoch and offset of each partition; both -1 for an epoch that the leader does not know.

    FENCED_LEADER_EPOCH, UNKNOWN_LEADER_EPOCH, NOT_LEADER_OR_FOLLOWER.
    """
    return OffsetForLeaderEpochResponse(
        topics=[
            EpochEndTopic(
                topic=topic.topic,
                partitions=[_end(topic.topic, asked, replicas) for asked in topic.partitions],
            )
            for topic in request.topics
        ]
    )


def _end(topic: str, asked: AskedEpoch, replicas: Replicas) -> EpochEnd:
    result = EpochEnd(error_code=Error.NONE, partition=asked.partition)
    try:
        partition = replicas.get(TopicPartition(topic, asked.partition))
        partition.require_leader(asked.current_leader_epoch)
        result.leader_epoch, result.end_offset = partition.epoch_end(asked.leader_epoch)
    except ApiError as error:
        result.error_code = error.error
    return result
