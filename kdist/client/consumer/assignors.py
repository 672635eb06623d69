"""Partition assignors: which member reads which partition, as in Java's consumers (pure).

    name                 assigns                                        rebalance
    range                each topic in runs, the first members more     eager
    roundrobin           all partitions in turn                         eager
    sticky               evenly, each keeps what it can (`_Sharing`)    eager
    cooperative-sticky   the same; owners first give up what moves      cooperative (KIP-429)

A group's leader assigns for members of any client, so names and bytes are Java's: the subscription
of `protocol.consumer_protocol`, and in it the user data of `sticky`. Eager members give up all
their partitions before they join; cooperative ones keep them, and give up only what moves.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import cycle
from typing import NamedTuple

from kdist.model import TopicPartition

NO_GENERATION = -1


class Member(NamedTuple):
    """A member as its subscription describes it; `owned` is as of `generation`."""

    id: str
    topics: frozenset[str]
    instance_id: str | None = None
    owned: tuple[TopicPartition, ...] = ()
    generation: int = NO_GENERATION

    @property
    def rank(self) -> tuple[bool, str]:
        """The sort key of members: static ones first, by instance id, which restarts keep."""
        return (self.instance_id is None, self.instance_id or self.id)


Assignment = dict[str, list[TopicPartition]]
"""Each member's partitions, by member id; every member is in it."""

Assign = Callable[[Mapping[str, int], Sequence[Member]], Assignment]


class Assignor(NamedTuple):
    """An assignor; `assign` takes the number of partitions by topic, and the members."""

    name: str
    assign: Assign
    is_cooperative: bool = False
    keeps_owned_in_user_data: bool = False  # because eager members own nothing when they join


def assign_ranges(counts: Mapping[str, int], members: Sequence[Member]) -> Assignment:
    """Topic by topic, give each member a run of partitions; the first members get one more.

    >>> a, b = Member("a", frozenset({"t"})), Member("b", frozenset({"t"}))
    >>> found = assign_ranges({"t": 3}, [a, b])
    >>> {name: [str(each) for each in given] for name, given in found.items()}
    {'a': ['t-0', 't-1'], 'b': ['t-2']}
    """
    found: Assignment = {member.id: [] for member in members}
    for topic in sorted(counts):
        takers = sorted((m for m in members if topic in m.topics), key=lambda m: m.rank)
        start = 0
        for index, member in enumerate(takers):
            each, more = divmod(counts[topic], len(takers))
            end = start + each + (index < more)
            found[member.id] += [TopicPartition(topic, number) for number in range(start, end)]
            start = end
    return found


def assign_in_turn(counts: Mapping[str, int], members: Sequence[Member]) -> Assignment:
    """Deal all partitions of all topics to the members in turn, among those that subscribe."""
    found: Assignment = {member.id: [] for member in members}
    turns = cycle(sorted(members, key=lambda m: m.rank))
    for topic in sorted(counts):
        if not any(topic in member.topics for member in members):
            continue
        for number in range(counts[topic]):
            taker = next(member for member in turns if topic in member.topics)
            found[taker.id].append(TopicPartition(topic, number))
    return found


def assign_sticky(counts: Mapping[str, int], members: Sequence[Member]) -> Assignment:
    """Assign evenly, moving as few partitions as possible from their last owners."""
    topics = {member.id: member.topics for member in sorted(members, key=lambda m: m.rank)}
    return share_evenly(counts, topics, _last_owners(members))


def assign_cooperatively(counts: Mapping[str, int], members: Sequence[Member]) -> Assignment:
    """As `assign_sticky`, but a partition that another member still owns is left unassigned.

    Its owner sees that it is missing, gives it up and joins again; then it is free to move.
    """
    found = assign_sticky(counts, members)
    owners: dict[TopicPartition, set[str]] = {}
    for member in members:
        for partition in member.owned:
            owners.setdefault(partition, set()).add(member.id)
    return {
        taker: [each for each in partitions if owners.get(each, {taker}) <= {taker}]
        for taker, partitions in found.items()
    }


