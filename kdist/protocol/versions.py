"""The version table: every supported API. To add one, write its file and add a row here.

An API's key, version range and flexible version are in its file, beside its history.
"""

from __future__ import annotations

from kdist.errors import ProtocolError
from kdist.protocol import (
    allocate_producer_ids,
    alter_client_quotas,
    alter_configs,
    alter_partition,
    alter_partition_reassignments,
    alter_replica_log_dirs,
    api_versions,
    controlled_shutdown,
    create_partitions,
    create_topics,
    delete_groups,
    delete_records,
    delete_topics,
    describe_client_quotas,
    describe_cluster,
    describe_configs,
    describe_groups,
    describe_log_dirs,
    elect_leaders,
    fetch,
    find_coordinator,
    heartbeat,
    incremental_alter_configs,
    init_producer_id,
    join_group,
    leader_and_isr,
    leave_group,
    list_groups,
    list_offsets,
    list_partition_reassignments,
    metadata,
    offset_commit,
    offset_delete,
    offset_fetch,
    offset_for_leader_epoch,
    produce,
    stop_replica,
    sync_group,
    update_metadata,
)
from kdist.protocol.api import Api
from kdist.protocol.api_versions import ApiVersion

TABLE = (
    produce.API,  # 0
    fetch.API,  # 1
    list_offsets.API,  # 2
    metadata.API,  # 3
    leader_and_isr.API,  # 4
    stop_replica.API,  # 5
    update_metadata.API,  # 6
    controlled_shutdown.API,  # 7
    offset_commit.API,  # 8
    offset_fetch.API,  # 9
    find_coordinator.API,  # 10
    join_group.API,  # 11
    heartbeat.API,  # 12
    leave_group.API,  # 13
    sync_group.API,  # 14
    describe_groups.API,  # 15
    list_groups.API,  # 16
    api_versions.API,  # 18
    create_topics.API,  # 19
    delete_topics.API,  # 20
    delete_records.API,  # 21
    init_producer_id.API,  # 22
    offset_for_leader_epoch.API,  # 23
    describe_configs.API,  # 32
    alter_configs.API,  # 33
    alter_replica_log_dirs.API,  # 34
    describe_log_dirs.API,  # 35
    create_partitions.API,  # 37
    delete_groups.API,  # 42
    elect_leaders.API,  # 43
    incremental_alter_configs.API,  # 44
    alter_partition_reassignments.API,  # 45
    list_partition_reassignments.API,  # 46
    offset_delete.API,  # 47
    describe_client_quotas.API,  # 48
    alter_client_quotas.API,  # 49
    alter_partition.API,  # 56
    describe_cluster.API,  # 60
    allocate_producer_ids.API,  # 67
)

_BY_KEY = {api.key: api for api in TABLE}


def api_for(key: int) -> Api:
    """The API of a key; `ProtocolError` if none is supported."""
    try:
        return _BY_KEY[key]
    except KeyError:
        raise ProtocolError(f"no API has the key {key}") from None


def advertised_versions(*, to_brokers: bool) -> list[ApiVersion]:
    """The APIs for an ApiVersions response, each with its version range."""
    return [
        ApiVersion(api_key=api.key, min_version=api.oldest, max_version=api.newest)
        for api in TABLE
        if to_brokers or not api.is_between_brokers
    ]
