"""Consumer groups: list, describe with members and lag, delete.

Each broker knows only the groups it coordinates, so listing asks all brokers. Groups of Kafka 4's
new protocol (KIP-848) are listed but not described: kdist does not implement their requests.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from kdist.client.admin.asking import ask_brokers, ask_coordinator, group_coordinator
from kdist.client.admin.offsets import list_group_offsets
from kdist.client.admin.outcomes import each_of, listed, settled
from kdist.client.cluster import Cluster, did_you_mean, raise_for
from kdist.client.offsets import find_ranges
from kdist.errors import ApiError, Error, ProtocolError
from kdist.model import OffsetRange, TopicPartition
from kdist.protocol.consumer_protocol import read_assignment
from kdist.protocol.delete_groups import DeleteGroupsRequest
from kdist.protocol.describe_groups import DescribedGroup, DescribedMember, DescribeGroupsRequest
from kdist.protocol.list_groups import ListGroupsRequest

DEAD = "Dead"  # the state of a group that does not exist
CONSUMERS = "consumer"  # the protocol type of consumer groups


class ListedGroup(NamedTuple):
    """A listed group; `state` is empty if the broker is older than Kafka 2.6."""

    name: str
    state: str
    type: str
    coordinator: int


class Member(NamedTuple):
    """A member and its assigned partitions, which are empty if it is not a consumer."""

    id: str
    instance_id: str | None
    client_id: str
    host: str
    partitions: tuple[TopicPartition, ...]


class Progress(NamedTuple):
    """A group's progress in one partition.

    `committed` is None if the group has no committed offset there, `start` and `end` (of the log)
    if they are unknown, `member` if no member owns the partition.
    """

    partition: TopicPartition
    committed: int | None
    start: int | None
    end: int | None
    member: str | None

    @property
    def lag(self) -> int | None:
        """How many offsets the group has yet to read; None if that is not known.

        What retention or DeleteRecords took from before the log's start does not count.
        """
        if self.committed is None or self.start is None or self.end is None:
            return None
        return max(0, self.end - max(self.committed, self.start))


class Group(NamedTuple):
    """A group's description; `assignor` is empty while it has no members."""

    name: str
    state: str
    type: str
    assignor: str
    coordinator: int
    members: tuple[Member, ...]
    progress: tuple[Progress, ...]

    @property
    def lag(self) -> int:
        """The sum over all partitions whose lag is known."""
        return sum(each.lag or 0 for each in self.progress)


async def list_groups(cluster: Cluster) -> list[ListedGroup]:
    """Every group, sorted by name; `SomeFailed`, by broker id, if a broker does not answer."""

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
    """Groups by name, with members and lag.

    Errors: GROUP_ID_NOT_FOUND, which suggests the nearest name, for a group that does not exist;
    UNSUPPORTED_VERSION for one of KIP-848.
    """
    return await each_of(listed(names), lambda name: _describe(cluster, name))


async def _describe(cluster: Cluster, name: str) -> Group:
    found, coordinator = await describe_group(cluster, name)
    if found.group_state == DEAD:
        raise await unknown_group(cluster, name)
    committed = await list_group_offsets(cluster, name)
    members = tuple(_member(found.protocol_type, each) for each in found.members)
    owners = {each: member.id for member in members for each in member.partitions}
    wanted = sorted({*committed, *owners})
    ranges = await _ranges(cluster, wanted)
    return Group(
        name,
        found.group_state,
        found.protocol_type,
        found.protocol_data,
        coordinator,
        members,
        tuple(
            Progress(each, committed.get(each), start, end, owners.get(each))
            for each in wanted
            for start, end in (ranges.get(each, (None, None)),)
        ),
    )


async def describe_group(cluster: Cluster, name: str) -> tuple[DescribedGroup, int]:
    """A group as on the wire, and its coordinator's id; one that does not exist is `DEAD`."""

    async def ask() -> tuple[DescribedGroup, int]:
        coordinator = await group_coordinator(cluster, name)
        answer = await cluster.ask(DescribeGroupsRequest(groups=[name]), coordinator)
        (described,) = answer.groups
        if described.error_code != Error.GROUP_ID_NOT_FOUND:  # since Kafka 4.0, instead of DEAD
            raise_for(described.error_code, f"group {name}")
        return described, coordinator

    return await cluster.retried(ask)


async def unknown_group(cluster: Cluster, name: str) -> ApiError:
    """Why a group cannot be described: it is missing (with the nearest name), or of KIP-848."""
    known = [each.name for each in await list_groups(cluster)]
    if name in known:
        return ApiError(
            Error.UNSUPPORTED_VERSION,
            f"group {name} uses Kafka 4's new protocol (KIP-848), and can only be listed here",
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
    """A consumer's assigned partitions; none for other members, whose format is not known."""
    if group_type != CONSUMERS or not assigned:
        return ()
    try:
        found = read_assignment(assigned).assigned_partitions
    except ProtocolError:
        return ()
    return tuple(TopicPartition(each.topic, number) for each in found for number in each.partitions)


async def _ranges(
    cluster: Cluster, wanted: list[TopicPartition]
) -> dict[TopicPartition, OffsetRange]:
    """The offsets of those partitions that still exist and have a leader."""
    return await find_ranges(cluster, await cluster.led(wanted, 0))


async def delete_groups(cluster: Cluster, names: Iterable[str]) -> None:
    """Delete groups and their committed offsets; NON_EMPTY_GROUP for one that has members."""

    async def delete(name: str) -> None:
        def read(answer: Any) -> None:
            (result,) = answer.results
            raise_for(result.error_code, f"group {name}")

        request = DeleteGroupsRequest(groups_names=[name])
        try:
            await ask_coordinator(cluster, name, request, read)
        except ApiError as error:
            if error.error is Error.GROUP_ID_NOT_FOUND:
                raise await unknown_group(cluster, name) from None
            raise

    await each_of(listed(names), delete)
