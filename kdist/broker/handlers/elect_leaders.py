"""ElectLeaders (key 43): carried out by the controller; any other broker answers NOT_CONTROLLER.

As in Apache Kafka, that error is each partition's and not the response's, so that clients report
it. A request for all partitions is answered for those that needed an election.
"""

from __future__ import annotations

from itertools import groupby

from kdist.broker.metadata_cache import MetadataCache
from kdist.controller.controller import Controller
from kdist.controller.leader_elections import Outcomes
from kdist.errors import ApiError, Error
from kdist.model import TopicPartition
from kdist.protocol.elect_leaders import (
    PREFERRED,
    UNCLEAN,
    ElectionPartitionResult,
    ElectionTopicResult,
    ElectLeadersRequest,
    ElectLeadersResponse,
)


class ElectLeadersHandler:
    """Owner: the broker."""

    def __init__(self, controller: Controller, cache: MetadataCache) -> None:
        self._controller = controller
        self._cache = cache

    async def answer(self, request: ElectLeadersRequest) -> ElectLeadersResponse:
        """INVALID_REQUEST for an election type that does not exist."""
        if request.election_type not in (PREFERRED, UNCLEAN):
            return _response({}, Error.INVALID_REQUEST)
        asked = _partitions(request)
        try:
            outcomes = await self._controller.elect_leaders(
                asked, request.election_type, request.timeout_ms
            )
        except ApiError as failure:
            outcomes = dict.fromkeys(self._all() if asked is None else asked, failure)
        return _response(outcomes)

    def _all(self) -> list[TopicPartition]:
        return [
            TopicPartition(name, index)
            for name, topic in self._cache.topics.items()
            for index in topic.partitions
        ]


def _partitions(request: ElectLeadersRequest) -> list[TopicPartition] | None:
    """Each once; None for all."""
    if request.topic_partitions is None:
        return None
    named = {
        TopicPartition(each.topic, index): None
        for each in request.topic_partitions
        for index in each.partitions
    }
    return list(named)


def _response(outcomes: Outcomes, error: Error = Error.NONE) -> ElectLeadersResponse:
    return ElectLeadersResponse(
        error_code=error,
        replica_election_results=[
            ElectionTopicResult(
                topic=name,
                partition_result=[_result(each, outcomes[each]) for each in partitions],
            )
            for name, partitions in groupby(sorted(outcomes), key=lambda each: each.topic)
        ],
    )


def _result(partition: TopicPartition, fault: ApiError | None) -> ElectionPartitionResult:
    if fault is None:
        return ElectionPartitionResult(partition_id=partition.partition, error_code=Error.NONE)
    return ElectionPartitionResult(
        partition_id=partition.partition, error_code=fault.error, error_message=fault.detail
    )
