"""The answers to requests that are refused as a whole, and to refused parts of others (pure).

They are Kafka's: the error stands where that version of the API has a place for one, at the top, or
in each entry.
"""

from __future__ import annotations

from typing import Any

from kdist.errors import Error
from kdist.model import NO_OFFSET, NO_PRODUCER_EPOCH, NO_PRODUCER_ID
from kdist.protocol.allocate_producer_ids import AllocateProducerIdsResponse
from kdist.protocol.alter_client_quotas import AlterClientQuotasResponse, AlteredQuotasResult
from kdist.protocol.alter_configs import AlteredResourceResult
from kdist.protocol.alter_partition import AlterPartitionResponse
from kdist.protocol.alter_partition_reassignments import (
    AlterPartitionReassignmentsResponse,
    ReassignablePartitionResponse,
    ReassignableTopicResponse,
)
from kdist.protocol.alter_replica_log_dirs import (
    AlterReplicaLogDirPartitionResult,
    AlterReplicaLogDirsResponse,
    AlterReplicaLogDirTopicResult,
)
from kdist.protocol.alter_user_scram_credentials import (
    AlteredUser,
    AlterUserScramCredentialsResponse,
)
from kdist.protocol.controlled_shutdown import ControlledShutdownResponse
from kdist.protocol.create_acls import AclCreationResult, CreateAclsResponse
from kdist.protocol.create_partitions import GrownTopicResult
from kdist.protocol.create_topics import NewTopicResult
from kdist.protocol.delete_acls import DeleteAclsFilterResult, DeleteAclsResponse
from kdist.protocol.delete_groups import DeletedGroupResult
from kdist.protocol.delete_records import TrimmedPartitionResult, TrimmedTopicResult
from kdist.protocol.describe_acls import DescribeAclsResponse
from kdist.protocol.describe_client_quotas import DescribeClientQuotasResponse
from kdist.protocol.describe_configs import DescribedResourceResult
from kdist.protocol.describe_groups import DescribedGroup
from kdist.protocol.describe_log_dirs import DescribeLogDirsResponse
from kdist.protocol.describe_user_scram_credentials import (
    DescribedUser,
    DescribeUserScramCredentialsResponse,
)
from kdist.protocol.elect_leaders import (
    ElectionPartitionResult,
    ElectionTopicResult,
    ElectLeadersResponse,
)
from kdist.protocol.fetch import FetchPartitionResult, FetchResponse, FetchTopicResult
from kdist.protocol.find_coordinator import Coordinator
from kdist.protocol.heartbeat import HeartbeatResponse
from kdist.protocol.init_producer_id import InitProducerIdResponse
from kdist.protocol.join_group import JoinGroupResponse
from kdist.protocol.leader_and_isr import LeaderAndIsrResponse
from kdist.protocol.leave_group import LeaveGroupResponse
from kdist.protocol.list_offsets import ListOffsetsPartitionResult, ListOffsetsTopicResult
from kdist.protocol.list_partition_reassignments import ListPartitionReassignmentsResponse
from kdist.protocol.offset_commit import (
    OffsetCommitPartitionResult,
    OffsetCommitResponse,
    OffsetCommitTopicResult,
)
from kdist.protocol.offset_delete import (
    ForgottenPartitionResult,
    ForgottenTopicResult,
    OffsetDeleteResponse,
)
from kdist.protocol.offset_fetch import OffsetFetchPartitionResult, OffsetFetchTopicResult
from kdist.protocol.offset_for_leader_epoch import EpochEnd, EpochEndTopic
from kdist.protocol.produce import ProducePartitionResult, ProduceResponse, ProduceTopicResult
from kdist.protocol.stop_replica import StopReplicaResponse
from kdist.protocol.sync_group import SyncGroupResponse
from kdist.protocol.update_metadata import UpdateMetadataResponse

# Whole requests, by the API's name.


def produce(request: Any, _version: int, error: Error) -> ProduceResponse | None:
    """None if the request has acks=0, and so no answer."""
    if not request.acks:
        return None
    return ProduceResponse(responses=[produce_topic(each, error) for each in request.topic_data])


def fetch(request: Any, _version: int, error: Error) -> FetchResponse:
    return FetchResponse(
        responses=[
            FetchTopicResult(
                topic=topic.topic,
                topic_id=topic.topic_id,
                partitions=[
                    FetchPartitionResult(
                        partition_index=each.partition,
                        error_code=error,
                        high_watermark=NO_OFFSET,
                        records=b"",
                    )
                    for each in topic.partitions
                ],
            )
            for topic in request.topics
        ]
    )


def leader_and_isr(_request: Any, _version: int, error: Error) -> LeaderAndIsrResponse:
    return LeaderAndIsrResponse(error_code=error)


