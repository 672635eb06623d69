"""Levels how full disks are, with as few bytes moved as that takes (pure).

Each disk is to be as full as all are together, in shares of its room. A move goes from a disk that
has more than that to one that has less, and is no larger than the smaller of both differences: so
no byte moves that does not have to, and none twice. Done once all are within `TOLERANCE`.

    a move is allowed     if no host gets a second replica of a partition, and the partition is over
                          no fewer racks than before
    which disk is next    the one furthest from its goal, in shares of it
    its partner           the one furthest on the other side, in bytes
    which replica         the largest that is allowed and fits; else the smallest by which both
                          differences together shrink
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Iterable, Mapping

from kdist.ops.reassignment.site import Disk, Placed, may_have, rack_count

TOLERANCE = 0.02  # of what a disk is to have


class Board:
    """Where all replicas are while a plan is made.

    Owner: a plan. `targets`: the disks that may take replicas.
    """

    def __init__(self, disks: Mapping[int, Disk], targets: Iterable[int]) -> None:
        self.disks = disks
        self.targets = {*targets}
        self.placed: list[Placed] = []
        self.bytes = dict.fromkeys(disks, 0)
        self._on: dict[int, list[tuple[int, int]]] = {each: [] for each in disks}

    def add(self, placed: Placed, *, is_fixed: bool = False) -> None:
        """Take a partition as it is; a fixed one counts, and does not move."""
        number = len(self.placed)
        for broker in placed.replicas:
            if broker not in self.disks:
                continue
            self.bytes[broker] += placed.size_bytes
            if not is_fixed:
                insort(self._on[broker], (placed.size_bytes, number))
        if not is_fixed:
            self.placed.append(placed)

    def change(self, number: int, replicas: tuple[int, ...]) -> None:
        """Have a partition on these brokers instead."""
        before, size = self.placed[number], self.placed[number].size_bytes
        self.placed[number] = before._replace(replicas=replicas)
        for gone in {*before.replicas} - {*replicas}:
            if gone in self.disks:
                self.bytes[gone] -= size
                del self._on[gone][bisect_right(self._on[gone], (size, number)) - 1]
        for new in {*replicas} - {*before.replicas}:
            self.bytes[new] += size
            insort(self._on[new], (size, number))

    def replace(self, number: int, old: int, new: int) -> None:
        """Have `new` take the place of `old` among a partition's replicas."""
        replicas = self.placed[number].replicas
        self.change(number, tuple(new if each == old else each for each in replicas))

    def fullness(self, broker: int) -> float:
        """The share of a disk's room that is taken."""
        room = self.disks[broker].room_bytes
        return self.bytes[broker] / room if room else 1.0

    def _goals(self) -> dict[int, float]:
        """What each target is to have, in bytes, for all to be equally full."""
        room = sum(self.disks[each].room_bytes for each in self.targets)
        there = sum(self.bytes[each] for each in self.targets)
        share = there / room if room else 0.0
        return {each: share * self.disks[each].room_bytes for each in self.targets}

    def level(self) -> None:
        """Move replicas until all targets are within the tolerance, or nothing helps any more."""
        goals = self._goals()
        surplus = {each: self.bytes[each] - goal for each, goal in goals.items()}
        stuck: set[int] = set()
        while True:
            off = (each for each in surplus if each not in stuck and goals[each])
            worst = max(off, key=lambda each: (abs(surplus[each]) / goals[each], each), default=-1)
            if worst < 0 or abs(surplus[worst]) <= TOLERANCE * goals[worst]:
                return
            if not self._relieve(worst, surplus):
                stuck.add(worst)

    def _relieve(self, worst: int, surplus: dict[int, float]) -> bool:
        gives = surplus[worst] > 0
        others = [each for each in surplus if (surplus[each] < 0) == gives and surplus[each]]
        others.sort(key=surplus.__getitem__, reverse=not gives)
        for fits in (True, False):
            for other in others:
                giver, taker = (worst, other) if gives else (other, worst)
                number = self._choose(giver, taker, surplus, fits=fits)
                if number is not None:
                    size = self.placed[number].size_bytes
                    self.replace(number, giver, taker)
                    surplus[giver] -= size
                    surplus[taker] += size
                    return True
        return False

    def _choose(
        self, giver: int, taker: int, surplus: Mapping[int, float], *, fits: bool
    ) -> int | None:
        """A replica to move: one that fits both differences, or the next larger ones."""
        there = self._on[giver]
        over, under = surplus[giver], -surplus[taker]
        at = bisect_right(there, (int(min(over, under)), len(self.placed)))
        if fits:
            candidates = reversed(there[:at])
        else:
            most = bisect_right(there, (int(over + under) // 2, len(self.placed)))
            candidates = iter(there[at:most])
        for size, number in candidates:
            if not size:
                break
            replicas = self.placed[number].replicas
            others = [each for each in replicas if each != giver]
            if taker not in replicas and may_have(
                self.disks, others, taker, rack_count(self.disks, replicas)
            ):
                return number
        return None
