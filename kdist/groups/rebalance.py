"""How a group gets from one generation to the next.

    prepare         waiting syncs are answered with "rejoin"; from now on joins are parked
    maybe_complete  everyone has joined; or the join timer expires, and absent members are removed
    complete        the next generation: a leader, a protocol, a response to every join
    assign          the leader's assignment is appended to the log with the generation, and only
                    then sent to the members, so that one in use survives the coordinator: STABLE

The join timer is the longest rebalance timeout of the members. An empty group waits
`group.initial.rebalance.delay.ms` instead; a new group repeats that delay as long as members keep
joining (KIP-134), so that a fleet that starts together rebalances once.

A member that sends nothing for its session timeout is removed. One that waits for an answer cannot
heartbeat, so its session does not end in the meantime; the timer restarts with the answer. A new
member is the exception: it does not know its member id yet, so if its client gave up waiting, the
member would stay forever. It is removed after five minutes.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from functools import partial

from kdist.errors import Error
from kdist.groups.context import GENERATION_ERRORS, GroupsContext
from kdist.groups.group import (
    COMPLETING,
    DEAD,
    EMPTY,
    FOLLOWERS,
    PREPARING,
    STABLE,
    UNKNOWN_MEMBER_ID,
    Group,
    JoinReply,
    Member,
    SyncReply,
)
from kdist.groups.records import generation_record
from kdist.protocol.join_group import JoinGroupResponse
from kdist.protocol.sync_group import SyncGroupResponse

# At least this long between checks whether an absent static member is back: a client may ask for
# a rebalance timeout of 0.
ABSENT_WAIT_MS_MIN = 1000
NEW_MEMBER_JOIN_TIMEOUT_MS = 300_000
# Refused members rejoin at once. Without a pause, a librdkafka group whose partition of
# `__consumer_offsets` was on a full disk went through 1,000 generations a second.
NOT_STORED_PAUSE_MS = 1_000

logger = logging.getLogger(__name__)


class Rebalancer:
    """Rebalances groups. Has no state of its own; one for all groups of a coordinator."""

    def __init__(self, context: GroupsContext) -> None:
        self._context = context

    def add(self, group: Group, member: Member, protocol_type: str, reply: JoinReply) -> None:
        """Add a new member; the group rebalances."""
        if group.state is PREPARING and group.generation == 0:
            group.has_newcomers = True
        member.is_new = True
        group.add(member, protocol_type)
        self.park_join(group, member, reply)
        self.restart_session(group, member)
        self.maybe_prepare(group, f"member {member.member_id} is new")

    def restart_session(self, group: Group, member: Member) -> None:
        """The member has sent a request, or has to heartbeat from now on."""
        member.end_session()
        timeout_ms = NEW_MEMBER_JOIN_TIMEOUT_MS if member.is_new else member.session_timeout_ms
        ended = partial(self._session_ended, group, member)
        member.session = self._context.call_later(timeout_ms, ended)

    def expect(self, group: Group, member_id: str, timeout_ms: int) -> None:
        """An id was given out: its client has to join with it within `timeout_ms`."""
        not_joined = partial(self.remove_pending, group, member_id)
        group.pending[member_id] = self._context.call_later(timeout_ms, not_joined)

    def remove(self, group: Group, member: Member, why: str) -> None:
        """Remove a member; the group rebalances."""
        self._expel(group, member.member_id)
        self.maybe_prepare(group, f"member {member.member_id} {why}")
        self.maybe_complete(group)

    def remove_pending(self, group: Group, member_id: str) -> None:
        """Stop waiting for an id that was given out."""
        group.forget_pending(member_id)
        self.maybe_complete(group)

    def park_join(self, group: Group, member: Member, reply: JoinReply) -> None:
        """Keep the member's join to answer later. Its earlier one, if parked, is refused."""
        self.answer_join(
            group, member.member_id, join_refused(Error.REBALANCE_IN_PROGRESS, member.member_id)
        )
        group.joining[member.member_id] = reply

    def park_sync(self, group: Group, member: Member, reply: SyncReply) -> None:
        """Keep the member's sync to answer later. Its earlier one, if parked, is refused."""
        self.answer_sync(group, member.member_id, sync_refused(Error.REBALANCE_IN_PROGRESS))
        group.syncing[member.member_id] = reply

    def answer_join(self, group: Group, member_id: str, response: JoinGroupResponse) -> None:
        """Answer the member's parked join, if there is one."""
        reply = group.joining.pop(member_id, None)
        if reply is not None:
            self._context.answer(reply, response)

    def answer_sync(self, group: Group, member_id: str, response: SyncGroupResponse) -> None:
        """Answer the member's parked sync, if there is one."""
        reply = group.syncing.pop(member_id, None)
        if reply is not None:
            self._context.answer(reply, response)

    def _answer_syncs(
        self, group: Group, response_to: Callable[[Member], SyncGroupResponse]
    ) -> None:
        """Answer every parked sync; those members have to heartbeat again from now on."""
        for member_id in list(group.syncing):
            member = group.members[member_id]
            self.answer_sync(group, member_id, response_to(member))
            self.restart_session(group, member)

    def maybe_prepare(self, group: Group, why: str) -> None:
        """Begin a rebalance, unless one is waiting for joins already."""
        if PREPARING in FOLLOWERS[group.state]:
            self.prepare(group, why)

    def prepare(self, group: Group, why: str) -> None:
        """Begin a rebalance: all members have to rejoin."""
        self._answer_syncs(group, lambda _member: sync_refused(Error.REBALANCE_IN_PROGRESS))
        group.stop_sync_timer()
        was_empty = group.state is EMPTY
        group.become(PREPARING, self._context.clock.now_ms())
        logger.info("group %s: rebalances, as %s", group.group_id, why)
        if was_empty:
            delay_ms = self._context.settings.initial_rebalance_delay_ms
            self._gather(group, delay_ms, max(group.rebalance_timeout_ms - delay_ms, 0))
        else:
            self._await_joins(group)
            self.maybe_complete(group)

    def maybe_complete(self, group: Group) -> None:
        """Begin the next generation if everyone has joined."""
        if group.state is PREPARING and not group.is_gathering and group.has_everyone_joined:
            self._complete(group)

    def assign(self, group: Group, given: Mapping[str, bytes]) -> None:
        """Store the leader's assignment; members that it leaves out get an empty one."""
        assignments = {member_id: given.get(member_id, b"") for member_id in group.members}
        generation = group.generation
        group.is_assigning = True

        def is_over() -> bool:
            """Whether a rebalance began in the meantime, and has answered all syncs."""
            return group.state is not COMPLETING or group.generation != generation

        def stored(error: Error) -> None:
            if is_over():
                return
            if error is not Error.NONE:
                self._context.call_later(NOT_STORED_PAUSE_MS, partial(start_over, error))
                return
            for member in group.members.values():
                member.assignment = assignments[member.member_id]
            group.become(STABLE, self._context.clock.now_ms())
            self._answer_syncs(group, partial(synced, group))
            self._context.metrics.finished_rebalances += 1

        def start_over(error: Error) -> None:
            """The assignment could not be stored: refuse the waiting syncs, and rebalance."""
            if not is_over():
                self._answer_syncs(group, lambda _member: sync_refused(error))
                self.prepare(group, f"its assignment was not stored: {error.name}")

        self.store(group, assignments, stored)

    def close(self, group: Group) -> None:
        """The group is DEAD: refuse what waits in it, so that clients look for it elsewhere."""
        for member_id in list(group.joining):
            refused = join_refused(Error.NOT_COORDINATOR, member_id)
            self.answer_join(group, member_id, refused)
        for member_id in list(group.syncing):
            self.answer_sync(group, member_id, sync_refused(Error.NOT_COORDINATOR))
        group.stop_timers()

    def store(
        self, group: Group, assignments: Mapping[str, bytes], done: Callable[[Error], None]
    ) -> None:
        """Append the group's generation; `done` gets the error that members may be sent."""
        record = generation_record(group, assignments)
        self._context.append(group.group_id, [record], partial(self._stored, group, done))

    def _stored(self, group: Group, done: Callable[[Error], None], error: Error) -> None:
        if error is not Error.NONE:
            self._context.metrics.failed_appends += 1
            logger.warning(
                "group %s: generation %d is not in the log: %s",
                group.group_id,
                group.generation,
                error.name,
            )
        done(GENERATION_ERRORS.get(error, error))

    def _await_joins(self, group: Group, least_ms: int = 0) -> None:
        group.stop_join_timer()
        group.join_timer = self._context.call_later(
            max(group.rebalance_timeout_ms, least_ms), partial(self._complete, group)
        )

    def _gather(self, group: Group, delay_ms: int, left_ms: int) -> None:
        group.stop_join_timer()
        group.is_gathering = True
        group.has_newcomers = False
        group.join_timer = self._context.call_later(
            delay_ms, partial(self._gathered, group, delay_ms, left_ms)
        )

    def _gathered(self, group: Group, delay_ms: int, left_ms: int) -> None:
        if group.state is DEAD:
            return  # unloaded, and its timers are still to be stopped
        if group.has_newcomers and left_ms > 0:
            initial_ms = self._context.settings.initial_rebalance_delay_ms
            self._gather(group, min(initial_ms, left_ms), max(left_ms - delay_ms, 0))
        else:
            self._complete(group)

    def _complete(self, group: Group) -> None:
        """Everyone has joined, or the time is up."""
        if group.state is DEAD:
            return  # as above
        self._drop_absent(group)
        if group.members and not group.elect_leader():
            # Only static members are left, none of which has joined: wait for them to join or for
            # their sessions to expire.
            self._await_joins(group, ABSENT_WAIT_MS_MIN)
            return
        group.stop_join_timer()
        group.begin_generation(self._context.clock.now_ms())
        if group.members:
            self._answer_joins(group)
        else:
            logger.info("group %s: empty at generation %d", group.group_id, group.generation)
            # If this append fails, a restart loads the last generation, whose sessions then expire.
            self.store(group, {}, _ignore)

    def _drop_absent(self, group: Group) -> None:
        """Remove members that did not join in time; static ones stay until their session ends."""
        for member in list(group.members.values()):
            if member.member_id not in group.joining and not member.is_static:
                logger.info("group %s: %s did not join again", group.group_id, member.member_id)
                group.remove(member.member_id)

    def _answer_joins(self, group: Group) -> None:
        logger.info(
            "group %s: generation %d has %d members, %s leads",
            group.group_id,
            group.generation,
            len(group.members),
            group.leader_id,
        )
        for member in group.members.values():
            self.answer_join(group, member.member_id, joined(group, member))
            member.is_new = False
            self.restart_session(group, member)
        group.sync_timer = self._context.call_later(
            group.rebalance_timeout_ms, partial(self._syncs_expired, group)
        )

    def _session_ended(self, group: Group, member: Member) -> None:
        if not member.is_new and group.is_waiting(member.member_id):
            return  # the answer restarts it
        logger.info("group %s: the session of %s expired", group.group_id, member.member_id)
        self._context.metrics.expired_members += 1
        self.remove(group, member, "let its session expire")

    def _expel(self, group: Group, member_id: str) -> None:
        """Remove a member; its parked requests get UNKNOWN_MEMBER_ID, so that it joins anew."""
        self.answer_join(group, member_id, join_refused(Error.UNKNOWN_MEMBER_ID))
        self.answer_sync(group, member_id, sync_refused(Error.UNKNOWN_MEMBER_ID))
        group.remove(member_id)

    def _syncs_expired(self, group: Group) -> None:
        """Remove the members that did not send SyncGroup in time, and rebalance."""
        if group.state is DEAD:
            return  # as above
        late = list(group.unsynced)
        for member_id in late:
            self._expel(group, member_id)
        self.prepare(group, f"{len(late)} members did not sync")


