"""The answers to requests that are refused as a whole, and to refused parts of others (pure).

They are Kafka's: the error stands where that version of the API has a place for one, at the top, or
in each entry.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kdist.errors import Error
from kdist.model import NO_OFFSET, NO_PRODUCER_EPOCH, NO_PRODUCER_ID
from kdist.protocol.alter_client_quotas import AlterClientQuotasResponse, AlteredQuotasResult
from kdist.protocol.alter_configs import AlteredResourceResult
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
from kdist.protocol.init_producer_id import InitProducerIdResponse
from kdist.protocol.join_group import JoinGroupResponse
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
)
from kdist.protocol.offset_fetch import OffsetFetchPartitionResult, OffsetFetchTopicResult
from kdist.protocol.offset_for_leader_epoch import EpochEnd, EpochEndTopic
from kdist.protocol.produce import ProducePartitionResult, ProduceResponse, ProduceTopicResult
from kdist.protocol.sync_group import SyncGroupResponse

_FIRST_ELECTION_WITH_ERROR = 1

Refuse = Callable[[Any, int, Error], Any]
"""The answer to a request that is refused as a whole, in a version, with an error."""

# Whole requests


def top(response: type[Any], *lists: str) -> Refuse:
    """Where the error stands at the top, beside these lists, which are empty."""
    return lambda _request, _version, error: response(
        error_code=error, **{name: [] for name in lists}
    )


def produce(request: Any, _version: int, error: Error) -> ProduceResponse | None:
    """Produce; None if it has acks=0, and so no answer."""
    if not request.acks:
        return None
    return ProduceResponse(responses=[produce_topic(each, error) for each in request.topic_data])


def fetch(request: Any, _version: int, error: Error) -> FetchResponse:
    """Fetch, with all that it names; no session is begun."""
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


def offset_commit(request: Any, _version: int, error: Error) -> OffsetCommitResponse:
    """OffsetCommit."""
    return OffsetCommitResponse(topics=[committed_topic(each, error) for each in request.topics])


def join_group(_request: Any, _version: int, error: Error) -> JoinGroupResponse:
    """JoinGroup."""
    return JoinGroupResponse(
        error_code=error, protocol_name="", leader="", member_id="", members=[]
    )


def sync_group(_request: Any, _version: int, error: Error) -> SyncGroupResponse:
    """SyncGroup."""
    return SyncGroupResponse(error_code=error, assignment=b"")


def init_producer_id(_request: Any, _version: int, error: Error) -> InitProducerIdResponse:
    """InitProducerId."""
    return InitProducerIdResponse(
        error_code=error, producer_id=NO_PRODUCER_ID, producer_epoch=NO_PRODUCER_EPOCH
    )


def alter_replica_log_dirs(
    request: Any, _version: int, error: Error
) -> AlterReplicaLogDirsResponse:
    """AlterReplicaLogDirs."""
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


def elect_leaders(request: Any, version: int, error: Error) -> ElectLeadersResponse:
    """ElectLeaders; the first version has no error but those of partitions."""
    return ElectLeadersResponse(
        error_code=error if version >= _FIRST_ELECTION_WITH_ERROR else Error.NONE,
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
    """AlterPartitionReassignments."""
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
    """ListPartitionReassignments."""
    return ListPartitionReassignmentsResponse(
        error_code=error, error_message=error.sentence, topics=[]
    )


def describe_client_quotas(
    _request: Any, _version: int, error: Error
) -> DescribeClientQuotasResponse:
    """DescribeClientQuotas."""
    return DescribeClientQuotasResponse(error_code=error, error_message=error.sentence)


def alter_client_quotas(request: Any, _version: int, error: Error) -> AlterClientQuotasResponse:
    """AlterClientQuotas."""
    return AlterClientQuotasResponse(
        entries=[
            AlteredQuotasResult(error_code=error, error_message=error.sentence, entity=each.entity)
            for each in request.entries
        ]
    )


def describe_acls(_request: Any, _version: int, error: Error) -> DescribeAclsResponse:
    """DescribeAcls."""
    return DescribeAclsResponse(error_code=error, error_message=error.sentence, resources=[])


def create_acls(request: Any, _version: int, error: Error) -> CreateAclsResponse:
    """CreateAcls: each ACL."""
    result = AclCreationResult(error_code=error, error_message=error.sentence)
    return CreateAclsResponse(results=[result] * len(request.creations))


def delete_acls(request: Any, _version: int, error: Error) -> DeleteAclsResponse:
    """DeleteAcls: each filter."""
    result = DeleteAclsFilterResult(
        error_code=error, error_message=error.sentence, matching_acls=[]
    )
    return DeleteAclsResponse(filter_results=[result] * len(request.filters))


def describe_user_scram_credentials(
    request: Any, _version: int, error: Error
) -> DescribeUserScramCredentialsResponse:
    """DescribeUserScramCredentials."""
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
    """AlterUserScramCredentials: each user."""
    names = {each.name for each in (*request.deletions, *request.upsertions)}
    return AlterUserScramCredentialsResponse(
        results=[
            AlteredUser(user=name, error_code=error, error_message=error.sentence)
            for name in sorted(names)
        ]
    )


# Entries


def produce_topic(topic: Any, error: Error) -> ProduceTopicResult:
    """Of Produce."""
    return ProduceTopicResult(
        name=topic.name,
        partition_responses=[
            ProducePartitionResult(index=each.index, error_code=error, base_offset=NO_OFFSET)
            for each in topic.partition_data
        ],
    )


def listed_topic(topic: Any, error: Error) -> ListOffsetsTopicResult:
    """Of ListOffsets."""
    return ListOffsetsTopicResult(
        name=topic.name,
        partitions=[
            ListOffsetsPartitionResult(partition_index=each.partition_index, error_code=error)
            for each in topic.partitions
        ],
    )


def committed_topic(topic: Any, error: Error) -> OffsetCommitTopicResult:
    """Of OffsetCommit."""
    return OffsetCommitTopicResult(
        name=topic.name,
        partitions=[
            OffsetCommitPartitionResult(partition_index=each.partition_index, error_code=error)
            for each in topic.partitions
        ],
    )


def fetched_topic(topic: Any, error: Error) -> OffsetFetchTopicResult:
    """Of OffsetFetch."""
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
    """Of FindCoordinator."""
    return Coordinator(
        key=key, node_id=-1, host="", port=-1, error_code=error, error_message=error.sentence
    )


def described_group(group_id: str, error: Error) -> DescribedGroup:
    """Of DescribeGroups."""
    return DescribedGroup(
        error_code=error,
        group_id=group_id,
        group_state="",
        protocol_type="",
        protocol_data="",
        members=[],
    )


def new_topic(topic: Any, error: Error) -> NewTopicResult:
    """Of CreateTopics."""
    return NewTopicResult(name=topic.name, error_code=error, error_message=error.sentence)


def trimmed_topic(topic: Any, error: Error) -> TrimmedTopicResult:
    """Of DeleteRecords."""
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
    """Of OffsetForLeaderEpoch."""
    return EpochEndTopic(
        topic=topic.topic,
        partitions=[
            EpochEnd(error_code=error, partition=each.partition) for each in topic.partitions
        ],
    )


def described_resource(resource: Any, error: Error) -> DescribedResourceResult:
    """Of DescribeConfigs."""
    return DescribedResourceResult(
        error_code=error,
        error_message=error.sentence,
        resource_type=resource.resource_type,
        resource_name=resource.resource_name,
        configs=[],
    )


def altered_resource(resource: Any, error: Error) -> AlteredResourceResult:
    """Of AlterConfigs and IncrementalAlterConfigs."""
    return AlteredResourceResult(
        error_code=error,
        error_message=error.sentence,
        resource_type=resource.resource_type,
        resource_name=resource.resource_name,
    )


def grown_topic(topic: Any, error: Error) -> GrownTopicResult:
    """Of CreatePartitions."""
    return GrownTopicResult(name=topic.name, error_code=error, error_message=error.sentence)


def deleted_group(group_id: str, error: Error) -> DeletedGroupResult:
    """Of DeleteGroups."""
    return DeletedGroupResult(group_id=group_id, error_code=error)


def forgotten_topic(topic: Any, error: Error) -> ForgottenTopicResult:
    """Of OffsetDelete."""
    return ForgottenTopicResult(
        name=topic.name,
        partitions=[
            ForgottenPartitionResult(partition_index=each.partition_index, error_code=error)
            for each in topic.partitions
        ],
    )
