"""Topics and groups as an operator sees and changes them.

Topic changes go to the controller. Groups are asked for at every broker, since each knows only
those it coordinates.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from kdist.client.cluster import Cluster, did_you_mean, raise_for
from kdist.errors import ApiError, Error, UserError
from kdist.protocol.create_partitions import CreatePartitionsRequest, GrownTopic
from kdist.protocol.create_topics import (
    CreateTopicsRequest,
    NewTopic,
    NewTopicResult,
    TopicSetting,
)
from kdist.protocol.delete_topics import DeleteTopicsRequest, DoomedTopic
from kdist.protocol.describe_groups import DescribedGroup, DescribeGroupsRequest
from kdist.protocol.find_coordinator import FindCoordinatorRequest
from kdist.protocol.list_groups import ListedGroup, ListGroupsRequest
from kdist.protocol.metadata import MetadataTopicResult

TIMEOUT_MS = 20_000  # for the controller to tell all brokers

T = TypeVar("T")

DEAD = "Dead"  # the state of a group that nobody knows


async def list_topics(cluster: Cluster) -> list[MetadataTopicResult]:
    """Every topic by name, its partitions in order."""
    found = [topic for topic in (await cluster.metadata(None)).topics if topic.name]
    for topic in found:
        topic.partitions.sort(key=lambda each: each.partition_index)
    return sorted(found, key=lambda topic: topic.name or "")


async def pick_topics(cluster: Cluster, names: Sequence[str]) -> list[MetadataTopicResult]:
    """The topics of these names, all if there are none; `UserError` for one that does not exist."""
    topics = {topic.name or "": topic for topic in await list_topics(cluster)}
    for name in names:
        if name not in topics:
            raise UserError(f"there is no topic {name}{did_you_mean(name, topics)}")
    return [topics[name] for name in names or topics]


async def create_topic(
    cluster: Cluster,
    name: str,
    partitions: int = -1,
    replication_factor: int = -1,
    settings: Mapping[str, str | None] | None = None,
) -> NewTopicResult:
    """Create a topic; -1 takes the broker's default. `ApiError` as the controller says."""
    new = NewTopic(
        name=name,
        num_partitions=partitions,
        replication_factor=replication_factor,
        assignments=[],
        configs=[TopicSetting(name=key, value=value) for key, value in (settings or {}).items()],
    )
    request = CreateTopicsRequest(topics=[new], timeout_ms=TIMEOUT_MS)

    def read(answer: Any) -> NewTopicResult:
        (result,) = answer.topics
        raise_for(result.error_code, "", result.error_message)
        assert isinstance(result, NewTopicResult)
        return result

    return await _change(cluster, request, read)


async def delete_topic(cluster: Cluster, name: str) -> None:
    """Delete a topic with all its records."""
    doomed = DeleteTopicsRequest(
        topics=[DoomedTopic(name=name)], topic_names=[name], timeout_ms=TIMEOUT_MS
    )

    def read(answer: Any) -> None:
        (result,) = answer.responses
        raise_for(result.error_code, f"topic {name}", result.error_message)

    await _change(cluster, doomed, read)


async def grow_topic(cluster: Cluster, name: str, partitions: int) -> None:
    """Add partitions, up to `partitions` in all."""
    grown = GrownTopic(name=name, count=partitions, assignments=None)
    request = CreatePartitionsRequest(topics=[grown], timeout_ms=TIMEOUT_MS, validate_only=False)

    def read(answer: Any) -> None:
        (result,) = answer.results
        raise_for(result.error_code, f"topic {name}", result.error_message)

    await _change(cluster, request, read)


async def _change(cluster: Cluster, request: Any, read: Callable[[Any], T]) -> T:
    """What `read` makes of the controller's answer, once a controller is found.

    What failed after it was sent is not sent again: a second answer could say that the topic
    exists, when it is this request that created it.
    """

    async def attempt() -> T | ApiError:
        await cluster.metadata()
        if cluster.controller_id not in cluster.brokers:
            raise ApiError(Error.NOT_CONTROLLER, "the cluster has no controller at the moment")
        client = await cluster.client(cluster.controller_id)
        try:
            return read(await client.send(request))
        except ApiError as error:
            if error.error is Error.NOT_CONTROLLER:
                raise
            return error

    outcome = await cluster.retried(attempt)
    if isinstance(outcome, ApiError):
        raise outcome
    return outcome


# Groups


async def list_groups(cluster: Cluster) -> list[tuple[ListedGroup, int]]:
    """Every group by name, with the id of its coordinator."""
    await cluster.metadata()
    brokers = sorted(cluster.brokers)
    answers = await asyncio.gather(*(_groups_of(cluster, broker) for broker in brokers))
    found = [
        (group, broker) for broker, groups in zip(brokers, answers, strict=True) for group in groups
    ]
    return sorted(found, key=lambda each: each[0].group_id)


async def _groups_of(cluster: Cluster, broker_id: int) -> list[ListedGroup]:
    async def ask() -> list[ListedGroup]:
        answer = await cluster.ask(ListGroupsRequest(), broker_id)
        raise_for(answer.error_code, f"the groups of broker {broker_id}")
        groups: list[ListedGroup] = answer.groups
        return groups

    return await cluster.retried(ask)


async def find_coordinator(cluster: Cluster, group: str) -> int:
    """The id of the broker that coordinates a group."""

    async def find() -> int:
        await cluster.metadata()
        broker = min(cluster.brokers)
        answer = await cluster.ask(FindCoordinatorRequest(coordinator_keys=[group]), broker)
        (found,) = answer.coordinators
        raise_for(found.error_code, f"group {group}", found.error_message)
        if found.node_id not in cluster.brokers:
            raise ApiError(Error.COORDINATOR_NOT_AVAILABLE)
        node_id: int = found.node_id
        return node_id

    return await cluster.retried(find)


async def describe_group(cluster: Cluster, group: str) -> tuple[DescribedGroup, int]:
    """A group and its coordinator's id; one that nobody knows is in state `DEAD`."""

    async def ask() -> tuple[DescribedGroup, int]:
        coordinator = await find_coordinator(cluster, group)
        answer = await cluster.ask(DescribeGroupsRequest(groups=[group]), coordinator)
        (described,) = answer.groups
        if described.error_code != Error.GROUP_ID_NOT_FOUND:  # Kafka's word for DEAD, from 4.0 on
            raise_for(described.error_code, f"group {group}")
        return described, coordinator

    return await cluster.retried(ask)
