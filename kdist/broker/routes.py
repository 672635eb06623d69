"""Which handler answers which API: one row each.

A `direct` handler answers through its `Call`, at once or later; a `waiting` handler is a coroutine
that returns the answer.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

from kdist.broker.dispatch import Call, DirectHandler, Routes, WaitingHandler
from kdist.broker.handlers import api_versions
from kdist.broker.handlers.alter_configs import AlterConfigsHandler
from kdist.broker.handlers.control import ControlHandler
from kdist.broker.handlers.delete_records import DeleteRecordsHandler
from kdist.broker.handlers.describe_cluster import DescribeClusterHandler
from kdist.broker.handlers.describe_configs import DescribeConfigsHandler
from kdist.broker.handlers.describe_log_dirs import LogDirsHandler
from kdist.broker.handlers.fetch import FetchHandler
from kdist.broker.handlers.find_coordinator import FindCoordinatorHandler
from kdist.broker.handlers.init_producer_id import ProducerIds
from kdist.broker.handlers.list_offsets import ListOffsetsHandler
from kdist.broker.handlers.metadata import MetadataHandler
from kdist.broker.handlers.offset_for_leader_epoch import LeaderEpochsHandler
from kdist.broker.handlers.produce import ProduceHandler
from kdist.broker.handlers.topics import TopicsHandler
from kdist.groups.coordinator import GroupCoordinator
from kdist.protocol import (
    alter_configs,
    alter_partition,
    controlled_shutdown,
    create_partitions,
    create_topics,
    delete_groups,
    delete_records,
    delete_topics,
    describe_cluster,
    describe_configs,
    describe_groups,
    describe_log_dirs,
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

_CHANGING = frozenset(
    each.API.key
    for each in (
        create_topics,
        delete_topics,
        create_partitions,
        delete_records,
        alter_configs,
        incremental_alter_configs,
        offset_commit,
        offset_delete,
        delete_groups,
    )
)


class Handlers(NamedTuple):
    """The handlers of all APIs."""

    produce: ProduceHandler
    fetch: FetchHandler
    offsets: ListOffsetsHandler
    metadata: MetadataHandler
    coordinators: FindCoordinatorHandler
    groups: GroupCoordinator
    topics: TopicsHandler
    producer_ids: ProducerIds
    control: ControlHandler
    records: DeleteRecordsHandler
    epochs: LeaderEpochsHandler
    log_dirs: LogDirsHandler
    cluster: DescribeClusterHandler
    described_settings: DescribeConfigsHandler
    altered_settings: AlterConfigsHandler


def routes_to(to: Handlers) -> Routes:
    """A row for every API of the version table."""
    routes = Routes(
        direct={
            produce.API.key: lambda asked, call: to.produce.handle(
                asked, call.version, call.answer, call.connection
            ),
            fetch.API.key: to.fetch.handle,
            list_offsets.API.key: lambda asked, call: to.offsets.handle(
                asked, call.version, call.answer
            ),
            offset_commit.API.key: _of_group(to.groups.offset_commit),
            offset_fetch.API.key: _of_group(to.groups.offset_fetch),
            find_coordinator.API.key: lambda asked, call: call.answer_with_error(
                to.coordinators.answer(asked, call.version, call.listener)
            ),
            join_group.API.key: _of_group(to.groups.join_group),
            heartbeat.API.key: _of_group(to.groups.heartbeat),
            leave_group.API.key: _of_group(to.groups.leave_group),
            sync_group.API.key: _of_group(to.groups.sync_group),
            describe_groups.API.key: _of_group(to.groups.describe_groups),
            list_groups.API.key: _of_group(to.groups.list_groups),
            delete_groups.API.key: _of_group(to.groups.delete_groups),
            offset_delete.API.key: _of_group(to.groups.offset_delete),
            offset_for_leader_epoch.API.key: lambda asked, call: call.answer(
                to.epochs.answer(asked)
            ),
            describe_log_dirs.API.key: lambda asked, call: call.answer(to.log_dirs.answer(asked)),
            api_versions.KEY: lambda asked, call: call.answer_with_error(
                api_versions.answer(asked, call.version)
            ),
        },
        waiting={
            metadata.API.key: lambda asked, call: to.metadata.answer(
                asked, call.version, call.listener
            ),
            leader_and_isr.API.key: to.control.leader_and_isr,
            stop_replica.API.key: to.control.stop_replica,
            update_metadata.API.key: to.control.update_metadata,
            controlled_shutdown.API.key: _with_listener(to.control.controlled_shutdown),
            alter_partition.API.key: _with_listener(to.control.alter_partition),
            create_topics.API.key: lambda asked, _call: to.topics.create(asked),
            delete_topics.API.key: lambda asked, call: to.topics.delete(asked, call.version),
            init_producer_id.API.key: lambda asked, _call: to.producer_ids.answer(asked),
            create_partitions.API.key: lambda asked, _call: to.topics.grow(asked),
            delete_records.API.key: lambda asked, _call: to.records.answer(asked),
            describe_configs.API.key: lambda asked, _call: to.described_settings.answer(asked),
            alter_configs.API.key: lambda asked, _call: to.altered_settings.replace(asked),
            incremental_alter_configs.API.key: lambda asked, _call: to.altered_settings.change(
                asked
            ),
            describe_cluster.API.key: lambda asked, call: to.cluster.answer(asked, call.listener),
        },
        changing=_CHANGING,
    )
    routes.check()
    return routes


def _with_listener(method: Callable[[Any, str], Awaitable[Any]]) -> WaitingHandler:
    """A handler that calls a method with the request and the listener on which it came."""
    return lambda asked, call: method(asked, call.listener)


def _of_group(method: Callable[..., None]) -> DirectHandler:
    """A handler that calls a method of the group coordinator, which answers now or later."""

    def ask(asked: object, call: Call) -> None:
        method(asked, call.caller, call.answer_with_error)

    return ask
