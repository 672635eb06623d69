"""DescribeGroups and ListGroups: groups as operators see them (pure)."""

from __future__ import annotations

from collections.abc import Iterable

from kdist.errors import Error
from kdist.groups.group import Group
from kdist.groups.member import Member
from kdist.groups.states import DEAD, STABLE
from kdist.protocol.describe_groups import DescribedGroup, DescribedMember
from kdist.protocol.list_groups import ListedGroup
from kdist.protocol.operations import OMITTED

CLASSIC = (
    "classic"  # the type of every group here: its members use JoinGroup, not KIP-848's protocol
)


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


def listed(
    groups: Iterable[Group], states: Iterable[str], types: Iterable[str] = ()
) -> list[ListedGroup]:
    """The groups of one of `types` in one of `states`, ignoring case; none given: all of them."""
    wanted, of_types = ({each.lower() for each in given} for given in (states, types))
    if of_types and CLASSIC not in of_types:
        return []
    return [
        ListedGroup(
            group_id=each.group_id,
            protocol_type=each.protocol_type or "",
            group_state=each.state.value,
            group_type=CLASSIC,
        )
        for each in groups
        if not wanted or each.state.value.lower() in wanted
    ]


def _described_member(member: Member, protocol: str, is_stable: bool) -> DescribedMember:
    return DescribedMember(
        member_id=member.member_id,
        group_instance_id=member.instance_id,
        client_id=member.client_id,
        client_host=member.client_host,
        member_metadata=member.metadata(protocol) if is_stable else b"",
        member_assignment=member.assignment if is_stable else b"",
    )
