"""The group coordinator's front door: one method per API, and loading and unloading of partitions.

A request's group is looked up here; the errors are INVALID_GROUP_ID, NOT_COORDINATOR and
COORDINATOR_LOAD_IN_PROGRESS. While a partition loads, heartbeats are answered without an error and
syncs with REBALANCE_IN_PROGRESS, as old clients do not expect any other error there.

Every `reply` is called exactly once, during the call or later. Whatever is kept of a request is
copied or encoded during the call. The broker answers FindCoordinator.
"""

from __future__ import annotations

import logging
from collections.abc import Collection
from functools import partial

from kdist.errors import Error
from kdist.groups import deleting, describing, fetches, membership
from kdist.groups.answers import join_refused, sync_refused
from kdist.groups.commits import Results, commit, commit_response, commits_of
from kdist.groups.context import GroupsContext, Reply
from kdist.groups.group import Group, JoinReply, SyncReply
from kdist.groups.join import Joiner, join_of
from kdist.groups.loading import Loading
from kdist.groups.maintenance import GroupMaintenance
from kdist.groups.member import UNKNOWN_MEMBER_ID, Caller
from kdist.groups.rebalance import Rebalancer
from kdist.groups.registry import Registry
from kdist.groups.sync import sync
from kdist.metrics.groups import GroupMetrics
from kdist.model import TopicPartition
from kdist.protocol.delete_groups import DeleteGroupsRequest, DeleteGroupsResponse
from kdist.protocol.describe_groups import (
    DescribedGroup,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
)
from kdist.protocol.heartbeat import HeartbeatRequest, HeartbeatResponse
from kdist.protocol.join_group import JoinGroupRequest, JoinGroupResponse
from kdist.protocol.leave_group import LeaveGroupRequest, LeaveGroupResponse, LeavingMemberResult
from kdist.protocol.list_groups import ListedGroup, ListGroupsRequest, ListGroupsResponse
from kdist.protocol.offset_commit import OffsetCommitRequest, OffsetCommitResponse
from kdist.protocol.offset_delete import OffsetDeleteRequest, OffsetDeleteResponse
from kdist.protocol.offset_fetch import OffsetFetchRequest, OffsetFetchResponse
from kdist.protocol.sync_group import SyncGroupRequest
from kdist.runtime.slices import Slices, Steps

logger = logging.getLogger(__name__)

PROTOCOL_NAME_MAY_BE_NONE_SINCE = 7  # JoinGroup
PROTOCOL_IS_REQUIRED_SINCE = 5  # SyncGroup
MEMBERS_SINCE = 3  # LeaveGroup
EMPTY_GROUP_ID = ""  # may commit and fetch offsets, as old clients did; nothing else


