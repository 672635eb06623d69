"""The table of rights: what each API needs, and how it is refused (pure).

There is a row for every API of the version table, for all of its versions: what has none is not
served. Rights are asked for before anything is looked up, checked or changed, so that a request
without them changes nothing, and its answer does not tell what exists.
Source: `KafkaApis` of Apache Kafka 3.9, and each request's error response.
"""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter
from typing import Any, NamedTuple

from kdist.protocol.allocate_producer_ids import AllocateProducerIdsResponse
from kdist.protocol.alter_partition import AlterPartitionResponse
from kdist.protocol.controlled_shutdown import ControlledShutdownResponse
from kdist.protocol.describe_log_dirs import DescribeLogDirsResponse
from kdist.protocol.heartbeat import HeartbeatResponse
from kdist.protocol.leader_and_isr import LeaderAndIsrResponse
from kdist.protocol.leave_group import LeaveGroupResponse
from kdist.protocol.offset_delete import OffsetDeleteResponse
from kdist.protocol.stop_replica import StopReplicaResponse
from kdist.protocol.update_metadata import UpdateMetadataResponse
from kdist.protocol.versions import TABLE
from kdist.security import refusals, rules
from kdist.security.acls import Operation, ResourceType
from kdist.security.decisions import Asker, Decision, Right, Rule, free, in_turn

_CLUSTER = ResourceType.CLUSTER
_TOPIC = ResourceType.TOPIC
_GROUP = ResourceType.GROUP

_CLUSTER_ACTION = Right(Operation.CLUSTER_ACTION, _CLUSTER)
_ALTER = Right(Operation.ALTER, _CLUSTER)
_DESCRIBE = Right(Operation.DESCRIBE, _CLUSTER)
_READ_GROUP = Right(Operation.READ, _GROUP)
_group = attrgetter("group_id")
_name = attrgetter("name")


class Row(NamedTuple):
    """One API's rights. `needs` and `refusal` are for the reference page."""

    needs: str
    refusal: str
    rule: Rule


def _of(right: Right) -> str:
    return f"{right.operation.text} on {right.resource_type.text}"


def _whole(
    right: Right, refuse: refusals.Refuse, name_of: Callable[[Any], str] | None = None
) -> Row:
    return Row(_of(right), "whole", right.whole(refuse, name_of))


_ENTRY, _SILENT = "by entry", "left out"

