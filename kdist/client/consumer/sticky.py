"""Partitions shared out evenly, each kept by who had it as far as that goes (pure).

Evenly means: nobody has two more than another who could take one of them. Where all members want
the same topics, that is a difference of at most one.

    1. each keeps what it had, if it still wants the topic
    2. what is free goes to who has least, the least wanted topics first
    3. while someone has two more than another could have, one partition moves

Step 3 always takes from the fullest and gives to the emptiest, so that no partition moves twice,
and gives away first what step 2 brought. Source: KIP-54.
"""

from __future__ import annotations

from collections.abc import Mapping

from kdist.model import TopicPartition

Owners = Mapping[TopicPartition, str]


def share_evenly(
    counts: Mapping[str, int], topics: Mapping[str, frozenset[str]], owners: Owners
) -> dict[str, list[TopicPartition]]:
    """Each member's partitions, sorted; `topics` are those that each member wants."""
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
        """Step 3: ends, since each move makes the sum of the squares of all loads smaller."""
        while any(self._relieve(member) for member in sorted(self.held, key=self._load)[::-1]):
            pass

    def _relieve(self, member: str) -> bool:
        """Whether a partition of the member was moved to someone who has at least two less."""
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