class GroupCoordinator:
    """Owns the groups of the partitions of `__consumer_offsets` that this broker leads."""

    def __init__(self, context: GroupsContext) -> None:
        self._context = context
        self._registry = Registry(context)
        self._rebalancer = Rebalancer(context)
        self._joiner = Joiner(context, self._rebalancer)
        self._maintenance = GroupMaintenance(context, self._registry, self._rebalancer)
        self._offer_readings(context.metrics)

    def start(self) -> None:
        """Start the periodic expiry of offsets and groups."""
        self._maintenance.start()

    def use_partitions(self, count: int) -> None:
        """Use the partition count that `__consumer_offsets` has, whatever the settings say.

        The topic may be created after this broker's start by another broker, with other settings,
        or by a user. Once there are groups the count is kept, or they would be looked for in the
        wrong partitions.
        """
        if count != self._context.partitions and len(self._registry):
            logger.error(
                "__consumer_offsets has %d partitions, but groups are placed by %d: do not add any",
                count,
                self._context.partitions,
            )
        else:
            self._context.partitions = count

    def stop(self) -> None:
        """Unload all partitions; waiting members are told to look for another coordinator."""
        self._maintenance.stop()
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

    def decode(self, loading: Loading) -> Steps:
        """Make groups of what was replayed. Raises `CorruptRecords`, `ProtocolError`."""
        return loading.decode(self._context.clock.now_ms())

    def finish_loading(self, loading: Loading) -> None:
        """Serve the groups. No effect if the partition was unloaded in the meantime."""
        self._maintenance.finish_loading(loading)
        self._context.actions.run()

    def unload(self, partition: int) -> None:
        """This broker no longer leads the partition."""
        self._maintenance.unload(partition)
        self._context.actions.run()

    def forget_partitions(self, partitions: Collection[TopicPartition]) -> None:
        """The partitions were deleted: delete the offsets committed for them."""
        self._maintenance.forget_partitions(partitions)
        self._context.actions.run()

    @property
    def slices(self) -> Slices:
        """Where long work on groups is done, one slice in each tick."""
        return self._context.slices

    def groups(self) -> list[Group]:
        """The groups that are coordinated here now; the caller changes nothing of them."""
        return list(self._registry)

    def join_group(self, request: JoinGroupRequest, caller: Caller, reply: JoinReply) -> None:
        """Answers when the next generation begins, or at once if there is nothing to wait for."""
        if caller.version < PROTOCOL_NAME_MAY_BE_NONE_SINCE:
            reply = _with_protocol_name(reply)
        error, group = self._find_managed(request.group_id)
        if error is Error.NONE:
            error = self._session_timeout_fault(request.session_timeout_ms)
        if group is None and error is Error.NONE:
            if request.member_id == UNKNOWN_MEMBER_ID:
                group = self._registry.create(request.group_id, self._context.clock.now_ms())
            else:
                error = Error.UNKNOWN_MEMBER_ID
        if group is None or error is not Error.NONE:
            self._context.answer(reply, join_refused(error, request.member_id))
        else:
            self._joiner.join(group, join_of(request, caller, reply))
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
            sync(self._context, self._rebalancer, group, request, reply)
        self._context.actions.run()

    def heartbeat(
        self, request: HeartbeatRequest, _caller: Caller, reply: Reply[HeartbeatResponse]
    ) -> None:
        """Answers at once."""
        error, group = self._find_managed(request.group_id)
        if group is not None:
            error = membership.heartbeat(self._rebalancer, group, request)
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
        results: list[LeavingMemberResult] = []
        if error is Error.NONE:
            results = self._leave(group, request, caller.version)
        if caller.version < MEMBERS_SINCE:
            error = Error.of(results[0].error_code) if results else error
            results = []
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
        self._context.answer(reply, fetches.fetch(request, caller.version, self._registry.find))
        self._context.actions.run()

    def describe_groups(
        self, request: DescribeGroupsRequest, _caller: Caller, reply: Reply[DescribeGroupsResponse]
    ) -> None:
        """Answers once all are described."""
        found: list[DescribedGroup] = []

        def answer() -> None:
            self._context.answer(reply, DescribeGroupsResponse(groups=found))

        steps = describing.describe_groups(request, self._registry.find, found)
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

        steps = describing.list_groups(
            list(self._registry), request.states_filter, request.types_filter, found
        )
        self._context.slices.add(steps, answer)
        self._context.actions.run()

    def delete_groups(
        self, request: DeleteGroupsRequest, _caller: Caller, reply: Reply[DeleteGroupsResponse]
    ) -> None:
        """Answers when the tombstones are in the log."""
        answer = partial(self._context.answer, reply)
        steps = deleting.delete_groups(self._registry, self._maintenance, request, answer)
        self._context.slices.add(steps)
        self._context.actions.run()

    def offset_delete(
        self, request: OffsetDeleteRequest, _caller: Caller, reply: Reply[OffsetDeleteResponse]
    ) -> None:
        """Answers when the tombstones are in the log."""
        answer, is_known = partial(self._context.answer, reply), self._context.is_known
        deleting.delete_offsets(self._registry, self._maintenance, is_known, request, answer)
        self._context.actions.run()

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
        self, group: Group | None, request: LeaveGroupRequest, version: int
    ) -> list[LeavingMemberResult]:
        return [
            LeavingMemberResult(
                member_id=each.member_id,
                group_instance_id=each.group_instance_id,
                error_code=Error.UNKNOWN_MEMBER_ID
                if group is None
                else membership.leave(self._rebalancer, group, each),
            )
            for each in membership.leaving_members(request, version)
        ]

    def _offer_readings(self, metrics: GroupMetrics) -> None:
        registry = self._registry
        metrics.groups = lambda: len(registry)
        metrics.members = lambda: registry.totals().members
        metrics.offsets = lambda: registry.totals().offsets
        metrics.rebalancing_groups = lambda: registry.totals().rebalancing


def _with_protocol_name(reply: JoinReply) -> JoinReply:
    """Old versions cannot encode a null protocol name: send an empty one."""

    def answer(response: JoinGroupResponse) -> None:
        response.protocol_name = response.protocol_name or ""
        reply(response)

    return answer
