"""Session timers: a member that sends nothing for its session timeout is removed.

A member that waits for an answer cannot heartbeat, so its session does not end in the meantime; the
timer restarts with the answer. A new member is the exception: it does not know its member id yet,
so if its client gave up waiting, the member would stay forever. It is removed after five minutes.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial

from kdist.groups.context import GroupsContext
from kdist.groups.group import Group
from kdist.groups.member import Member

NEW_MEMBER_JOIN_TIMEOUT_MS = 300_000

logger = logging.getLogger(__name__)

Remove = Callable[[Group, Member, str], None]
RemovePending = Callable[[Group, str], None]


class Sessions:
    """Starts the timers, which call `remove` or `remove_pending` when they expire."""

    def __init__(
        self, context: GroupsContext, remove: Remove, remove_pending: RemovePending
    ) -> None:
        self._context = context
        self._remove = remove
        self._remove_pending = remove_pending

    def restart(self, group: Group, member: Member) -> None:
        """The member has sent a request, or has to heartbeat from now on."""
        member.end_session()
        timeout_ms = NEW_MEMBER_JOIN_TIMEOUT_MS if member.is_new else member.session_timeout_ms
        member.session = self._context.call_later(timeout_ms, partial(self._end, group, member))

    def expect(self, group: Group, member_id: str, timeout_ms: int) -> None:
        """An id was given out: its client has to join with it within `timeout_ms`."""
        group.pending[member_id] = self._context.call_later(
            timeout_ms, partial(self._remove_pending, group, member_id)
        )

    def _end(self, group: Group, member: Member) -> None:
        if not member.is_new and group.is_waiting(member.member_id):
            return  # the answer restarts it
        logger.info("group %s: the session of %s expired", group.group_id, member.member_id)
        self._context.metrics.expired_members += 1
        self._remove(group, member, "let its session expire")
