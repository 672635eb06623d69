"""The group coordinator's front door: one method per API, and loading and unloading of partitions.

A request's group is looked up here; the errors are INVALID_GROUP_ID, NOT_COORDINATOR and
COORDINATOR_LOAD_IN_PROGRESS. While a partition loads, heartbeats are answered without an error and
syncs with REBALANCE_IN_PROGRESS, as old clients do not expect any other error there.

Every `reply` is called exactly once, during the call or later. Whatever is kept of a request is
copied or encoded during the call. The broker answers FindCoordinator.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable
from functools import partial
from typing import NamedTuple

from kdist.errors import Error
from kdist.groups.context import GroupsContext, Reply
from kdist.groups.deletion import Deletion
from kdist.groups.group import (
    DEAD,
    STABLE,
    UNKNOWN_MEMBER_ID,
    Group,
    JoinReply,
    Member,
    SyncReply,
)
from kdist.groups.membership import Join, Membership
from kdist.groups.offsets import (
    Results,
    commit,
    commit_response,
    commits_of,
    fetch,
    in_each_partition,
)
from kdist.groups.rebalance import Rebalancer, join_refused, sync_refused
from kdist.groups.records import Loading
from kdist.groups.registry import Find, Registry
from kdist.metrics.groups import GroupMetrics
from kdist.model import TopicPartition
from kdist.protocol.delete_groups import DeleteGroupsRequest, DeleteGroupsResponse
from kdist.protocol.describe_groups import (
    DescribedGroup,
    DescribedMember,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
)
from kdist.protocol.heartbeat import HeartbeatRequest, HeartbeatResponse
from kdist.protocol.join_group import JoinGroupRequest, JoinGroupResponse
from kdist.protocol.leave_group import (
    LeaveGroupRequest,
    LeaveGroupResponse,
    LeavingMember,
    LeavingMemberResult,
)
from kdist.protocol.list_groups import ListedGroup, ListGroupsRequest, ListGroupsResponse
from kdist.protocol.metadata import OMITTED, ON_GROUP
from kdist.protocol.offset_commit import OffsetCommitRequest, OffsetCommitResponse
from kdist.protocol.offset_delete import OffsetDeleteRequest, OffsetDeleteResponse
from kdist.protocol.offset_fetch import OffsetFetchGroup, OffsetFetchRequest, OffsetFetchResponse
from kdist.protocol.sync_group import SyncGroupRequest
from kdist.runtime.steps import CountedSteps, Slices

logger = logging.getLogger(__name__)

# Versions of JoinGroup, SyncGroup, LeaveGroup and OffsetFetch
MEMBER_ID_IS_REQUIRED_SINCE = 4
PROTOCOL_NAME_MAY_BE_NONE_SINCE = 7
ASSIGNMENT_MAY_BE_SKIPPED_SINCE = 9
PROTOCOL_IS_REQUIRED_SINCE = 5
MEMBERS_SINCE = 3
GROUP_ERROR_SINCE = 2
GROUPS_SINCE = 8
_TIMER_US = 5
_GROUP_US, _MEMBER_US = 3, 2  # to describe one
EMPTY_GROUP_ID = ""  # may commit and fetch offsets, as old clients did; nothing else
# The type of every group here: its members use JoinGroup, not KIP-848's protocol
CLASSIC = "classic"


class Caller(NamedTuple):
    """Where a request comes from: its version, its header's client id, and the client's address.

    Apache Kafka keeps and shows the address as "/10.0.0.7", and so do its tools.
    """

    version: int
    client_id: str
    client_host: str


class GroupCoordinator:
    """Owns the groups of the partitions of `__consumer_offsets` that this broker leads."""

    def __init__(self, context: GroupsContext) -> None:
        self._context = context
        self._registry = Registry(context)
        self._rebalancer = Rebalancer(context)
        self._membership = Membership(context, self._rebalancer)
        self._deletion = Deletion(context, self._registry, self._rebalancer)
        self._offer_readings(context.metrics)

    def start(self) -> None:
        """Start the periodic expiry of offsets and groups."""
        self._deletion.start()

    def use_partitions(self, count: int) -> None:
        """Use the partition count that `__consumer_offsets` has, whatever the settings say.

        The topic may be created after this broker's start by another broker, with other settings,
        or by a user. Once there are groups the count is kept, or they would be looked for in the
        wrong partitions.
        """
        if count != self._context.partitions and self._registry.groups:
            logger.error(
                "__consumer_offsets has %d partitions, but groups are placed by %d: do not add any",
                count,
                self._context.partitions,
            )
        else:
            self._context.partitions = count

    def stop(self) -> None:
        """Unload all partitions; waiting members are told to look for another coordinator."""
        self._deletion.stop()
        for partition in self._registry.partitions():
            self.unload(partition)
        self._context.slices.finish()
        self._context.actions.run()

    def begin_loading(self, partition: int) -> Loading:
        """This broker now leads the partition: replay its log, `decode`, `finish_loading`."""
        return self._registry.begin_loading(partition)

    def is_wanted(self, loading: Loading) -> bool:
        """Whether it is not finished, and the partition not unloaded since."""
        return self._registry.is_wanted(loading)

    def decode(self, loading: Loading) -> CountedSteps:
        """Make groups of what was replayed. Raises `CorruptRecords`, `ProtocolError`."""
        return loading.decode(self._context.clock.now_ms())

    def finish_loading(self, loading: Loading) -> None:
        """Serve the groups: their members have to heartbeat from now on.

        No effect if the partition was unloaded in the meantime.
        """
        if self._registry.finish_loading(loading):
            groups = loading.home.groups
            logger.info("partition %d: %d groups are loaded", loading.partition, len(groups))
            visit = partial(self._begin_service, loading.deleted)
            self._context.slices.add(self._registry.sweep(groups, visit))
        self._context.actions.run()

    def unload(self, partition: int) -> None:
        """Drop the partition's groups; waiting members are told to find the new coordinator."""
        gone = self._registry.unload(partition)
        if gone:
            self._context.slices.add(self._close_all(gone))
        self._context.actions.run()

    def forget_partitions(self, partitions: Collection[TopicPartition]) -> None:
        """The partitions were deleted: delete the offsets committed for them."""
        self._deletion.forget_partitions(partitions)
        self._context.actions.run()

    @property
    def slices(self) -> Slices:
        """Where long work on groups is done, one slice in each tick."""
        return self._context.slices

    def groups(self) -> list[Group]:
        """The groups that are coordinated here now; the caller changes nothing of them."""
        return list(self._registry.groups.values())

    def join_group(self, request: JoinGroupRequest, caller: Caller, reply: JoinReply) -> None:
        """Answers when the next generation begins, or at once if there is nothing to wait for."""
        join = _join_of(request, caller, reply)
        error, group = self._find_managed(request.group_id)
        if error is Error.NONE:
            error = self._session_timeout_fault(request.session_timeout_ms)
        if group is None and error is Error.NONE:
            if request.member_id == UNKNOWN_MEMBER_ID:
                group = self._registry.create(request.group_id, self._context.clock.now_ms())
            else:
                error = Error.UNKNOWN_MEMBER_ID
        if group is None or error is not Error.NONE:
            self._context.answer(join.reply, join_refused(error, join.member_id))
        else:
            self._membership.join(group, join)
            self._drop_if_never_used(group)
        self._context.actions.run()

    def sync_group(self, request: SyncGroupRequest, caller: Caller, reply: SyncReply) -> None:
        """Answers when the leader's assignment has been stored."""
        is_named = request.protocol_type is not None and request.protocol_name is not None
        error, group = self._find_managed(request.group_id)
        if caller.version >= PROTOCOL_IS_REQUIRED_SINCE and not is_named:
            error = Error.INCONSISTENT_GROUP_PROTOCOL
        elif error is Error.COORDINATOR_LOAD_IN_PROGRESS:
            error = Error.REBALANCE_IN_PROGRESS
        elif group is None and error is Error.NONE:
            error = Error.UNKNOWN_MEMBER_ID
        if group is None or error is not Error.NONE:
            self._context.answer(reply, sync_refused(error))
        else:
            self._membership.sync(group, request, reply)
        self._context.actions.run()

    def heartbeat(
        self, request: HeartbeatRequest, _caller: Caller, reply: Reply[HeartbeatResponse]
    ) -> None:
        """Answers at once."""
        error, group = self._find_managed(request.group_id)
        if group is not None:
            error = self._membership.heartbeat(group, request)
        elif error is Error.NONE:
            error = Error.UNKNOWN_MEMBER_ID
        elif error is Error.COORDINATOR_LOAD_IN_PROGRESS:
            error = Error.NONE
        self._context.answer(reply, HeartbeatResponse(error_code=error))
        self._context.actions.run()

    def leave_group(
        self, request: LeaveGroupRequest, caller: Caller, reply: Reply[LeaveGroupResponse]
    ) -> None:
        """Answers at once."""
        error, group = self._find_managed(request.group_id)
        is_of_many = caller.version >= MEMBERS_SINCE
        leaving = request.members if is_of_many else [LeavingMember(member_id=request.member_id)]
        results = self._leave(group, leaving) if error is Error.NONE else []
        if results and not is_of_many:
            error = Error.of(results.pop().error_code)
        self._context.answer(reply, LeaveGroupResponse(error_code=error, members=results))
        self._context.actions.run()

    def offset_commit(
        self, request: OffsetCommitRequest, _caller: Caller, reply: Reply[OffsetCommitResponse]
    ) -> None:
        """Answers when the offsets are in the log."""

        def answer(results: Results) -> None:
            self._context.answer(reply, commit_response(request, results))

        now_ms = self._context.clock.now_ms()
        commits = commits_of(request, self._context.is_known, now_ms)
        error, group = self._registry.find(request.group_id)
        if group is None and error is Error.NONE and commits:
            if request.generation_id < 0:
                group = self._registry.create(request.group_id, now_ms)
            else:
                error = Error.ILLEGAL_GENERATION
        if group is None or not commits:
            answer(dict.fromkeys(commits, error))
        else:
            commit(self._context, self._rebalancer, group, request, commits, answer)
        self._context.actions.run()

    def offset_fetch(
        self, request: OffsetFetchRequest, caller: Caller, reply: Reply[OffsetFetchResponse]
    ) -> None:
        """Answers at once."""
        is_stable_only, find = request.require_stable, self._registry.find
        if caller.version >= GROUPS_SINCE:
            groups = [fetch(each, is_stable_only, find) for each in request.groups]
            response = OffsetFetchResponse(groups=groups)
        else:
            asked = OffsetFetchGroup(group_id=request.group_id, topics=request.topics)
            found = fetch(asked, is_stable_only, find)
            if found.error_code and caller.version < GROUP_ERROR_SINCE:
                error = Error.of(found.error_code)
                found.topics = in_each_partition(error, request.topics or [])
            response = OffsetFetchResponse(topics=found.topics, error_code=found.error_code)
        self._context.answer(reply, response)
        self._context.actions.run()

    def describe_groups(
        self, request: DescribeGroupsRequest, _caller: Caller, reply: Reply[DescribeGroupsResponse]
    ) -> None:
        """Answers once all are described."""
        found: list[DescribedGroup] = []

        def answer() -> None:
            self._context.answer(reply, DescribeGroupsResponse(groups=found))

        steps = describe_groups(request, self._registry.find, found)
        self._context.slices.add(steps, answer)
        self._context.actions.run()

    def list_groups(
        self, request: ListGroupsRequest, _caller: Caller, reply: Reply[ListGroupsResponse]
    ) -> None:
        """Answers with those that exist now; while any partition loads, with an error too."""
        is_loading = self._registry.is_loading
        error = Error.COORDINATOR_LOAD_IN_PROGRESS if is_loading else Error.NONE
        found: list[ListedGroup] = []

        def answer() -> None:
            self._context.answer(reply, ListGroupsResponse(error_code=error, groups=found))

        steps = list_groups(self.groups(), request.states_filter, request.types_filter, found)
        self._context.slices.add(steps, answer)
        self._context.actions.run()

    def delete_groups(
        self, request: DeleteGroupsRequest, _caller: Caller, reply: Reply[DeleteGroupsResponse]
    ) -> None:
        """Answers when the tombstones are in the log."""
        answer = partial(self._context.answer, reply)
        self._context.slices.add(self._deletion.delete_groups(request, answer))
        self._context.actions.run()

    def offset_delete(
        self, request: OffsetDeleteRequest, _caller: Caller, reply: Reply[OffsetDeleteResponse]
    ) -> None:
        """Answers when the tombstones are in the log."""
        self._deletion.delete_offsets(request, partial(self._context.answer, reply))
        self._context.actions.run()

    def _begin_service(self, deleted: Collection[TopicPartition], group: Group) -> CountedSteps:
        """`deleted` are the partitions that were, while the log was read."""
        if deleted:
            yield from self._deletion.forget(deleted, group)
        for member in list(group.members.values()):
            # It may have left meanwhile, or sent a request, or the group be another broker's.
            is_there = group.members.get(member.member_id) is member
            if is_there and member.session is None and group.state is not DEAD:
                self._rebalancer.restart_session(group, member)
                yield _TIMER_US
        if len(group.members) > self._context.settings.max_size:
            self._rebalancer.maybe_prepare(group, "it has more members than group.max.size")

    def _close_all(self, groups: list[Group]) -> CountedSteps:
        while groups:
            group = groups.pop()
            self._rebalancer.close(group)
            yield 2 + _TIMER_US * len(group.members)

    def _find_managed(self, group_id: str) -> tuple[Error, Group | None]:
        """The group for a request that only members send, for which an empty id is invalid."""
        if group_id == EMPTY_GROUP_ID:
            return Error.INVALID_GROUP_ID, None
        return self._registry.find(group_id)

    def _session_timeout_fault(self, timeout_ms: int) -> Error:
        settings = self._context.settings
        if settings.min_session_timeout_ms <= timeout_ms <= settings.max_session_timeout_ms:
            return Error.NONE
        return Error.INVALID_SESSION_TIMEOUT

    def _drop_if_never_used(self, group: Group) -> None:
        """Remove a group that a refused join has just created."""
        if group.generation == 0 and group.is_unused:
            self._registry.remove(group)

    def _leave(
        self, group: Group | None, leaving: list[LeavingMember]
    ) -> list[LeavingMemberResult]:
        return [
            LeavingMemberResult(
                member_id=each.member_id,
                group_instance_id=each.group_instance_id,
                error_code=Error.UNKNOWN_MEMBER_ID
                if group is None
                else self._membership.leave(group, each),
            )
            for each in leaving
        ]

    def _offer_readings(self, metrics: GroupMetrics) -> None:
        registry = self._registry
        metrics.groups = lambda: len(registry.groups)
        metrics.members = lambda: registry.totals().members
        metrics.offsets = lambda: registry.totals().offsets
        metrics.rebalancing_groups = lambda: registry.totals().rebalancing


