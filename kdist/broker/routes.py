"""Which handler answers which API: one row each.

A `direct` handler answers through its `Call`, at once or later; a `waiting` handler is a coroutine
that returns the answer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple, TypeVar

from kdist.broker import authentication
from kdist.broker.dispatch import DirectHandler, GeneralCall, Routes, WaitingHandler
from kdist.broker.handlers import (
    api_versions,
    delete_records,
    log_dirs,
    offset_lookups,
)
from kdist.broker.handlers.acls import AclsHandler
from kdist.broker.handlers.client_quotas import ClientQuotasHandler
from kdist.broker.handlers.commands import CommandsHandler
from kdist.broker.handlers.configs import ConfigsHandler
from kdist.broker.handlers.control import ControlHandler
from kdist.broker.handlers.fetch import FetchHandler
from kdist.broker.handlers.init_producer_id import ProducerIds
from kdist.broker.handlers.metadata import MetadataHandler
from kdist.broker.handlers.produce import ProduceHandler
from kdist.broker.handlers.scram_users import ScramUsersHandler
from kdist.groups.coordinator import GroupCoordinator
from kdist.protocol.versions import TABLE
from kdist.replication.replicas import Replicas
from kdist.security.principals import format_principal

Handler = TypeVar("Handler")

_KEYS = {api.name: api.key for api in TABLE}
_CHANGING = (
    "CreateTopics",
    "DeleteTopics",
    "CreatePartitions",
    "ElectLeaders",
    "AlterPartitionReassignments",
    "DeleteRecords",
    "AlterConfigs",
    "IncrementalAlterConfigs",
    "OffsetCommit",
    "OffsetDelete",
    "DeleteGroups",
    "AlterClientQuotas",
    "CreateAcls",
    "DeleteAcls",
    "AlterUserScramCredentials",
)
_LONG = ("ListOffsets", "ListGroups", "DescribeGroups")


class Handlers(NamedTuple):
    """The handlers that have a state, and the replicas that the others look into."""

    replicas: Replicas
    produce: ProduceHandler
    fetch: FetchHandler
    metadata: MetadataHandler
    groups: GroupCoordinator
    commands: CommandsHandler
    producer_ids: ProducerIds
    control: ControlHandler
    configs: ConfigsHandler
    client_quotas: ClientQuotasHandler
    acls: AclsHandler
    scram_users: ScramUsersHandler


def routes_to(to: Handlers) -> Routes:
    """A row for every API of the version table."""
    holding = frozenset(_KEYS[name] for name in (*_CHANGING, *_LONG))
    routes = Routes(_by_key(_direct(to)), _by_key(_waiting(to)), holding, to.fetch.hold)
    routes.check()
    return routes


def _direct(to: Handlers) -> dict[str, DirectHandler]:
    return {
        "Produce": to.produce.handle,
        "Fetch": to.fetch.handle,
        "ListOffsets": lambda asked, call: offset_lookups.handle(asked, call, to.replicas),
        "OffsetCommit": _of_group(to.groups.offset_commit),
        "OffsetFetch": _of_group(to.groups.offset_fetch),
        "FindCoordinator": lambda asked, call: call.answer_with_error(
            to.metadata.find_coordinator(asked, call.version, call.listener)
        ),
        "JoinGroup": _of_group(to.groups.join_group),
        "Heartbeat": _of_group(to.groups.heartbeat),
        "LeaveGroup": _of_group(to.groups.leave_group),
        "SyncGroup": _of_group(to.groups.sync_group),
        "DescribeGroups": _of_group(to.groups.describe_groups),
        "ListGroups": _of_group(to.groups.list_groups),
        "DeleteGroups": _of_group(to.groups.delete_groups),
        "OffsetDelete": _of_group(to.groups.offset_delete),
        "OffsetForLeaderEpoch": lambda asked, call: call.answer(
            offset_lookups.answer_epochs(asked, to.replicas)
        ),
        "DescribeLogDirs": lambda asked, call: call.answer(
            log_dirs.describe(asked, to.replicas.directory)
        ),
        "AlterReplicaLogDirs": lambda asked, call: call.answer(
            log_dirs.alter(asked, to.replicas.directory)
        ),
        "SaslHandshake": authentication.handshake,
        "SaslAuthenticate": authentication.authenticate,
        "ApiVersions": lambda asked, call: call.answer_with_error(
            api_versions.answer(
                asked, call.version, to_brokers=to.control.admission.lists(call.listener)
            )
        ),
    }


def _waiting(to: Handlers) -> dict[str, WaitingHandler]:
    return {
        "Metadata": to.metadata.answer,
        "LeaderAndIsr": to.control.leader_and_isr,
        "StopReplica": to.control.stop_replica,
        "UpdateMetadata": to.control.update_metadata,
        "ControlledShutdown": to.control.controlled_shutdown,
        "AlterPartition": to.control.alter_partition,
        "AllocateProducerIds": to.control.allocate_producer_ids,
        "CreateTopics": to.commands.create_topics,
        "DeleteTopics": to.commands.delete_topics,
        "InitProducerId": lambda asked, _call: to.producer_ids.answer(asked),
        "CreatePartitions": to.commands.create_partitions,
        "ElectLeaders": lambda asked, _call: to.commands.elect_leaders(asked),
        "AlterPartitionReassignments": lambda asked, _call: to.commands.reassign(asked),
        "ListPartitionReassignments": lambda asked, _call: to.commands.list_reassignments(asked),
        "DeleteRecords": lambda asked, _call: delete_records.answer(asked, to.replicas),
        "DescribeAcls": lambda asked, _call: to.acls.describe(asked),
        "CreateAcls": lambda asked, call: to.acls.create(asked, _who(call)),
        "DeleteAcls": lambda asked, call: to.acls.delete(asked, _who(call)),
        "DescribeConfigs": lambda asked, _call: to.configs.describe(asked),
        "AlterConfigs": lambda asked, _call: to.configs.replace(asked),
        "IncrementalAlterConfigs": lambda asked, _call: to.configs.change(asked),
        "DescribeClientQuotas": lambda asked, _call: to.client_quotas.describe(asked),
        "AlterClientQuotas": lambda asked, _call: to.client_quotas.alter(asked),
        "DescribeUserScramCredentials": lambda asked, _call: to.scram_users.describe(asked),
        "AlterUserScramCredentials": lambda asked, call: to.scram_users.alter(
            asked, call.listener, _who(call)
        ),
        "DescribeCluster": lambda asked, call: to.metadata.describe_cluster(asked, call.listener),
    }


def _who(call: GeneralCall) -> str:
    """Who sends a request, and from where, as log lines say it."""
    connection = call.connection
    return f"{format_principal(connection.principal)!r} from {connection.host}"


def _by_key(handlers: Mapping[str, Handler]) -> dict[int, Handler]:
    return {_KEYS[name]: handler for name, handler in handlers.items()}


def _of_group(method: Callable[..., None]) -> DirectHandler:
    """A handler that calls a method of the group coordinator, which answers now or later."""

    def ask(asked: object, call: GeneralCall) -> None:
        method(asked, call.caller, call.answer_with_error)

    return ask
