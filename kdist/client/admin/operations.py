"""The table of admin operations: each is a function of a cluster, and a method of both clients."""

from __future__ import annotations

from kdist.client.admin import (
    acls,
    brokers,
    disks,
    elections,
    groups,
    offsets,
    quotas,
    reassignments,
    records,
    settings,
    topics,
    users,
)
from kdist.client.foreign import OtherNames
from kdist.client.metrics import Measured
from kdist.client.operation import Operation


class Operations(Measured, OtherNames):
    """What an admin client can do."""

    list_topics = Operation(topics.list_topics)
    describe_topics = Operation(topics.describe_topics)
    create_topics = Operation(topics.create_topics)
    create_topic = Operation(topics.create_topic)
    delete_topics = Operation(topics.delete_topics)
    create_partitions = Operation(topics.create_partitions)

    describe_topic_configs = Operation(settings.describe_topic_configs)
    incremental_alter_topic_configs = Operation(settings.incremental_alter_topic_configs)
    describe_broker_configs = Operation(settings.describe_broker_configs)
    describe_default_broker_configs = Operation(settings.describe_default_broker_configs)
    incremental_alter_broker_configs = Operation(settings.incremental_alter_broker_configs)

    describe_client_quotas = Operation(quotas.describe_client_quotas)
    alter_client_quotas = Operation(quotas.alter_client_quotas)

    describe_user_scram_credentials = Operation(users.describe_user_scram_credentials)
    upsert_user_scram_credentials = Operation(users.upsert_user_scram_credentials)
    delete_user_scram_credentials = Operation(users.delete_user_scram_credentials)
    describe_acls = Operation(acls.describe_acls)
    create_acls = Operation(acls.create_acls)
    delete_acls = Operation(acls.delete_acls)

    list_groups = Operation(groups.list_groups)
    describe_groups = Operation(groups.describe_groups)
    delete_groups = Operation(groups.delete_groups)

    list_group_offsets = Operation(offsets.list_group_offsets)
    alter_group_offsets = Operation(offsets.alter_group_offsets)
    delete_group_offsets = Operation(offsets.delete_group_offsets)
    plan_group_offsets_reset = Operation(offsets.plan_group_offsets_reset)
    reset_group_offsets = Operation(offsets.reset_group_offsets)
    list_offsets = Operation(offsets.list_offsets)

    elect_leaders = Operation(elections.elect_leaders)
    alter_partition_reassignments = Operation(reassignments.alter_partition_reassignments)
    list_partition_reassignments = Operation(reassignments.list_partition_reassignments)
    delete_records = Operation(records.delete_records)
    describe_log_dirs = Operation(disks.describe_log_dirs)
    describe_cluster = Operation(brokers.describe_cluster)
    describe_versions = Operation(brokers.describe_versions)
