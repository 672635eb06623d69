"""One group: its state, members and generation, its offsets, and which members wait for an answer.

Nothing here answers, waits or writes; `rebalance.py` and its neighbours do. The states:

    state                 what it answers                             what it leaves for
    EMPTY                 no members; commits of non-members are      first join: PREPARING
                          accepted
    PREPARING_REBALANCE   joins wait; heartbeats and syncs get        all joined or time up:
                          REBALANCE_IN_PROGRESS; members of the old   COMPLETING, or EMPTY if
                          generation may still commit                 nobody is left
    COMPLETING_REBALANCE  syncs wait for the leader's; heartbeats     the assignment is in the
                          are accepted; commits get                   log: STABLE; a member joins,
                          REBALANCE_IN_PROGRESS                       leaves or changes: PREPARING
    STABLE                a sync gets its assignment at once          a member joins, leaves or
                                                                      changes: PREPARING
    DEAD                  nothing: the group is deleted, or another   never
                          broker coordinates it now

Source: Apache Kafka's group coordinator, 0.9 to 3.9; KIP-62. Invariants:
- `joining` and `syncing` contain members only; a waiting reply is removed when it is answered.
- `syncing` is empty outside COMPLETING. Outside PREPARING, `joining` contains at most static
  members that came back to a stable group and whose new ids are being appended to the log.
- A group with members has a leader, which is one of them, a protocol type, and at least one
  protocol that all members support.
"""

from __future__ import annotations

import dataclasses
import enum
from collections import Counter
from collections.abc import Callable, Container, Iterable, Iterator
from typing import NamedTuple

from kdist.errors import ProtocolError
from kdist.model import NO_EPOCH, NO_OFFSET, NO_TIMESTAMP, TopicPartition
from kdist.protocol.compiler import get_version, get_versioned
from kdist.protocol.consumer_protocol import ConsumerProtocolSubscription
from kdist.protocol.join_group import JoinGroupMember, JoinGroupResponse
from kdist.protocol.sync_group import SyncGroupResponse
from kdist.runtime.tasks import Timer

CONSUMER = "consumer"  # the protocol type of groups whose members read topics
UNKNOWN_MEMBER_ID = ""  # of a client that has no id yet, or commits without being a member

Protocols = tuple[tuple[str, bytes], ...]
"""The assignors a member supports, in order of preference, each with its metadata."""

JoinReply = Callable[[JoinGroupResponse], None]
SyncReply = Callable[[SyncGroupResponse], None]


class GroupState(enum.Enum):
    """A state; the value is its name on the wire."""

    EMPTY = "Empty"
    PREPARING_REBALANCE = "PreparingRebalance"
    COMPLETING_REBALANCE = "CompletingRebalance"
    STABLE = "Stable"
    DEAD = "Dead"


EMPTY, PREPARING, COMPLETING, STABLE, DEAD = GroupState

# A loaded group starts EMPTY or STABLE.
FOLLOWERS: dict[GroupState, frozenset[GroupState]] = {
    EMPTY: frozenset({PREPARING, DEAD}),
    PREPARING: frozenset({COMPLETING, EMPTY, DEAD}),
    COMPLETING: frozenset({STABLE, PREPARING, DEAD}),
    STABLE: frozenset({PREPARING, DEAD}),
    DEAD: frozenset(),
}
_REBALANCING = (PREPARING, COMPLETING)


@dataclasses.dataclass(slots=True, eq=False)
class Member:
    """One member. Owned by its group; `session` is the timer that ends its membership."""

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    protocols: Protocols
    session_timeout_ms: int
    rebalance_timeout_ms: int
    assignment: bytes = b""
    # Its first join is not answered yet: it does not know its member id, and cannot heartbeat.
    is_new: bool = False
    session: Timer | None = None

    @property
    def is_static(self) -> bool:
        """Whether the member keeps its place across a restart (KIP-345)."""
        return self.instance_id is not None

    def metadata(self, protocol: str) -> bytes:
        """The member's metadata for `protocol`, which it must support."""
        return next(metadata for name, metadata in self.protocols if name == protocol)

    def vote(self, candidates: Container[str]) -> str:
        """The candidate that the member prefers; it must support at least one."""
        return next(name for name, _metadata in self.protocols if name in candidates)

    def end_session(self) -> None:
        if self.session is not None:
            self.session.cancel()
            self.session = None