def _last_owners(members: Iterable[Member]) -> dict[TopicPartition, str]:
    """Each partition's owner in its latest generation; none where two members claim it."""
    claims: dict[TopicPartition, tuple[int, str | None]] = {}
    for member in members:
        for partition in member.owned:
            generation, owner = claims.get(partition, (NO_GENERATION - 1, None))
            if member.generation > generation:
                claims[partition] = (member.generation, member.id)
            elif member.generation == generation and owner != member.id:
                claims[partition] = (generation, None)
    return {each: owner for each, (_, owner) in claims.items() if owner is not None}


Owners = Mapping[TopicPartition, str]


def share_evenly(
    counts: Mapping[str, int], topics: Mapping[str, frozenset[str]], owners: Owners
) -> dict[str, list[TopicPartition]]:
    """Each member's partitions, sorted; `topics` are those that each member subscribes to."""
    sharing = _Sharing(counts, topics, owners)
    sharing.keep()
    sharing.give_out()
    sharing.level()
    return {member: sorted(held) for member, held in sharing.held.items()}


class _Sharing:
    """Sticky assignment: even, with each partition kept by its last owner where possible.

    Even means: no member has two partitions more than another that could take one of them. If all
    members subscribe to the same topics, their counts differ by at most one.

        1. each member keeps what it had, if it still subscribes to the topic
        2. unowned partitions go to the member with the fewest, topics with the fewest takers first
        3. while a member has two more than another that could take one, one partition moves

    Step 3 always moves from the fullest member to the emptiest, so that no partition moves twice,
    and first moves partitions that step 2 assigned. Source: KIP-54.
    """

    def __init__(
        self, counts: Mapping[str, int], topics: Mapping[str, frozenset[str]], owners: Owners
    ) -> None:
        self.held: dict[str, list[TopicPartition]] = {member: [] for member in topics}
        self._owners = owners
        self._counts = counts
        self._takers = {
            topic: [member for member, wanted in topics.items() if topic in wanted]
            for topic in counts
        }
        self._free: list[TopicPartition] = []

    def keep(self) -> None:
        """Step 1."""
        for topic in sorted(self._counts, key=lambda each: (len(self._takers[each]), each)):
            for number in range(self._counts[topic]):
                partition = TopicPartition(topic, number)
                owner = self._owners.get(partition)
                if owner in self._takers[topic]:
                    self.held[owner].append(partition)
                elif self._takers[topic]:
                    self._free.append(partition)

    def give_out(self) -> None:
        """Step 2."""
        for partition in self._free:
            self.held[self._emptiest(partition.topic)].append(partition)

    def level(self) -> None:
        """Step 3. It terminates, as each move reduces the sum of the squares of all loads."""
        while any(self._relieve(member) for member in sorted(self.held, key=self._load)[::-1]):
            pass

    def _relieve(self, member: str) -> bool:
        """Move one partition to a member with at least two fewer; False if there is none."""
        held = self.held[member]
        targets = {topic: self._emptiest(topic) for topic in {each.topic for each in held}}
        movable = {
            topic: target
            for topic, target in targets.items()
            if len(self.held[target]) + 1 < len(held)
        }
        if not movable:
            return False
        least = min(movable.values(), key=self._load)
        candidates = [each for each in held if movable.get(each.topic) == least]
        moved = next((p for p in candidates if self._owners.get(p) != member), candidates[-1])
        held.remove(moved)
        self.held[least].append(moved)
        return True

    def _emptiest(self, topic: str) -> str:
        return min(self._takers[topic], key=self._load)

    def _load(self, member: str) -> int:
        return len(self.held[member])


ASSIGNORS = {
    assignor.name: assignor
    for assignor in (
        Assignor("range", assign_ranges),
        Assignor("roundrobin", assign_in_turn),
        Assignor("sticky", assign_sticky, keeps_owned_in_user_data=True),
        Assignor("cooperative-sticky", assign_cooperatively, is_cooperative=True),
    )
}
