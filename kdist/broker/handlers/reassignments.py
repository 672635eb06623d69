"""AlterPartitionReassignments and ListPartitionReassignments (keys 45, 46), by the controller.

Any other broker answers NOT_CONTROLLER.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import groupby

from kdist.controller.controller import Controller
from kdist.controller.movements import Moved
from kdist.controller.reassignments import Target
from kdist.errors import ApiError, Error
from kdist.model import TopicPartition
from kdist.protocol.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ReassignablePartitionResponse,
    ReassignableTopicResponse,
)
from kdist.protocol.list_partition_reassignments import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
    OngoingPartitionReassignment,
    OngoingTopicReassignment,
)


class ReassignmentsHandler:
    """Owner: the broker."""

    def __init__(self, controller: Controller) -> None:
        self._controller = controller

    async def alter(
        self, request: AlterPartitionReassignmentsRequest
    ) -> AlterPartitionReassignmentsResponse:
        """Each partition is answered by itself; INVALID_REQUEST for one that is named twice."""
        named = [
            (TopicPartition(topic.name, each.partition_index), each.replicas)
            for topic in request.topics
            for each in topic.partitions
        ]
        targets: dict[TopicPartition, Target | None] = {}
        twice: Moved = {}
        for partition, replicas in named:
            if partition in targets:
                why = "The partition is named more than once."
                twice[partition] = ApiError(Error.INVALID_REQUEST, why)
            targets[partition] = None if replicas is None else tuple(replicas)
        for partition in twice:
            del targets[partition]
        try:
            outcomes = await self._controller.alter_reassignments(targets, request.timeout_ms)
        except ApiError as failure:
            return AlterPartitionReassignmentsResponse(
                error_code=failure.error, error_message=failure.detail, responses=[]
            )
        outcomes |= twice
        return AlterPartitionReassignmentsResponse(
            error_code=Error.NONE,
            responses=[
                ReassignableTopicResponse(
                    name=name, partitions=[_result(each, outcomes[each]) for each in partitions]
                )
                for name, partitions in _by_topic(outcomes)
            ],
        )

    async def list(
        self, request: ListPartitionReassignmentsRequest
    ) -> ListPartitionReassignmentsResponse:
        """What is being moved of what is asked for."""
        asked = (
            None
            if request.topics is None
            else [
                TopicPartition(topic.name, index)
                for topic in request.topics
                for index in topic.partition_indexes
            ]
        )
        try:
            found = await self._controller.list_reassignments(asked, request.timeout_ms)
        except ApiError as failure:
            return ListPartitionReassignmentsResponse(
                error_code=failure.error, error_message=failure.detail, topics=[]
            )
        return ListPartitionReassignmentsResponse(
            error_code=Error.NONE,
            topics=[
                OngoingTopicReassignment(
                    name=name,
                    partitions=[
                        OngoingPartitionReassignment(
                            partition_index=each.partition,
                            replicas=[*found[each].replicas],
                            adding_replicas=[*found[each].adding],
                            removing_replicas=[*found[each].removing],
                        )
                        for each in partitions
                    ],
                )
                for name, partitions in _by_topic(found)
            ],
        )


def _by_topic(found: Iterable[TopicPartition]) -> Iterator[tuple[str, list[TopicPartition]]]:
    for name, partitions in groupby(sorted(found), key=lambda each: each.topic):
        yield name, [*partitions]


def _result(partition: TopicPartition, fault: ApiError | None) -> ReassignablePartitionResponse:
    return ReassignablePartitionResponse(
        partition_index=partition.partition,
        error_code=Error.NONE if fault is None else fault.error,
        error_message=None if fault is None else fault.detail or fault.error.sentence,
    )