def _ignore(_error: Error) -> None:
    """An empty group has no member to tell the outcome."""


# The responses to joins and syncs (pure)


def join_refused(error: Error, member_id: str = UNKNOWN_MEMBER_ID) -> JoinGroupResponse:
    """An error; with an empty member id the client starts over as a new member."""
    return JoinGroupResponse(
        error_code=error, protocol_name=None, leader="", member_id=member_id, members=[]
    )


def joined(group: Group, member: Member) -> JoinGroupResponse:
    """The group's generation, and its members if this one is the leader."""
    return JoinGroupResponse(
        error_code=Error.NONE,
        generation_id=group.generation,
        protocol_type=group.protocol_type,
        protocol_name=group.protocol_name,
        leader=group.leader_id or "",
        member_id=member.member_id,
        members=group.described_members() if member.member_id == group.leader_id else [],
    )


def sync_refused(error: Error) -> SyncGroupResponse:
    """An error, and no assignment."""
    return SyncGroupResponse(error_code=error, assignment=b"")


def synced(group: Group, member: Member) -> SyncGroupResponse:
    """The member's assignment in the group's generation."""
    return SyncGroupResponse(
        error_code=Error.NONE,
        protocol_type=group.protocol_type,
        protocol_name=group.protocol_name,
        assignment=member.assignment,
    )