@dataclasses.dataclass(slots=True)
class Totals:
    """What the groups of one partition of `__consumer_offsets` add up to, for `/metrics`.

    Counted as it changes: with 100,000 groups a scrape would take long to count it. A group that is
    removed has no member or offset left.
    """

    members: int = 0
    offsets: int = 0
    rebalancing: int = 0  # groups


class CommittedOffset(NamedTuple):
    """A position: the offset of the next record to read.

    `expire_timestamp_ms` is set where a client of versions 2 to 4 asked for its own retention.
    """

    offset: int
    leader_epoch: int = NO_EPOCH
    metadata: str = ""
    commit_timestamp_ms: int = NO_TIMESTAMP
    expire_timestamp_ms: int = NO_TIMESTAMP


NOTHING_COMMITTED = CommittedOffset(NO_OFFSET)

Commits = dict[TopicPartition, CommittedOffset]


class _Kept(NamedTuple):
    committed: CommittedOffset
    order: int  # the number of its append, counted per group


class GroupOffsets:
    """A group's committed offsets: a position per partition, and the commits still under way.

    A commit counts once its record is in the log: `begin` before the append, then `finish` or
    `fail`. So does a deletion. Several of one partition may be under way; the last in the log wins,
    in whatever order they finish. Transactional commits (KIP-98) will be a second kind under way,
    held until the transaction's marker; they are not implemented yet.
    """

    def __init__(self, totals: Totals | None = None) -> None:
        """`totals` are those of the group's partition."""
        self._totals = totals or Totals()
        self._kept: dict[TopicPartition, _Kept] = {}
        self._under_way: dict[TopicPartition, set[int]] = {}
        self._appends = 0

    def __len__(self) -> int:
        return len(self._kept)

    def __bool__(self) -> bool:
        return bool(self._kept or self._under_way)

    def __iter__(self) -> Iterator[TopicPartition]:
        return iter(self._kept)

    def get(self, partition: TopicPartition) -> CommittedOffset:
        """The position; its offset is -1 where there is none."""
        kept = self._kept.get(partition)
        return NOTHING_COMMITTED if kept is None else kept.committed

    def is_under_way(self, partition: TopicPartition) -> bool:
        """Whether a commit of the partition is not in the log yet."""
        return partition in self._under_way

    def load(self, partition: TopicPartition, committed: CommittedOffset) -> None:
        """Set a position loaded from the log."""
        self._keep(partition, _Kept(committed, 0))

    def begin(self, commits: Iterable[TopicPartition]) -> int:
        """Call before the append of a commit or of tombstones. Returns its number, for `finish`,
        `finish_deletion` or `fail`."""
        self._appends += 1
        for partition in commits:
            self._under_way.setdefault(partition, set()).add(self._appends)
        return self._appends

    def finish(self, number: int, commits: Commits) -> None:
        """The commit is in the log. Partitions forgotten in the meantime stay forgotten."""
        for partition, committed in commits.items():
            if self._end(number, partition):
                kept = self._kept.get(partition)
                if kept is None or kept.order < number:
                    self._keep(partition, _Kept(committed, number))

    def fail(self, number: int, commits: Iterable[TopicPartition]) -> None:
        """It did not get into the log: the earlier positions remain."""
        for partition in commits:
            self._end(number, partition)

    def finish_deletion(self, number: int, partitions: Iterable[TopicPartition]) -> None:
        """The tombstones are in the log: of what was begun before them nothing is left."""
        for partition in partitions:
            kept = self._kept.get(partition)
            if kept is not None and kept.order < number:
                del self._kept[partition]
                self._totals.offsets -= 1
            for each in list(self._under_way.get(partition, ())):
                if each <= number:
                    self._end(each, partition)

    def forget(self, partitions: Iterable[TopicPartition]) -> list[TopicPartition]:
        """Drop positions and commits under way; returns those that need a tombstone."""
        found = self.known(partitions)
        for partition in found:
            self._totals.offsets -= self._kept.pop(partition, None) is not None
            self._under_way.pop(partition, None)
        return found

    def all(self) -> list[TopicPartition]:
        """The partitions that have a position, or a commit under way."""
        return list(self._kept | self._under_way) if self._under_way else list(self._kept)

    def known(self, among: Iterable[TopicPartition]) -> list[TopicPartition]:
        """Those that have a position, or a commit under way."""
        return [each for each in among if each in self._kept or each in self._under_way]

    def find(
        self,
        condition: Callable[[TopicPartition, CommittedOffset], bool],
        among: Iterable[TopicPartition],
    ) -> list[TopicPartition]:
        """Those that have a position and no commit under way, and meet the condition."""
        kept = self._kept
        return [
            each
            for each in among
            if each in kept
            and each not in self._under_way
            and condition(each, kept[each].committed)
        ]

    def _keep(self, partition: TopicPartition, kept: _Kept) -> None:
        self._totals.offsets += partition not in self._kept
        self._kept[partition] = kept

    def _end(self, number: int, partition: TopicPartition) -> bool:
        """Mark the commit as no longer under way; False if it was forgotten before."""
        numbers = self._under_way.get(partition)
        if numbers is None or number not in numbers:
            return False
        numbers.remove(number)
        if not numbers:
            del self._under_way[partition]
        return True