def _join_of(request: JoinGroupRequest, caller: Caller, reply: JoinReply) -> Join:
    """If the request lists an assignor twice, the first counts."""
    protocols: dict[str, bytes] = {}
    for each in request.protocols:
        protocols.setdefault(each.name, each.metadata)
    has_none = request.rebalance_timeout_ms < 0  # version 0
    may_be_none = caller.version >= PROTOCOL_NAME_MAY_BE_NONE_SINCE
    joiner = Member(
        member_id=request.member_id,
        instance_id=request.group_instance_id,
        client_id=caller.client_id,
        client_host=caller.client_host,
        protocols=tuple(protocols.items()),
        session_timeout_ms=request.session_timeout_ms,
        rebalance_timeout_ms=request.session_timeout_ms
        if has_none
        else request.rebalance_timeout_ms,
    )
    return Join(
        joiner=joiner,
        protocol_type=request.protocol_type,
        may_need_id=caller.version >= MEMBER_ID_IS_REQUIRED_SINCE,
        may_skip_assignment=caller.version >= ASSIGNMENT_MAY_BE_SKIPPED_SINCE,
        reply=reply if may_be_none else partial(_answer_with_protocol_name, reply),
    )


def _answer_with_protocol_name(reply: JoinReply, response: JoinGroupResponse) -> None:
    response.protocol_name = response.protocol_name or ""
    reply(response)


# Groups as operators see them


def describe_groups(
    request: DescribeGroupsRequest, find: Find, found: list[DescribedGroup]
) -> CountedSteps:
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
) -> CountedSteps:
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
