"""Sticky assignment: even, with each partition kept by its last owner where possible (pure).

Even means: no member has two partitions more than another that could take one of them. If all
members subscribe to the same topics, their counts differ by at most one.

    1. each member keeps what it had, if it still subscribes to the topic
    2. unowned partitions go to the member with the fewest, topics with the fewest takers first
    3. while a member has two more than another that could take one, one partition moves

Step 3 always moves from the fullest member to the emptiest, so that no partition moves twice, and
first moves partitions that step 2 assigned. Source: KIP-54.
"""

from __future__ import annotations

from collections.abc import Mapping

from kdist.model import TopicPartition

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
    """One run of the three steps."""

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
