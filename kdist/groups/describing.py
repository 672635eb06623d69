"""DescribeGroups and ListGroups: groups as operators see them (pure)."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from kdist.errors import Error
from kdist.groups.group import Group
from kdist.groups.member import Member
from kdist.groups.states import DEAD, STABLE
from kdist.protocol.describe_groups import (
    DescribedGroup,
    DescribedMember,
    DescribeGroupsRequest,
)
from kdist.protocol.list_groups import ListedGroup
from kdist.protocol.operations import OMITTED, ON_GROUP
from kdist.runtime.slices import Steps

CLASSIC = (
    "classic"  # the type of every group here: its members use JoinGroup, not KIP-848's protocol
)

Find = Callable[[str], tuple[Error, Group | None]]

_GROUP_US, _MEMBER_US = 3, 2


def describe_groups(
    request: DescribeGroupsRequest, find: Find, found: list[DescribedGroup]
) -> Steps:
    """Add a description of each group that is asked for."""
    operations = ON_GROUP if request.include_authorized_operations else OMITTED
    for group_id in request.groups:
        error, group = find(group_id)
        found.append(described(group_id, error, group, operations))
        yield _GROUP_US + (_MEMBER_US * len(group.members) if group else 0)


def described(group_id: str, error: Error, group: Group | None, operations: int) -> DescribedGroup:
    """Describe a group; one that does not exist is Dead, without an error, as in Kafka."""
    if group is None:
        return DescribedGroup(
            error_code=error,
            group_id=group_id,
            group_state=DEAD.value if error is Error.NONE else "",
            protocol_type="",
            protocol_data="",
            members=[],
            authorized_operations=OMITTED if error else operations,
        )
    is_stable = group.state is STABLE
    protocol = group.protocol_name or "" if is_stable else ""
    return DescribedGroup(
        error_code=error,
        group_id=group_id,
        group_state=group.state.value,
        protocol_type=group.protocol_type or "",
        protocol_data=protocol,
        members=[_described_member(each, protocol, is_stable) for each in group.members.values()],
        authorized_operations=operations,
    )


def list_groups(
    groups: Iterable[Group],
    states: Iterable[str],
    types: Iterable[str],
    found: list[ListedGroup],
) -> Steps:
    """Add the groups of one of `types` in one of `states`, ignoring case; none given: all."""
    wanted, of_types = ({each.lower() for each in given} for given in (states, types))
    if of_types and CLASSIC not in of_types:
        return
    for each in groups:
        state = each.state.value
        if each.state is not DEAD and (not wanted or state.lower() in wanted):
            listed = ListedGroup(
                group_id=each.group_id,
                protocol_type=each.protocol_type or "",
                group_state=state,
                group_type=CLASSIC,
            )
            found.append(listed)
        yield 1


def _described_member(member: Member, protocol: str, is_stable: bool) -> DescribedMember:
    return DescribedMember(
        member_id=member.member_id,
        group_instance_id=member.instance_id,
        client_id=member.client_id,
        client_host=member.client_host,
        member_metadata=member.metadata(protocol) if is_stable else b"",
        member_assignment=member.assignment if is_stable else b"",
    )
