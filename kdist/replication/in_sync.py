"""Which replicas of a partition are in sync, as its leader sees it, and up to where all have it.

The controller writes ISRs; the leader proposes them, and an answer may be lost. So until a proposal
is answered, both are reckoned with: the *maximal ISR* has the committed members and the proposed
ones, and a record is committed once all of those have it.

    a member is out of sync     its end is not the leader's, and was not since `lag_ms_max`
    a follower may join         it has fetched in this epoch, has all that is committed and
                                what was there when the epoch began, its log begins no earlier
                                than the leader's, and its broker is alive

A follower that fetched up to the high watermark alone may lack committed records: a new leader's
high watermark is behind the true one (KAFKA-7128). So the epoch's start counts too. What it has
from before the leader's log begins was compared with nothing, and would come back if it led.

A follower that is not in the ISR holds the high watermark back all the same while it keeps up:
otherwise, under constant load, it would never reach it. Source: Apache Kafka's `Partition` and
`Replica`; KIP-497, KAFKA-15583 for the strict minimum.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import NamedTuple

from kdist.model import NO_EPOCH, NO_OFFSET, LeaderAndIsr

NEVER_MS = -(1 << 62)


class FollowerFetch(NamedTuple):
    """What a follower's fetch tells of its replica. `broker_epoch` is -1 before version 15."""

    broker_id: int
    end_offset: int
    start_offset: int
    broker_epoch: int = NO_EPOCH


class RemoteReplica:
    """What the leader knows of another replica, in one leader epoch."""

    __slots__ = (
        "broker_epoch",
        "broker_id",
        "caught_up_ms",
        "end_offset",
        "fetched_ms",
        "last_proposal",
        "leader_end_offset",
        "start_offset",
    )

    def __init__(self, broker_id: int, caught_up_ms: int) -> None:
        self.broker_id = broker_id
        self.end_offset = self.start_offset = NO_OFFSET  # it has not fetched in this epoch
        self.broker_epoch = NO_EPOCH
        self.caught_up_ms = caught_up_ms
        self.fetched_ms = NEVER_MS
        self.leader_end_offset = NO_OFFSET  # at its last fetch
        self.last_proposal = 0  # by which it was to join, by number

    def note(self, fetch: FollowerFetch, leader_end_offset: int, now_ms: int) -> None:
        """Note a fetch. One from what was the end at the fetch before it had caught up then."""
        if fetch.end_offset >= leader_end_offset:
            self.caught_up_ms = now_ms
        elif fetch.end_offset >= self.leader_end_offset:
            self.caught_up_ms = max(self.caught_up_ms, self.fetched_ms)
        _, self.end_offset, self.start_offset, self.broker_epoch = fetch
        self.leader_end_offset = leader_end_offset
        self.fetched_ms = now_ms

    def is_in_sync(self, leader_end_offset: int, now_ms: int, lag_ms_max: int) -> bool:
        return self.end_offset == leader_end_offset or now_ms - self.caught_up_ms <= lag_ms_max