class Home:
    """A partition of `__consumer_offsets` as its groups know it: who is there, and their totals."""

    def __init__(self) -> None:
        self.groups: dict[str, Group] = {}
        self.totals = Totals()
        self.is_left = False  # this broker no longer leads it


class Group:
    """Owner: the coordinator of its partition, on the event loop's thread."""

    def __init__(self, group_id: str, now_ms: int, home: Home | None = None) -> None:
        self.home = home or Home()
        self.group_id = group_id
        self.state = EMPTY
        self.state_since_ms = now_ms  # -1: loaded from a record that does not say
        self.generation = 0
        self.protocol_type: str | None = None  # None: only offsets were ever committed
        self.protocol_name: str | None = None
        self.leader_id: str | None = None
        self.members: dict[str, Member] = {}  # in the order they joined
        self.static_ids: dict[str, str] = {}  # instance id to member id
        self.pending: dict[str, Timer] = {}  # ids given out (KIP-394) that have not joined yet
        self.joining: dict[str, JoinReply] = {}
        self.syncing: dict[str, SyncReply] = {}
        # Members that have not yet sent SyncGroup, in the order in which they joined.
        self.unsynced: dict[str, None] = {}
        self.is_assigning = False  # the leader's assignment is being appended to the log
        self.subscribed_topics: frozenset[str] | None = None  # None: not known
        self.is_gathering = False  # the initial rebalance delay of an empty group is running
        self.has_newcomers = False  # a member joined since that delay last started
        self.join_timer: Timer | None = None
        self.sync_timer: Timer | None = None
        self.offsets = GroupOffsets(self.home.totals)
        self._support: Counter[str] = Counter()  # how many members support each protocol

    @property
    def is_consumers(self) -> bool:
        """Whether it is a consumer group, whose members' metadata lists the topics they read."""
        return self.protocol_type == CONSUMER

    @property
    def is_unused(self) -> bool:
        """Whether it has no member, pending id or offset, so that it can be dropped."""
        return self.state is EMPTY and not self.pending and not self.offsets

    def become(self, state: GroupState, now_ms: int) -> None:
        assert state in FOLLOWERS[self.state], f"{self.group_id}: {self.state} to {state}"
        self.home.totals.rebalancing += (state in _REBALANCING) - (self.state in _REBALANCING)
        self.state = state
        self.state_since_ms = now_ms

    def add(self, member: Member, protocol_type: str) -> None:
        """Add a member, whose type and protocols `supports` accepts."""
        if not self.members:
            self.protocol_type = protocol_type
        if member.instance_id is not None:
            assert member.instance_id not in self.static_ids
            self.static_ids[member.instance_id] = member.member_id
        if self.leader_id is None:
            self.leader_id = member.member_id
        self.members[member.member_id] = member
        self.home.totals.members += 1
        self._support.update(name for name, _metadata in member.protocols)
        self.forget_pending(member.member_id)

    def remove(self, member_id: str) -> Member:
        """Remove a member. Its waiting join or sync, if any, is for the caller to answer."""
        member = self.members.pop(member_id)
        self.home.totals.members -= 1
        member.end_session()
        self._support.subtract(name for name, _metadata in member.protocols)
        if member.instance_id is not None:
            del self.static_ids[member.instance_id]
        if self.leader_id == member_id:
            self.leader_id = next(iter(self.members), None)
        return member

    def forget_pending(self, member_id: str) -> None:
        """An id that was given out has joined, or is no longer waited for."""
        timer = self.pending.pop(member_id, None)
        if timer is not None:
            timer.cancel()

    def rename(self, member: Member, member_id: str) -> None:
        """Give a static member that came back its new id; nothing else changes."""
        old_id, member.member_id = member.member_id, member_id
        assert member.instance_id is not None
        self.static_ids[member.instance_id] = member_id
        self.members = {each.member_id: each for each in self.members.values()}  # keeps its place
        if self.leader_id == old_id:
            self.leader_id = member_id
        if old_id in self.unsynced:
            del self.unsynced[old_id]
            self.unsynced[member_id] = None

    def set_protocols(self, member: Member, protocols: Protocols) -> None:
        self._support.subtract(name for name, _metadata in member.protocols)
        member.protocols = protocols
        self._support.update(name for name, _metadata in protocols)

    def supports(self, protocol_type: str, protocols: Protocols) -> bool:
        """Whether all members would still share a protocol if one with these joined."""
        if self.state is EMPTY:
            return bool(protocol_type and protocols)
        count = len(self.members)
        return self.protocol_type == protocol_type and any(
            self._support[name] == count for name, _metadata in protocols
        )

    def choose_protocol(self) -> str:
        """The protocol with most votes of those that all members support (pure)."""
        count = len(self.members)
        candidates = {name for name, supporters in self._support.items() if supporters == count}
        votes = Counter(member.vote(candidates) for member in self.members.values())
        return votes.most_common(1)[0][0]

    @property
    def rebalance_timeout_ms(self) -> int:
        """The longest rebalance timeout of the members; 0 without members."""
        return max((each.rebalance_timeout_ms for each in self.members.values()), default=0)

    @property
    def has_everyone_joined(self) -> bool:
        """Whether all members have joined, and all clients that were given an id."""
        return len(self.joining) == len(self.members) and not self.pending

    def is_waiting(self, member_id: str) -> bool:
        """Whether the member waits for an answer, and so cannot be expected to heartbeat."""
        return member_id in self.joining or member_id in self.syncing

    def elect_leader(self) -> bool:
        """Keep the leader if it has joined, else choose a member that has; False if none has."""
        if self.leader_id not in self.joining:
            joined = next((each for each in self.members if each in self.joining), None)
            if joined is None:
                return False
            self.leader_id = joined
        return True

    def begin_generation(self, now_ms: int) -> None:
        """Begin the next generation with the current members; without any, the group is EMPTY."""
        self.generation += 1
        self.protocol_name = self.choose_protocol() if self.members else None
        self.subscribed_topics = self.read_subscribed_topics()
        self.is_assigning = False
        self.unsynced = dict.fromkeys(self.members)
        self._support += Counter()  # drops protocols that no member supports any more
        self.become(COMPLETING if self.members else EMPTY, now_ms)

    def read_subscribed_topics(self) -> frozenset[str] | None:
        """The topics that members subscribe to; None if their metadata cannot be parsed.

        It is read as version 0, which is a prefix of all later versions.
        """
        if not self.is_consumers or (self.members and self.protocol_name is None):
            return None
        topics: set[str] = set()
        for member in self.members.values():
            metadata = member.metadata(self.protocol_name or "")
            try:
                get_version(metadata)
                topics.update(get_versioned(ConsumerProtocolSubscription, metadata, 0).topics)
            except ProtocolError:
                return None  # a client may use a format of its own
        return frozenset(topics)

    def described_members(self) -> list[JoinGroupMember]:
        """What the leader is told: every member, with its metadata for the chosen protocol."""
        assert self.state in (COMPLETING, STABLE)
        assert self.protocol_name is not None
        return [
            JoinGroupMember(
                member_id=each.member_id,
                group_instance_id=each.instance_id,
                metadata=each.metadata(self.protocol_name),
            )
            for each in self.members.values()
        ]

    def stop_timers(self) -> None:
        """Stop all timers of the group and its members."""
        for member in self.members.values():
            member.end_session()
        for member_id in list(self.pending):
            self.forget_pending(member_id)
        self.stop_join_timer()
        self.stop_sync_timer()

    def stop_join_timer(self) -> None:
        self.is_gathering = False
        if self.join_timer is not None:
            self.join_timer.cancel()
            self.join_timer = None

    def stop_sync_timer(self) -> None:
        self.unsynced.clear()
        if self.sync_timer is not None:
            self.sync_timer.cancel()
            self.sync_timer = None
