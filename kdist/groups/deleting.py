"""DeleteGroups and OffsetDelete: delete groups, or some of the offsets that they committed.

    group                       DeleteGroups        OffsetDelete
    EMPTY                       deleted             deleted
    of consumers, with members  NON_EMPTY_GROUP     deleted for topics that no member reads, else
                                                    GROUP_SUBSCRIBED_TO_TOPIC
    of others, with members     NON_EMPTY_GROUP     NON_EMPTY_GROUP

Requests are answered once the tombstones are in the log, so that what is deleted stays deleted.
Until then it is seen, so that what was seen to be gone stays gone too.
Source: KIP-229, KIP-496, Apache Kafka's `GroupCoordinator.handleDeleteGroups` and
`handleDeleteOffsets`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial

from kdist.errors import Error
from kdist.groups.answers import COMMIT_ERRORS
from kdist.groups.context import Reply
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
from kdist.runtime.slices import Steps

_GROUP_US = 5

Results = Mapping[TopicPartition, Error]


def delete_groups(
    registry: Registry,
    maintenance: GroupMaintenance,
    request: DeleteGroupsRequest,
    answer: Reply[DeleteGroupsResponse],
) -> Steps:
    """Answer with one result per group, also if the request names one twice.

    They may be all groups that there are, and each has tombstones of its own.
    """
    wanted = list(dict.fromkeys(request.groups_names))
    results: dict[str, Error] = {}

    def settle(group_id: str, error: Error) -> None:
        results[group_id] = COMMIT_ERRORS.get(error, error)
        if len(results) == len(wanted):
            answer(_groups_response(results))

    if not wanted:
        answer(_groups_response(results))
    for group_id in wanted:
        error, group = registry.find(group_id)
        if group is None:
            settle(group_id, error or Error.GROUP_ID_NOT_FOUND)
        elif group.state is not EMPTY:
            settle(group_id, Error.NON_EMPTY_GROUP)
        else:
            yield from maintenance.delete(group, partial(settle, group_id))
        yield _GROUP_US


def delete_offsets(
    registry: Registry,
    maintenance: GroupMaintenance,
    is_known: Callable[[TopicPartition], bool],
    request: OffsetDeleteRequest,
    answer: Reply[OffsetDeleteResponse],
) -> None:
    """Answer with a result per partition, or with one error for the whole request."""
    error, group = registry.find(request.group_id)
    if not request.group_id:
        error, group = Error.INVALID_GROUP_ID, None
    if group is not None and group.state is not EMPTY and not group.is_consumers:
        error, group = Error.NON_EMPTY_GROUP, None
    if group is None:
        error = error or Error.GROUP_ID_NOT_FOUND
        answer(OffsetDeleteResponse(error_code=error, topics=[]))
        return
    results = {
        each: _fault(group, each) if is_known(each) else Error.UNKNOWN_TOPIC_OR_PARTITION
        for each in _asked(request)
    }
    deleted = [each for each, fault in results.items() if fault is Error.NONE]

    def deleted_with(error: Error) -> None:
        outcome = dict.fromkeys(deleted, COMMIT_ERRORS.get(error, error))
        answer(_offsets_response(request, results | outcome))

    if deleted:
        maintenance.delete_offsets(group, deleted, deleted_with)
    else:
        deleted_with(Error.NONE)


def _fault(group: Group, partition: TopicPartition) -> Error:
    topics = group.subscribed_topics
    if group.state is EMPTY or (topics is not None and partition.topic not in topics):
        return Error.NONE
    return Error.GROUP_SUBSCRIBED_TO_TOPIC  # also if the subscription is not known


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