class InSyncReplicas:
    """Owner: the partition, for one leader epoch in which it has more than one replica.

    `proposed` is the ISR that is proposed and not known to be refused, or None.
    """

    __slots__ = (
        "_alive",
        "_counted",
        "_lag_ms_max",
        "_others",
        "_proposals",
        "epoch_start",
        "isr",
        "leader_id",
        "proposed",
        "remotes",
    )

    def __init__(
        self,
        leader_id: int,
        epoch_start: Callable[[], int],
        lag_ms_max: int,
        is_alive: Callable[[int], bool],
    ) -> None:
        """`epoch_start`: where the leader's epoch begins in its log. That is lower once appends of
        an earlier epoch were given up, or what an earlier leader had cut off is gone.
        """
        self.leader_id = leader_id
        self.epoch_start = epoch_start
        self.remotes: dict[int, RemoteReplica] = {}
        self.isr: tuple[int, ...] = ()
        self.proposed: tuple[int, ...] | None = None
        self._lag_ms_max = lag_ms_max
        self._alive = is_alive
        self._proposals = 0
        self._counted: tuple[RemoteReplica, ...] = ()
        self._others: tuple[RemoteReplica, ...] = ()

    def take(self, state: LeaderAndIsr, replicas: Iterable[int], now_ms: int) -> None:
        """Take the committed ISR and the assignment; what was proposed is decided with it.

        Members count as caught up now when they are first seen, others as never.
        """
        before = self.remotes
        self.isr, self.proposed = state.isr, None
        self.remotes = {
            each: before.get(each) or RemoteReplica(each, now_ms if each in state.isr else NEVER_MS)
            for each in dict.fromkeys((*replicas, *state.isr))
            if each != self.leader_id
        }
        self._count()

    @property
    def maximal_isr(self) -> set[int]:
        """The ISR as it is, and as it is proposed."""
        return {*self.isr, *(self.proposed or ())}

    def propose(self, isr: tuple[int, ...]) -> None:
        """Reckon with this ISR as well, from now on."""
        self.proposed = isr
        self._proposals += 1
        for each in isr:
            if each not in self.isr:
                self.remotes[each].last_proposal = self._proposals
        self._count()

    def withdraw(self) -> None:
        """What was proposed is refused for good."""
        self.proposed = None
        self._count()

    def _count(self) -> None:
        maximal = self.maximal_isr
        remotes = self.remotes.values()
        self._counted = tuple(each for each in remotes if each.broker_id in maximal)
        self._others = tuple(each for each in remotes if each.broker_id not in maximal)

    # What the leader's log and the followers' fetches tell

    def leave_behind(self, end_offset: int, now_ms: int) -> None:
        """The leader's log grows beyond `end_offset`: who is there was caught up until now."""
        for remote in self.remotes.values():
            if remote.end_offset == end_offset:
                remote.caught_up_ms = now_ms

    def committed_end(self, leader_end_offset: int, now_ms: int) -> int:
        """The end of what all replicas of the maximal ISR have; -1 if one of them is not known.

        `leader_end_offset` is the end of what the leader itself contributes.
        """
        end = leader_end_offset
        for remote in self._counted:
            if remote.end_offset < end:
                end = remote.end_offset
        for remote in self._others:
            if remote.end_offset < end and self._keeps_up(remote, now_ms):
                end = remote.end_offset
        return end

    def _keeps_up(self, remote: RemoteReplica, now_ms: int) -> bool:
        return (
            now_ms - remote.caught_up_ms <= self._lag_ms_max
            and remote.end_offset >= 0
            and self._alive(remote.broker_id)
        )

    def waits_for(self, broker_id: int, now_ms: int) -> bool:
        """Whether the high watermark waits for a replica: so producers do, and none throttles it.

        Else it would be a stall, of `lag_ms_max` at most: a follower outside the ISR that had
        caught up once would hold back what it is not sent.
        """
        remote = self.remotes.get(broker_id)
        is_counted = broker_id in self.maximal_isr
        return is_counted or (remote is not None and self._keeps_up(remote, now_ms))

    def lag(self, start_offset: int, end_offset: int) -> int | None:
        """How many records, of those that there are, the follower furthest behind lacks.

        Of those that have fetched in this leader epoch: None if there are others, and none has.
        """
        remotes = self.remotes.values()
        ends = [each.end_offset for each in remotes if each.end_offset != NO_OFFSET]
        if not ends:
            return None if remotes else 0
        return max(0, end_offset - max(start_offset, min(ends)))

    def lowest_start(self, leader_start_offset: int) -> int:
        """The lowest log start offset of the replicas alive; -1 if one of them is not known."""
        alive = (each for each in self.remotes.values() if self._alive(each.broker_id))
        return min((leader_start_offset, *(each.start_offset for each in alive)))

    def readable_at(self, offset: int) -> Iterator[RemoteReplica]:
        """The followers from which a consumer may go on at an offset that is committed.

        Those in the ISR alone: another may never catch up, and its readers with it (KAFKA-14372).
        """
        for broker_id in self.isr:
            remote = self.remotes.get(broker_id)
            if (
                remote is not None
                and remote.start_offset <= offset <= remote.end_offset
                and (self.proposed is None or broker_id in self.proposed)
                and self._alive(broker_id)
            ):
                yield remote

    # What follows for the ISR

    def without_laggards(self, leader_end_offset: int, now_ms: int) -> tuple[int, ...] | None:
        """The ISR without members that are out of sync; None if there is nothing to propose."""
        if self.proposed is not None:
            return None
        kept = tuple(
            each
            for each in self.isr
            if each == self.leader_id
            or self.remotes[each].is_in_sync(leader_end_offset, now_ms, self._lag_ms_max)
        )
        return None if kept == self.isr else kept

    def with_follower(
        self, broker_id: int, start_offset: int, high_watermark: int
    ) -> tuple[int, ...] | None:
        """The ISR with a follower that has just fetched, if it may join; None if not.

        `start_offset`: where the leader's log begins.
        """
        if self.proposed is not None or broker_id in self.isr:
            return None
        remote = self.remotes[broker_id]
        has_all = remote.end_offset >= max(high_watermark, self.epoch_start())
        if not has_all or remote.start_offset < start_offset or not self._alive(broker_id):
            return None
        return (*self.isr, broker_id)

    def with_another(
        self, start_offset: int, high_watermark: int, leader_end_offset: int, now_ms: int
    ) -> tuple[int, ...] | None:
        """The ISR with a follower that could not be proposed when it fetched; None: nobody may.

        One at the end of an idle partition has nothing more to tell, so it does not fetch again. Of
        several it is the one that was not proposed for longest, lest one that is refused keep the
        others out.
        """
        for each in sorted(self.remotes.values(), key=lambda remote: remote.last_proposal):
            if each.is_in_sync(leader_end_offset, now_ms, self._lag_ms_max):
                isr = self.with_follower(each.broker_id, start_offset, high_watermark)
                if isr is not None:
                    return isr
        return None

    def broker_epochs(self, isr: Iterable[int], own_epoch: int) -> Mapping[int, int]:
        """The members with their broker epochs, as far as they have told them, for a proposal."""
        return {
            each: own_epoch if each == self.leader_id else self.remotes[each].broker_epoch
            for each in isr
        }