def stop_replica(_request: Any, _version: int, error: Error) -> StopReplicaResponse:
    return StopReplicaResponse(error_code=error, partition_errors=[])


def update_metadata(_request: Any, _version: int, error: Error) -> UpdateMetadataResponse:
    return UpdateMetadataResponse(error_code=error)


def controlled_shutdown(_request: Any, _version: int, error: Error) -> ControlledShutdownResponse:
    return ControlledShutdownResponse(error_code=error, remaining_partitions=[])


def alter_partition(_request: Any, _version: int, error: Error) -> AlterPartitionResponse:
    return AlterPartitionResponse(error_code=error)


def allocate_producer_ids(
    _request: Any, _version: int, error: Error
) -> AllocateProducerIdsResponse:
    return AllocateProducerIdsResponse(error_code=error)


def offset_commit(request: Any, _version: int, error: Error) -> OffsetCommitResponse:
    return OffsetCommitResponse(topics=[committed_topic(each, error) for each in request.topics])


def join_group(_request: Any, _version: int, error: Error) -> JoinGroupResponse:
    return JoinGroupResponse(
        error_code=error, protocol_name="", leader="", member_id="", members=[]
    )


def heartbeat(_request: Any, _version: int, error: Error) -> HeartbeatResponse:
    return HeartbeatResponse(error_code=error)


def leave_group(_request: Any, _version: int, error: Error) -> LeaveGroupResponse:
    return LeaveGroupResponse(error_code=error)


def sync_group(_request: Any, _version: int, error: Error) -> SyncGroupResponse:
    return SyncGroupResponse(error_code=error, assignment=b"")


def init_producer_id(_request: Any, _version: int, error: Error) -> InitProducerIdResponse:
    return InitProducerIdResponse(
        error_code=error, producer_id=NO_PRODUCER_ID, producer_epoch=NO_PRODUCER_EPOCH
    )


def alter_replica_log_dirs(
    request: Any, _version: int, error: Error
) -> AlterReplicaLogDirsResponse:
    return AlterReplicaLogDirsResponse(
        results=[
            AlterReplicaLogDirTopicResult(
                topic_name=topic.name,
                partitions=[
                    AlterReplicaLogDirPartitionResult(partition_index=each, error_code=error)
                    for each in topic.partitions
                ],
            )
            for directory in request.dirs
            for topic in directory.topics
        ]
    )


def describe_log_dirs(_request: Any, _version: int, error: Error) -> DescribeLogDirsResponse:
    """Before version 3 there is no place for the error: it is empty."""
    return DescribeLogDirsResponse(error_code=error, results=[])


def elect_leaders(request: Any, _version: int, error: Error) -> ElectLeadersResponse:
    return ElectLeadersResponse(
        error_code=error,
        replica_election_results=[
            ElectionTopicResult(
                topic=topic.topic,
                partition_result=[
                    ElectionPartitionResult(
                        partition_id=each, error_code=error, error_message=error.sentence
                    )
                    for each in topic.partitions
                ],
            )
            for topic in request.topic_partitions or ()
        ],
    )


def alter_partition_reassignments(
    request: Any, _version: int, error: Error
) -> AlterPartitionReassignmentsResponse:
    return AlterPartitionReassignmentsResponse(
        error_code=error,
        error_message=error.sentence,
        responses=[
            ReassignableTopicResponse(
                name=topic.name,
                partitions=[
                    ReassignablePartitionResponse(
                        partition_index=each.partition_index,
                        error_code=error,
                        error_message=error.sentence,
                    )
                    for each in topic.partitions
                ],
            )
            for topic in request.topics
        ],
    )


def list_partition_reassignments(
    _request: Any, _version: int, error: Error
) -> ListPartitionReassignmentsResponse:
    return ListPartitionReassignmentsResponse(
        error_code=error, error_message=error.sentence, topics=[]
    )


def offset_delete(_request: Any, _version: int, error: Error) -> OffsetDeleteResponse:
    return OffsetDeleteResponse(error_code=error, topics=[])


def describe_client_quotas(
    _request: Any, _version: int, error: Error
) -> DescribeClientQuotasResponse:
    return DescribeClientQuotasResponse(error_code=error, error_message=error.sentence)


def alter_client_quotas(request: Any, _version: int, error: Error) -> AlterClientQuotasResponse:
    return AlterClientQuotasResponse(
        entries=[
            AlteredQuotasResult(error_code=error, error_message=error.sentence, entity=each.entity)
            for each in request.entries
        ]
    )


def describe_acls(_request: Any, _version: int, error: Error) -> DescribeAclsResponse:
    return DescribeAclsResponse(error_code=error, error_message=error.sentence, resources=[])


