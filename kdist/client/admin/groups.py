"""Groups of consumers: listed, described with their members and their lag, deleted.

Each broker knows only the groups it coordinates, so a list is asked of all. Groups of Kafka 4's own
protocol (KIP-848) are listed, and not described: their requests are not spoken here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any, NamedTuple

from kdist.client.admin.asking import ask_brokers, ask_coordinator, group_coordinator
from kdist.client.admin.offsets import group_offsets
from kdist.client.admin.outcomes import listed, settled
from kdist.client.cluster import Cluster, did_you_mean, raise_for
from kdist.client.offsets import find_offsets
from kdist.errors import ApiError, Error, ProtocolError
from kdist.model import NO_LEADER, TopicPartition
from kdist.protocol.consumer_protocol import read_assignment
from kdist.protocol.delete_groups import DeleteGroupsRequest
from kdist.protocol.describe_groups import (
    DescribedGroup,
    DescribedMember,
    DescribeGroupsRequest,
)
from kdist.protocol.list_groups import ListGroupsRequest
from kdist.protocol.list_offsets import LATEST_TIMESTAMP

DEAD = "Dead"  # the state of a group that nobody knows
CONSUMERS = "consumer"  # the type of consumers' groups


class ListedGroup(NamedTuple):
    """A group in a list; `state` is empty where the broker is older than Kafka 2.6."""

    name: str
    state: str
    type: str
    coordinator: int


class Member(NamedTuple):
    """A member, and what it was given; nothing for one that is no consumer."""

    id: str
    instance_id: str | None
    client_id: str
    host: str
    partitions: tuple[TopicPartition, ...]


class Progress(NamedTuple):
    """How far a group is in one partition; `committed` None: nothing yet, `end` None: unknown."""

    partition: TopicPartition
    committed: int | None
    end: int | None
    member: str | None

    @property
    def lag(self) -> int | None:
        """Records between the committed offset and the end."""
        if self.committed is None or self.end is None:
            return None
        return max(0, self.end - self.committed)


class Group(NamedTuple):
    """A group with all there is to know of it; `assignor` is empty while it has no members."""

    name: str
    state: str
    type: str
    assignor: str
    coordinator: int
    members: tuple[Member, ...]
    progress: tuple[Progress, ...]

    @property
    def lag(self) -> int:
        """Of all partitions where it is known."""
        return sum(each.lag or 0 for each in self.progress)


async def list_groups(cluster: Cluster) -> list[ListedGroup]:
    """Every group by name; `SomeFailed` by broker if one does not answer."""

    async def ask(broker: int) -> list[ListedGroup]:
        answer = await cluster.ask(ListGroupsRequest(), broker)
        raise_for(answer.error_code, f"the groups of broker {broker}")
        return [
            ListedGroup(each.group_id, each.group_state, each.protocol_type, broker)
            for each in answer.groups
        ]

    answers = settled(await ask_brokers(cluster, ask))
    return sorted(group for groups in answers.values() for group in groups)


async def describe_groups(cluster: Cluster, names: Iterable[str]) -> dict[str, Group]:
    """Groups by name, with lag; GROUP_ID_NOT_FOUND with the nearest name for one not there.

    UNSUPPORTED_VERSION for one of KIP-848.
    """
    wanted = listed(names, "groups")

    async def one(name: str) -> Group | ApiError:
        try:
            return await _describe(cluster, name)
        except ApiError as error:
            return error

    found = await asyncio.gather(*map(one, wanted))
    return settled(dict(zip(wanted, found, strict=True)))


async def _describe(cluster: Cluster, name: str) -> Group:
    found, coordinator = await describe_group(cluster, name)
    if found.group_state == DEAD:
        raise await unknown_group(cluster, name)
    committed = await group_offsets(cluster, name)
    members = tuple(_member(found.protocol_type, each) for each in found.members)
    owners = {each: member.id for member in members for each in member.partitions}
    wanted = sorted({*committed, *owners})
    ends = await _ends(cluster, wanted)
    return Group(
        name,
        found.group_state,
        found.protocol_type,
        found.protocol_data,
        coordinator,
        members,
        tuple(Progress(p, committed.get(p), ends.get(p), owners.get(p)) for p in wanted),
    )


async def describe_group(cluster: Cluster, name: str) -> tuple[DescribedGroup, int]:
    """A group as it is on the wire, and its coordinator's id; one nobody knows is `DEAD`."""

    async def ask() -> tuple[DescribedGroup, int]:
        coordinator = await group_coordinator(cluster, name)
        answer = await cluster.ask(DescribeGroupsRequest(groups=[name]), coordinator)
        (described,) = answer.groups
        if described.error_code != Error.GROUP_ID_NOT_FOUND:  # Kafka's word for DEAD, from 4.0 on
            raise_for(described.error_code, f"group {name}")
        return described, coordinator

    return await cluster.retried(ask)


async def unknown_group(cluster: Cluster, name: str) -> ApiError:
    """Why nobody can describe it: GROUP_ID_NOT_FOUND with the nearest name, or it is of KIP-848."""
    known = [each.name for each in await list_groups(cluster)]
    if name in known:
        return ApiError(
            Error.UNSUPPORTED_VERSION,
            f"group {name} is of Kafka 4's own protocol (KIP-848): it is listed here, and no more",
        )
    sentence = f"there is no group {name}{did_you_mean(name, known)}"
    return ApiError(Error.GROUP_ID_NOT_FOUND, sentence)


def _member(group_type: str, found: DescribedMember) -> Member:
    return Member(
        found.member_id,
        found.group_instance_id,
        found.client_id,
        found.client_host.removeprefix("/"),
        _assignment(group_type, found.member_assignment),
    )


def _assignment(group_type: str, assigned: bytes) -> tuple[TopicPartition, ...]:
    """What a consumer was given; nothing for members of another kind, whose bytes are their own."""
    if group_type != CONSUMERS or not assigned:
        return ()
    try:
        found = read_assignment(assigned).assigned_partitions
    except ProtocolError:
        return ()
    return tuple(TopicPartition(each.topic, number) for each in found for number in each.partitions)


async def _ends(cluster: Cluster, wanted: list[TopicPartition]) -> dict[TopicPartition, int]:
    """Ends of the partitions that still exist and have a leader: topics are deleted, too."""
    await cluster.metadata({each.topic for each in wanted})
    led = [each for each in wanted if cluster.leaders.get(each, NO_LEADER) != NO_LEADER]
    return await find_offsets(cluster, led, LATEST_TIMESTAMP)


async def delete_groups(cluster: Cluster, names: Iterable[str]) -> None:
    """Let groups go with all they have committed; NON_EMPTY_GROUP for one that has members."""
    wanted = listed(names, "groups")

    async def one(name: str) -> ApiError | None:
        def read(answer: Any) -> None:
            (result,) = answer.results
            raise_for(result.error_code, f"group {name}")

        request = DeleteGroupsRequest(groups_names=[name])
        try:
            await ask_coordinator(cluster, name, request, read)
        except ApiError as error:
            is_unknown = error.error is Error.GROUP_ID_NOT_FOUND
            return await unknown_group(cluster, name) if is_unknown else error
        return None

    outcomes = await asyncio.gather(*map(one, wanted))
    settled(dict(zip(wanted, outcomes, strict=True)))
