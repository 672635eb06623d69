"""The table of admin operations: each is a function of a cluster, and a method of both clients."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from functools import partial, update_wrapper
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar, overload

from kdist.client.admin import brokers, disks, groups, offsets, records, settings, topics
from kdist.client.cluster import Cluster

P = ParamSpec("P")
T = TypeVar("T")


class Blocking:
    """A client whose methods block until they have a result."""


class Operation(Generic[P, T]):
    """A function of a cluster, as a method of the client that owns the cluster."""

    def __init__(self, function: Callable[Concatenate[Cluster, P], Coroutine[Any, Any, T]]) -> None:
        self._function = function

    @overload
    def __get__(self, client: None, kind: type) -> Callable[..., Any]: ...

    @overload
    def __get__(self, client: Blocking, kind: type) -> Callable[P, T]: ...

    @overload
    def __get__(self, client: object, kind: type) -> Callable[P, Coroutine[Any, Any, T]]: ...

    def __get__(self, client: Any, kind: type) -> Any:
        if client is None:
            return self._function
        return update_wrapper(partial(client._operate, self._function), self._function)


class Operations:
    """What an admin client can do."""

    list_topics = Operation(topics.list_topics)
    describe_topics = Operation(topics.describe_topics)
    create_topics = Operation(topics.create_topics)
    create_topic = Operation(topics.create_topic)
    delete_topics = Operation(topics.delete_topics)
    grow_topics = Operation(topics.grow_topics)

    describe_topic_settings = Operation(settings.describe_topic_settings)
    alter_topic_settings = Operation(settings.alter_topic_settings)
    describe_broker_settings = Operation(settings.describe_broker_settings)
    describe_shared_settings = Operation(settings.describe_shared_settings)
    alter_broker_settings = Operation(settings.alter_broker_settings)

    list_groups = Operation(groups.list_groups)
    describe_groups = Operation(groups.describe_groups)
    delete_groups = Operation(groups.delete_groups)

    group_offsets = Operation(offsets.group_offsets)
    alter_group_offsets = Operation(offsets.alter_group_offsets)
    delete_group_offsets = Operation(offsets.delete_group_offsets)
    plan_group_reset = Operation(offsets.plan_group_reset)
    reset_group = Operation(offsets.reset_group)
    list_offsets = Operation(offsets.list_offsets)

    delete_records = Operation(records.delete_records)
    describe_log_directories = Operation(disks.describe_log_directories)
    describe_cluster = Operation(brokers.describe_cluster)
    describe_versions = Operation(brokers.describe_versions)
