"""What a group's members are promised while partitions are assigned to them.

Within one assignment each record is given once, in order, and none is left out; nor is any between
two: who comes next goes on no further than others were given. A member of an earlier generation
commits nothing once the next has been told to all (S21), and what was committed last is what is
told in the end.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

from kdist.client.committed import Offsets
from kdist.client.consumer.commits import Commits
from kdist.client.consumer.membership import Membership
from kdist.client.consumer.rebalancing import RebalanceListener
from kdist.errors import ApiError, Error
from kdist.model import TopicPartition
from tests.simulator.bug import Bug, patched
from tests.simulator.record import Violation
from tests.simulator.shape import TOPIC

if TYPE_CHECKING:
    from tests.simulator.history import History

GROUP = "readers"
DOUBT_S = 30.0
"""For so long a commit without an answer may yet be carried out."""


Errors = Mapping[TopicPartition, Error]

_REFUSED = (Error.UNKNOWN_MEMBER_ID, Error.ILLEGAL_GENERATION, Error.REBALANCE_IN_PROGRESS)


class Places(RebalanceListener):
    """Up to where one consumer was given each partition that it has now."""

    def __init__(self, assignments: Assignments, name: str, *, is_member: bool) -> None:
        self._assignments = assignments
        self._is_member = is_member
        self._name = name
        self._ends: dict[TopicPartition, tuple[int, float]] = {}  # and when it was given that

    def on_assigned(self, partitions: Iterable[TopicPartition]) -> None:
        for each in partitions:
            self._ends.pop(each, None)

    on_revoked = on_assigned

    def take(self, key: TopicPartition, offset: int) -> None:
        """A record is given."""
        history = self._assignments.history
        now_s = history.trace.now_s
        end, given_s = self._ends.get(key, (None, now_s))
        before = self._assignments.ends.get(key, 0) if self._is_member else 0
        self._ends[key] = offset + 1, now_s
        if self._is_member:
            self._assignments.ends[key] = max(before, offset + 1)
        # What it was given before a loss is no measure, however long that has been over.
        since_s, committed = min(now_s - DOUBT_S, given_s), history.copies.of(key)
        if key.topic != TOPIC or not committed.is_sure(since_s):
            return
        given = f"S17: {self._name} is given {offset} of {key}"
        if end is not None and offset < end:
            self._assignments.fail(f"{given} again, after {end}", key)
        expected = before if end is None else end
        if offset > expected and offset > history.copies.last_start(key):
            self._assignments.fail(f"{given}, where {expected} follows", key)


class SentCommit:
    """One partition's offset in a commit; `is_acked` is None while that is unknown."""

    def __init__(self, offset: int, sent_s: float) -> None:
        self.offset = offset
        self.sent_s = sent_s
        self.done_s = sent_s + DOUBT_S
        self.is_acked: bool | None = None


class Assignments:
    """Of the group. Owner: the history."""

    def __init__(self, history: History) -> None:
        self.history = history
        self.ends: dict[TopicPartition, int] = {}  # how far any member was given records
        self._generation = -1  # the newest that a member was told
        self.member: Membership | None = None  # who was told it last
        self._commits: dict[TopicPartition, list[SentCommit]] = {}

    def fail(self, sentence: str, key: TopicPartition | None = None) -> None:
        self.history.cluster.loop.end_run(Violation(sentence, key))

    @contextmanager
    def witnessed(self) -> Iterator[None]:
        """Within the block its members' joins and commits are seen."""
        join = Bug(Membership, "_join_once", partial(_join_once, self))
        with patched(join, Bug(Commits, "_commit_once", partial(_commit_once, self))):
            yield

    def is_of(self, group_id: str) -> bool:
        return group_id == GROUP

    def joined(self, generation: int) -> None:
        self._generation = generation  # lower: nothing was left of the group meanwhile

    def sending(self, generation: int, offsets: Offsets) -> Callable[[Errors], None]:
        """A commit is about to be sent; what to call with the errors of the partitions."""
        now_s, newest = self.history.trace.now_s, self._generation
        sent = {key: SentCommit(each.offset, now_s) for key, each in offsets.items()}
        for key, each in sent.items():
            self._commits.setdefault(key, []).append(each)

        def done(errors: Errors) -> None:
            for key, each in sent.items():
                if key not in errors or errors[key] in _REFUSED:
                    each.is_acked, each.done_s = key not in errors, self.history.trace.now_s
            self.history.count(
                "member committed" if errors.keys() < sent.keys() else "commit refused"
            )
            is_late = -1 < generation < newest and generation < self._generation
            if is_late and errors.keys() < sent.keys() and not self._may_be_lost():
                told = f"S21: generation {generation} has committed {offsets}"
                self.fail(f"{told} after generation {newest} had begun")

        return done

    def _may_be_lost(self) -> bool:
        return self.history.may_offsets_be_lost(GROUP, 0.0)

    def fault(self, key: TopicPartition, found: int | None) -> str:
        """What is wrong with a committed offset, once nobody commits any more; "" if nothing."""
        commits = self._commits.get(key, [])
        if self._may_be_lost():
            return ""
        acked_s = max((each.sent_s for each in commits if each.is_acked), default=None)
        possible: set[int | None] = {None} if acked_s is None else set()
        for each in commits:
            if each.is_acked is not False and each.done_s >= (acked_s or 0.0):
                possible.add(each.offset)
        return "" if found in possible else f"{found} is committed, and was one of {possible}"


def _join_once(seen: Assignments, join: Callable[..., Awaitable[Any]]) -> Any:
    async def join_seen(self: Membership) -> Any:
        assigned = await join(self)
        if seen.is_of(self._group_id):
            seen.joined(self.generation)
            seen.member = self
        return assigned

    return join_seen


def _commit_once(seen: Assignments, commit: Callable[..., Awaitable[Errors]]) -> Any:
    async def commit_seen(self: Commits, offsets: Offsets) -> Errors:
        if not seen.is_of(self._group_id):
            return await commit(self, offsets)
        done = seen.sending(self._membership.generation, offsets)
        try:
            refused = await commit(self, offsets)
        except Exception as error:
            if isinstance(error, ApiError) and error.error in _REFUSED:
                done(dict.fromkeys(offsets, error.error))
                seen.history.count("commit fenced")
            raise
        done(refused)
        return refused

    return commit_seen
