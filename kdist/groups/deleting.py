"""DeleteGroups and OffsetDelete: delete groups, or some of the offsets that they committed.

    group                       DeleteGroups        OffsetDelete
    EMPTY                       deleted             deleted
    of consumers, with members  NON_EMPTY_GROUP     deleted for topics that no member reads, else
                                                    GROUP_SUBSCRIBED_TO_TOPIC
    of others, with members     NON_EMPTY_GROUP     NON_EMPTY_GROUP

Requests are answered once the tombstones are in the log, so that what is deleted stays deleted.
Source: KIP-229, KIP-496, Apache Kafka's `GroupCoordinator.handleDeleteGroups` and
`handleDeleteOffsets`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial

from kdist.errors import Error
from kdist.groups.answers import COMMIT_ERRORS
from kdist.groups.context import GroupsContext
from kdist.groups.group import Group
from kdist.groups.maintenance import GroupMaintenance
from kdist.groups.registry import Registry
from kdist.groups.states import EMPTY
from kdist.model import TopicPartition
from kdist.protocol.delete_groups import (
    DeletedGroupResult,
    DeleteGroupsRequest,
    DeleteGroupsResponse,
)
from kdist.protocol.offset_delete import (
    ForgottenPartitionResult,
    ForgottenTopicResult,
    OffsetDeleteRequest,
    OffsetDeleteResponse,
)

Results = Mapping[TopicPartition, Error]


class Deleter:
    """Part of the coordinator. Has no state of its own."""

    def __init__(
        self, context: GroupsContext, registry: Registry, maintenance: GroupMaintenance
    ) -> None:
        self._context = context
        self._registry = registry
        self._maintenance = maintenance

    def delete_groups(
        self, request: DeleteGroupsRequest, reply: Callable[[DeleteGroupsResponse], None]
    ) -> None:
        """Answer with one result per group, also if the request names one twice."""
        wanted = list(dict.fromkeys(request.groups_names))
        results: dict[str, Error] = {}

        def settle(group_id: str, error: Error) -> None:
            results[group_id] = error
            if len(results) == len(wanted):
                self._context.answer(reply, _groups_response(results))

        if not wanted:
            self._context.answer(reply, _groups_response(results))
        for group_id in wanted:
            self._delete(group_id, partial(settle, group_id))

    def _delete(self, group_id: str, settle: Callable[[Error], None]) -> None:
        error, group = self._registry.find(group_id)
        if group is None:
            settle(error or Error.GROUP_ID_NOT_FOUND)
        elif group.state is not EMPTY:
            settle(Error.NON_EMPTY_GROUP)
        else:
            self._maintenance.delete(group, lambda error: settle(COMMIT_ERRORS.get(error, error)))

    def delete_offsets(
        self, request: OffsetDeleteRequest, reply: Callable[[OffsetDeleteResponse], None]
    ) -> None:
        """Answer with a result per partition, or with one error for the whole request."""
        error, group = self._registry.find(request.group_id)
        if not request.group_id:
            error, group = Error.INVALID_GROUP_ID, None
        if group is None:
            self._refuse(error or Error.GROUP_ID_NOT_FOUND, reply)
        elif group.state is not EMPTY and not group.is_consumers:
            self._refuse(Error.NON_EMPTY_GROUP, reply)
        else:
            results = {each: self._fault(group, each) for each in _asked(request)}
            deleted = [each for each, fault in results.items() if fault is Error.NONE]

            def answer(error: Error) -> None:
                outcome = dict.fromkeys(deleted, COMMIT_ERRORS.get(error, error))
                response = _offsets_response(request, {**results, **outcome})
                self._context.answer(reply, response)

            if deleted:
                self._maintenance.delete_offsets(group, deleted, answer)
            else:
                answer(Error.NONE)

    def _fault(self, group: Group, partition: TopicPartition) -> Error:
        if not self._context.is_known(partition):
            return Error.UNKNOWN_TOPIC_OR_PARTITION
        topics = group.subscribed_topics
        if group.state is EMPTY or (topics is not None and partition.topic not in topics):
            return Error.NONE
        return Error.GROUP_SUBSCRIBED_TO_TOPIC  # also if the subscription is not known

    def _refuse(self, error: Error, reply: Callable[[OffsetDeleteResponse], None]) -> None:
        self._context.answer(reply, OffsetDeleteResponse(error_code=error, topics=[]))


def _asked(request: OffsetDeleteRequest) -> Iterable[TopicPartition]:
    return (
        TopicPartition(topic.name, each.partition_index)
        for topic in request.topics
        for each in topic.partitions
    )


def _groups_response(results: Mapping[str, Error]) -> DeleteGroupsResponse:
    return DeleteGroupsResponse(
        results=[
            DeletedGroupResult(group_id=group_id, error_code=error)
            for group_id, error in results.items()
        ]
    )


def _offsets_response(request: OffsetDeleteRequest, results: Results) -> OffsetDeleteResponse:
    return OffsetDeleteResponse(
        error_code=Error.NONE,
        topics=[
            ForgottenTopicResult(
                name=topic.name,
                partitions=[
                    ForgottenPartitionResult(
                        partition_index=each.partition_index,
                        error_code=results[TopicPartition(topic.name, each.partition_index)],
                    )
                    for each in topic.partitions
                ],
            )
            for topic in request.topics
        ],
    )