def create_acls(request: Any, _version: int, error: Error) -> CreateAclsResponse:
    result = AclCreationResult(error_code=error, error_message=error.sentence)
    return CreateAclsResponse(results=[result] * len(request.creations))


def delete_acls(request: Any, _version: int, error: Error) -> DeleteAclsResponse:
    result = DeleteAclsFilterResult(
        error_code=error, error_message=error.sentence, matching_acls=[]
    )
    return DeleteAclsResponse(filter_results=[result] * len(request.filters))


def describe_user_scram_credentials(
    request: Any, _version: int, error: Error
) -> DescribeUserScramCredentialsResponse:
    sentence = error.sentence
    return DescribeUserScramCredentialsResponse(
        error_code=error,
        error_message=sentence,
        results=[  # as Kafka's, without names
            DescribedUser(user="", error_code=error, error_message=sentence, credential_infos=[])
            for _ in request.users or ()
        ],
    )


def alter_user_scram_credentials(
    request: Any, _version: int, error: Error
) -> AlterUserScramCredentialsResponse:
    names = {each.name for each in (*request.deletions, *request.upsertions)}
    return AlterUserScramCredentialsResponse(
        results=[
            AlteredUser(user=name, error_code=error, error_message=error.sentence)
            for name in sorted(names)
        ]
    )


# Entries


def produce_topic(topic: Any, error: Error) -> ProduceTopicResult:
    return ProduceTopicResult(
        name=topic.name,
        partition_responses=[
            ProducePartitionResult(index=each.index, error_code=error, base_offset=NO_OFFSET)
            for each in topic.partition_data
        ],
    )


def listed_topic(topic: Any, error: Error) -> ListOffsetsTopicResult:
    return ListOffsetsTopicResult(
        name=topic.name,
        partitions=[
            ListOffsetsPartitionResult(partition_index=each.partition_index, error_code=error)
            for each in topic.partitions
        ],
    )


def committed_topic(topic: Any, error: Error) -> OffsetCommitTopicResult:
    return OffsetCommitTopicResult(
        name=topic.name,
        partitions=[
            OffsetCommitPartitionResult(partition_index=each.partition_index, error_code=error)
            for each in topic.partitions
        ],
    )


def fetched_topic(topic: Any, error: Error) -> OffsetFetchTopicResult:
    return OffsetFetchTopicResult(
        name=topic.name,
        partitions=[
            OffsetFetchPartitionResult(
                partition_index=each, committed_offset=NO_OFFSET, metadata="", error_code=error
            )
            for each in topic.partition_indexes
        ],
    )


def coordinator(key: str, error: Error) -> Coordinator:
    return Coordinator(
        key=key, node_id=-1, host="", port=-1, error_code=error, error_message=error.sentence
    )


def described_group(group_id: str, error: Error) -> DescribedGroup:
    return DescribedGroup(
        error_code=error,
        group_id=group_id,
        group_state="",
        protocol_type="",
        protocol_data="",
        members=[],
    )


def new_topic(topic: Any, error: Error) -> NewTopicResult:
    return NewTopicResult(name=topic.name, error_code=error, error_message=error.sentence)


def trimmed_topic(topic: Any, error: Error) -> TrimmedTopicResult:
    return TrimmedTopicResult(
        name=topic.name,
        partitions=[
            TrimmedPartitionResult(
                partition_index=each.partition_index, low_watermark=NO_OFFSET, error_code=error
            )
            for each in topic.partitions
        ],
    )


def epoch_topic(topic: Any, error: Error) -> EpochEndTopic:
    return EpochEndTopic(
        topic=topic.topic,
        partitions=[
            EpochEnd(error_code=error, partition=each.partition) for each in topic.partitions
        ],
    )


def described_resource(resource: Any, error: Error) -> DescribedResourceResult:
    return DescribedResourceResult(
        error_code=error,
        error_message=error.sentence,
        resource_type=resource.resource_type,
        resource_name=resource.resource_name,
        configs=[],
    )


def altered_resource(resource: Any, error: Error) -> AlteredResourceResult:
    return AlteredResourceResult(
        error_code=error,
        error_message=error.sentence,
        resource_type=resource.resource_type,
        resource_name=resource.resource_name,
    )


def grown_topic(topic: Any, error: Error) -> GrownTopicResult:
    return GrownTopicResult(name=topic.name, error_code=error, error_message=error.sentence)


def deleted_group(group_id: str, error: Error) -> DeletedGroupResult:
    return DeletedGroupResult(group_id=group_id, error_code=error)


def forgotten_topic(topic: Any, error: Error) -> ForgottenTopicResult:
    return ForgottenTopicResult(
        name=topic.name,
        partitions=[
            ForgottenPartitionResult(partition_index=each.partition_index, error_code=error)
            for each in topic.partitions
        ],
    )