ROWS = {
    "Produce": Row(
        "Write on Topic; Write on TransactionalId for transactional batches",
        _ENTRY,
        rules.produce,
    ),
    "Fetch": Row(f"Read on Topic; followers: {_of(_CLUSTER_ACTION)}", _ENTRY, rules.fetch),
    "ListOffsets": Row(
        "Describe on Topic",
        _ENTRY,
        Right(Operation.DESCRIBE, _TOPIC).each("topics", _name, refusals.listed_topic, "topics"),
    ),
    "Metadata": Row(
        "Describe on Topic; to create: Create on Cluster or on Topic",
        "by entry; of all topics, left out",
        rules.metadata,
    ),
    "LeaderAndIsr": _whole(_CLUSTER_ACTION, refusals.top(LeaderAndIsrResponse)),
    "StopReplica": _whole(_CLUSTER_ACTION, refusals.top(StopReplicaResponse, "partition_errors")),
    "UpdateMetadata": _whole(_CLUSTER_ACTION, refusals.top(UpdateMetadataResponse)),
    "ControlledShutdown": _whole(
        _CLUSTER_ACTION, refusals.top(ControlledShutdownResponse, "remaining_partitions")
    ),
    "OffsetCommit": Row(
        "Read on Group; Read on Topic",
        "whole; topics by entry",
        in_turn(
            _READ_GROUP.whole(refusals.offset_commit, _group),
            Right(Operation.READ, _TOPIC).each("topics", _name, refusals.committed_topic, "topics"),
        ),
    ),
    "OffsetFetch": Row(
        "Describe on Group; Describe on Topic",
        "by group; topics by entry, or of all topics left out",
        rules.offset_fetch,
    ),
    "FindCoordinator": Row(
        "Describe on Group or on TransactionalId", _ENTRY, rules.find_coordinator
    ),
    "JoinGroup": _whole(_READ_GROUP, refusals.join_group, _group),
    "Heartbeat": _whole(_READ_GROUP, refusals.top(HeartbeatResponse), _group),
    "LeaveGroup": _whole(_READ_GROUP, refusals.top(LeaveGroupResponse), _group),
    "SyncGroup": _whole(_READ_GROUP, refusals.sync_group, _group),
    "DescribeGroups": Row("Describe on Group", _ENTRY, rules.describe_groups),
    "ListGroups": Row("Describe on Cluster, or on Group", _SILENT, rules.list_groups),
    "ApiVersions": Row("nothing", "", free),
    "SaslHandshake": Row("nothing", "", free),
    "SaslAuthenticate": Row("nothing", "", free),
    "CreateTopics": Row(
        "Create on Cluster or on Topic; for settings: DescribeConfigs on Topic",
        _ENTRY,
        rules.create_topics,
    ),
    "DeleteTopics": Row("Delete on Topic", _ENTRY, rules.delete_topics),
    "DeleteRecords": Row(
        "Delete on Topic",
        _ENTRY,
        Right(Operation.DELETE, _TOPIC).each("topics", _name, refusals.trimmed_topic, "topics"),
    ),
    "InitProducerId": Row(
        "Write on TransactionalId; without one: IdempotentWrite on Cluster, or Write on any Topic",
        "whole",
        rules.init_producer_id,
    ),
    "OffsetForLeaderEpoch": Row(
        f"{_of(_CLUSTER_ACTION)}, or Describe on Topic", _ENTRY, rules.offset_for_leader_epoch
    ),
    "DescribeConfigs": Row(
        "DescribeConfigs on Topic, or on Cluster",
        _ENTRY,
        rules.on_settings(Operation.DESCRIBE_CONFIGS, refusals.described_resource, "results"),
    ),
    "AlterConfigs": Row(
        "AlterConfigs on Topic, or on Cluster",
        _ENTRY,
        rules.on_settings(Operation.ALTER_CONFIGS, refusals.altered_resource, "responses"),
    ),
    "AlterReplicaLogDirs": Row(_of(_ALTER), _ENTRY, _ALTER.whole(refusals.alter_replica_log_dirs)),
    "DescribeLogDirs": Row(
        _of(_DESCRIBE),
        "whole; before version 3, by an empty answer",
        _DESCRIBE.whole(refusals.top(DescribeLogDirsResponse, "results")),
    ),
    "DescribeAcls": _whole(_DESCRIBE, refusals.describe_acls),
    "CreateAcls": Row(_of(_ALTER), _ENTRY, _ALTER.whole(refusals.create_acls)),
    "DeleteAcls": Row(_of(_ALTER), _ENTRY, _ALTER.whole(refusals.delete_acls)),
    "CreatePartitions": Row(
        "Alter on Topic",
        _ENTRY,
        Right(Operation.ALTER, _TOPIC).each("topics", _name, refusals.grown_topic, "results"),
    ),
    "DeleteGroups": Row(
        "Delete on Group",
        _ENTRY,
        Right(Operation.DELETE, _GROUP).each(
            "groups_names", str, refusals.deleted_group, "results"
        ),
    ),
    "ElectLeaders": _whole(_ALTER, refusals.elect_leaders),
    "IncrementalAlterConfigs": Row(
        "AlterConfigs on Topic, or on Cluster",
        _ENTRY,
        rules.on_settings(Operation.ALTER_CONFIGS, refusals.altered_resource, "responses"),
    ),
    "AlterPartitionReassignments": _whole(_ALTER, refusals.alter_partition_reassignments),
    "ListPartitionReassignments": _whole(_DESCRIBE, refusals.list_partition_reassignments),
    "OffsetDelete": Row(
        "Delete on Group; Read on Topic",
        "whole; topics by entry",
        in_turn(
            Right(Operation.DELETE, _GROUP).whole(
                refusals.top(OffsetDeleteResponse, "topics"), _group
            ),
            Right(Operation.READ, _TOPIC).each("topics", _name, refusals.forgotten_topic, "topics"),
        ),
    ),
    "DescribeClientQuotas": _whole(
        Right(Operation.DESCRIBE_CONFIGS, _CLUSTER), refusals.describe_client_quotas
    ),
    "AlterClientQuotas": Row(
        "AlterConfigs on Cluster",
        _ENTRY,
        Right(Operation.ALTER_CONFIGS, _CLUSTER).whole(refusals.alter_client_quotas),
    ),
    "DescribeUserScramCredentials": _whole(_DESCRIBE, refusals.describe_user_scram_credentials),
    "AlterUserScramCredentials": Row(
        _of(_ALTER), _ENTRY, _ALTER.whole(refusals.alter_user_scram_credentials)
    ),
    "AlterPartition": _whole(_CLUSTER_ACTION, refusals.top(AlterPartitionResponse)),
    "DescribeCluster": Row(
        "nothing; for authorized operations: Describe on Cluster", _SILENT, rules.describe_cluster
    ),
    "AllocateProducerIds": _whole(_CLUSTER_ACTION, refusals.top(AllocateProducerIdsResponse)),
}

_RULES = {api.key: ROWS[api.name].rule for api in TABLE if api.name in ROWS}


def check() -> None:
    """Assert that exactly the APIs of the version table have a row."""
    assert ROWS.keys() == {api.name for api in TABLE}, "rights and versions differ"


def decide(key: int, request: Any, version: int, asker: Asker) -> Decision:
    """What becomes of a request of the API with this key."""
    return _RULES[key](request, version, asker)
