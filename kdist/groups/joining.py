"""A JoinGroup request, decoded, with its reply callback."""

from __future__ import annotations

import dataclasses

from kdist.groups.group import Group, JoinReply
from kdist.groups.member import Caller, Member, Protocols
from kdist.protocol.join_group import JoinGroupRequest


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Join:
    """`protocols` are the request's, in the form that `Member` keeps."""

    request: JoinGroupRequest
    caller: Caller
    protocols: Protocols
    reply: JoinReply

    @property
    def rebalance_timeout_ms(self) -> int:
        """Version 0 has no rebalance timeout: the session timeout is used."""
        asked_ms = self.request.rebalance_timeout_ms
        return self.request.session_timeout_ms if asked_ms < 0 else asked_ms

    def new_member(self, member_id: str) -> Member:
        """The member to add for this join."""
        return Member(
            member_id=member_id,
            instance_id=self.request.group_instance_id,
            client_id=self.caller.client_id,
            client_host=self.caller.client_host,
            protocols=self.protocols,
            session_timeout_ms=self.request.session_timeout_ms,
            rebalance_timeout_ms=self.rebalance_timeout_ms,
        )

    def update(self, group: Group, member: Member) -> None:
        """Update an existing member's protocols and timeouts from this join."""
        group.set_protocols(member, self.protocols)
        member.session_timeout_ms = self.request.session_timeout_ms
        member.rebalance_timeout_ms = self.rebalance_timeout_ms


def join_of(request: JoinGroupRequest, caller: Caller, reply: JoinReply) -> Join:
    """Decode the request. If it lists an assignor twice, the first counts."""
    protocols: dict[str, bytes] = {}
    for each in request.protocols:
        protocols.setdefault(each.name, each.metadata)
    return Join(request, caller, tuple(protocols.items()), reply)
