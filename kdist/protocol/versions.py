"""The version table: every supported API, and the largest request of each.

To add one, write its file and add a row here.

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
    alter_user_scram_credentials,
    api_versions,
    controlled_shutdown,
    create_acls,
    create_partitions,
    create_topics,
    delete_acls,
    delete_groups,
    delete_records,
    delete_topics,
    describe_acls,
    describe_client_quotas,
    describe_cluster,
    describe_configs,
    describe_groups,
    describe_log_dirs,
    describe_user_scram_credentials,
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
    sasl_authenticate,
    sasl_handshake,
    stop_replica,
    sync_group,
    update_metadata,
)
from kdist.protocol.api import Api
from kdist.protocol.api_versions import ApiVersion

# The largest site that a request must fit.
_PARTITIONS = 200_000
_SMALL = 1 << 20
_UNBOUNDED = (1 << 31) - 1


def _each(size: int) -> int:
    """The bytes of a request that names each partition of the largest site, in `size` bytes.

    Each may be the only one of its topic, whose name takes 64 of them.
    """
    return max(_SMALL, _PARTITIONS * size)


# Each API, and how many bytes a request of it may have: known before it is read. Produce alone
# carries records, and `socket.request.max.bytes` bounds it, as all others.
_ROWS = (
    (produce.API, _UNBOUNDED),  # 0
    (fetch.API, _each(176)),  # 1
    (list_offsets.API, _each(96)),  # 2
    (metadata.API, _each(96)),  # 3
    (leader_and_isr.API, _each(192)),  # 4
    (stop_replica.API, _each(96)),  # 5
    (update_metadata.API, _each(192)),  # 6
    (controlled_shutdown.API, _SMALL),  # 7
    (offset_commit.API, _each(160)),  # 8
    (offset_fetch.API, _each(144)),  # 9
    (find_coordinator.API, _each(80)),  # 10
    (join_group.API, _each(160)),  # 11
    (heartbeat.API, _SMALL),  # 12
    (leave_group.API, _each(32)),  # 13
    (sync_group.API, _each(160)),  # 14
    (describe_groups.API, _each(80)),  # 15
    (list_groups.API, _SMALL),  # 16
    (sasl_handshake.API, _SMALL),  # 17
    (api_versions.API, _SMALL),  # 18
    (create_topics.API, _each(224)),  # 19
    (delete_topics.API, _each(96)),  # 20
    (delete_records.API, _each(96)),  # 21
    (init_producer_id.API, _SMALL),  # 22
    (offset_for_leader_epoch.API, _each(96)),  # 23
    (describe_acls.API, _SMALL),  # 29
    (create_acls.API, _each(32)),  # 30
    (delete_acls.API, _each(32)),  # 31
    (describe_configs.API, _each(160)),  # 32
    (alter_configs.API, _each(192)),  # 33
    (alter_replica_log_dirs.API, _each(160)),  # 34
    (describe_log_dirs.API, _each(80)),  # 35
    (sasl_authenticate.API, _SMALL),  # 36
    (create_partitions.API, _each(160)),  # 37
    (delete_groups.API, _each(80)),  # 42
    (elect_leaders.API, _each(80)),  # 43
    (incremental_alter_configs.API, _each(208)),  # 44
    (alter_partition_reassignments.API, _each(128)),  # 45
    (list_partition_reassignments.API, _each(80)),  # 46
    (offset_delete.API, _each(80)),  # 47
    (describe_client_quotas.API, _SMALL),  # 48
    (alter_client_quotas.API, _each(32)),  # 49
    (describe_user_scram_credentials.API, _SMALL),  # 50
    (alter_user_scram_credentials.API, _SMALL),  # 51
    (alter_partition.API, _each(128)),  # 56
    (describe_cluster.API, _SMALL),  # 60
    (allocate_producer_ids.API, _SMALL),  # 67
)

TABLE = tuple(api for api, _ in _ROWS)

_BY_KEY = {api.key: api for api in TABLE}
_REQUEST_BYTES_MAX = {api.key: size for api, size in _ROWS}


def api_for(key: int) -> Api:
    """The API of a key; `ProtocolError` if none is supported."""
    try:
        return _BY_KEY[key]
    except KeyError:
        raise ProtocolError(f"no API has the key {key}") from None


def request_bytes_max(key: int) -> int:
    """How many bytes a request with this API key may have; few if there is no such API."""
    return _REQUEST_BYTES_MAX.get(key, _SMALL)


def advertised_versions(*, to_brokers: bool) -> list[ApiVersion]:
    """The APIs for an ApiVersions response, each with its version range."""
    return [
        ApiVersion(api_key=api.key, min_version=api.oldest, max_version=api.newest)
        for api in TABLE
        if to_brokers or not api.is_between_brokers
    ]
