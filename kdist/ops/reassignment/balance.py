"""Levels how full disks are, with few bytes moved, and what brokers lead, with none (pure).

Each disk is to be as full as all are together, in shares of its room. A move goes from a disk that
has more than that to one that has less, and is no larger than the smaller of both differences: so
no byte moves that does not have to, and none twice. Done once all are within `TOLERANCE`.

Replicas may be bound to their rack or host, which then stays too full, or too empty, as a whole.
So disks that are left off their goal are made even among those that they can give to or take from.

    a move is allowed     if no host gets a second replica of a partition, the partition is over no
                          fewer racks than before, and all its brokers are alive
    which disk is next    the one furthest from its goal, in shares of it
    its partner           the one furthest on the other side, in bytes
    which replica         the largest that is allowed and fits; else the smallest by which both
                          differences together shrink

Leading costs a broker something for each partition, and for each byte that is written to it. So two
loads are leveled at once, partitions led and their bytes per second in shares of the mean, by the
order of replicas alone.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable, Mapping, Sequence
from functools import reduce
from operator import or_

from kdist.ops.reassignment.site import Disk, Placed, rack_count

TOLERANCE = 0.02  # of what a disk is to have
_LEAST_GAIN = 1e-3  # so that rounding cannot make it go round for ever


class Board:
    """Where all replicas are while a plan is made.

    Owner: a plan. `targets`: the disks that may take replicas. Sets of brokers are integers with a
    bit for each: which broker may have which replica is asked millions of times.
    """

    def __init__(self, disks: Mapping[int, Disk], targets: Iterable[int]) -> None:
        self.disks = disks
        self.targets = {*targets}
        self.placed: list[Placed] = []
        self.bytes = dict.fromkeys(disks, 0)
        self._on: dict[int, list[tuple[int, int]]] = {each: [] for each in disks}
        self._bits = {each: 1 << at for at, each in enumerate(disks)}
        self._on_host: dict[str, int] = {}
        self._in_rack: dict[str | None, int] = {}
        for each, disk in disks.items():
            self._on_host[disk.host] = self._on_host.get(disk.host, 0) | self._bits[each]
            self._in_rack[disk.rack] = self._in_rack.get(disk.rack, 0) | self._bits[each]
        self._successors: dict[tuple[int, int], int] = {}  # by partition and broker, as asked for
        self._reach: dict[int, int] = {}  # by broker: those of any replica it has, or had
        self._emptiest_first: list[tuple[float, int]] = []

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
        for each in {*before.replicas, *replicas}:
            self._successors.pop((number, each), None)
        for gone in {*before.replicas} - {*replicas}:
            if gone in self.disks:
                self._add_bytes(gone, -size)
                del self._on[gone][bisect_right(self._on[gone], (size, number)) - 1]
        for new in {*replicas} - {*before.replicas}:
            self._add_bytes(new, size)
            insort(self._on[new], (size, number))
        for each in replicas:
            if each in self._reach:
                self._reach[each] |= self._may_follow(number, each)

    def _add_bytes(self, broker: int, size: int) -> None:
        order = self._emptiest_first
        if order and broker in self.targets:
            del order[bisect_left(order, (self.fullness(broker), broker))]
        self.bytes[broker] += size
        if order and broker in self.targets:
            insort(order, (self.fullness(broker), broker))

    def emptiest(self, others: Iterable[int], racks_wanted: int) -> int | None:
        """The emptiest target that may have a replica beside these others, if any does."""
        if not self._emptiest_first:
            self._emptiest_first = sorted((self.fullness(each), each) for each in self.targets)
        able = self._able(others, racks_wanted)
        return next((each for _, each in self._emptiest_first if able & self._bits[each]), None)

    def _able(self, others: Iterable[int], racks_wanted: int) -> int:
        """The brokers that may have a replica beside others: hosts differ, racks as wanted."""
        disks = [self.disks[each] for each in others if each in self.disks]
        racks = {each.rack for each in disks}
        if len(racks) + 1 < racks_wanted:
            return 0
        taken = reduce(or_, (self._on_host[each.host] for each in disks), 0)
        if len(racks) < racks_wanted:
            taken = reduce(or_, (self._in_rack[each] for each in racks), taken)
        return ~taken

    def _may_follow(self, number: int, broker: int) -> int:
        """The brokers that may have this broker's replica of a partition in its stead."""
        found = self._successors.get((number, broker))
        if found is None:
            replicas = self.placed[number].replicas
            others = [each for each in replicas if each != broker]
            found = 0  # beside a replica that is nobody knows where: on this host perhaps
            if self.disks.keys() >= {*others}:
                found = self._able(others, rack_count(self.disks, replicas))
            self._successors[number, broker] = found
        return found

    def _reaches(self, broker: int) -> int:
        """No other brokers than these may have one of this broker's replicas in its stead."""
        found = self._reach.get(broker)
        if found is None:
            of_each = (self._may_follow(number, broker) for size, number in self._on[broker])
            found = self._reach[broker] = reduce(or_, of_each, 0)
        return found

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
        return {each: share * self.disks[each].room_bytes for each in sorted(self.targets)}

    def level(self) -> None:
        """Move replicas until all targets are within the tolerance, or nothing helps any more."""
        goals = self._goals()
        surplus = {each: self.bytes[each] - goal for each, goal in goals.items()}
        for step in (self._relieve, self._even_out):
            off = {each: abs(surplus[each]) / goal for each, goal in goals.items() if goal}
            while off:
                worst = max(off, key=off.__getitem__)
                if off[worst] <= TOLERANCE:
                    break
                changed = step(worst, surplus)
                if not changed:
                    del off[worst]  # for good, so that this ends soon
                for each in changed:
                    if each in off:
                        off[each] = abs(surplus[each]) / goals[each]

    def _relieve(self, worst: int, surplus: dict[int, float]) -> tuple[int, ...]:
        """Move a replica off this disk, or to it; from where and to where, if any can be."""
        gives = surplus[worst] > 0
        others = self._partners(worst, surplus, gives=gives)
        for fits in (True, False):
            for other in others:
                giver, taker = (worst, other) if gives else (other, worst)
                number = self._choose(giver, taker, surplus, fits=fits)
                if number is not None:
                    return self._shift(number, giver, taker, surplus)
        return ()

    def _shift(
        self, number: int, giver: int, taker: int, surplus: dict[int, float]
    ) -> tuple[int, int]:
        size = self.placed[number].size_bytes
        self.replace(number, giver, taker)
        surplus[giver] -= size
        surplus[taker] += size
        return giver, taker

    def _partners(self, worst: int, surplus: Mapping[int, float], *, gives: bool) -> list[int]:
        """Who may take from this disk, or may give to it: the furthest off first."""
        if gives:
            takers = self._able_partners(worst, (e for e in surplus if surplus[e] < 0), gives=True)
            return sorted(takers, key=surplus.__getitem__)
        givers = self._able_partners(worst, (e for e in surplus if surplus[e] > 0), gives=False)
        return sorted(givers, key=surplus.__getitem__, reverse=True)

    def _able_partners(self, disk: int, others: Iterable[int], *, gives: bool) -> list[int]:
        """Those of others to which this disk has a replica to give, or who have one for it."""
        if gives:
            reach = self._reaches(disk)
            return [each for each in others if reach & self._bits[each]]
        bit = self._bits[disk]
        return [each for each in others if self._reaches(each) & bit]

    def _even_out(self, worst: int, surplus: dict[int, float]) -> tuple[int, ...]:
        """Move a replica between this disk and one that is emptier, or fuller, than it need be."""
        gives, full = surplus[worst] > 0, self.fullness(worst)
        gap = 2 * TOLERANCE * full
        sign = 1 if gives else -1
        others = (e for e in surplus if sign * (full - self.fullness(e)) > gap)
        for other in sorted(
            self._able_partners(worst, others, gives=gives),
            key=lambda each: sign * self.fullness(each),
        ):
            giver, taker = (worst, other) if gives else (other, worst)
            rooms = {each: self.disks[each].room_bytes for each in (giver, taker)}
            if not all(rooms.values()):
                continue
            middle = (self.bytes[giver] + self.bytes[taker]) / sum(rooms.values())
            between = {each: self.bytes[each] - middle * room for each, room in rooms.items()}
            number = self._choose(giver, taker, between, fits=True)
            if number is not None:
                return self._shift(number, giver, taker, surplus)
        return ()

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
        bit = self._bits[taker]
        for size, number in candidates:
            if not size:
                break
            if self._may_follow(number, giver) & bit:
                return number
        return None


def spread_leaders(
    partitions: Sequence[Placed], fixed: Iterable[Placed], brokers: Iterable[int]
) -> list[Placed]:
    """The same replicas, with other preferred leaders among `brokers`.

    Partitions change their leader for as long as that lessens the sum of the squares of all loads.
    Those of `fixed` only count, and so do those whose leader is none of `brokers`.
    """
    mean = sum(each.bytes_per_second for each in partitions) / max(len(partitions), 1)
    loads = _Loads(brokers, mean)
    leaders = [each.replicas[0] for each in partitions]
    for each, leader in zip(partitions, leaders, strict=True):
        loads.add(leader, each, 1)
    for each in fixed:
        loads.add(each.replicas[0], each, 1)
    is_changed = True
    while is_changed:
        is_changed = False
        for number, each in enumerate(partitions):
            better = loads.better_leader(each, leaders[number])
            if better is not None:
                loads.add(leaders[number], each, -1)
                loads.add(better, each, 1)
                leaders[number] = better
                is_changed = True
    return [_led_by(each, leader) for each, leader in zip(partitions, leaders, strict=True)]


class _Loads:
    """What each broker leads: partitions, and their rate in shares of the mean."""

    def __init__(self, brokers: Iterable[int], mean_rate: float) -> None:
        self._counts = dict.fromkeys(brokers, 0.0)
        self._rates = dict.fromkeys(self._counts, 0.0)
        self._mean_rate = mean_rate

    def _weight(self, placed: Placed) -> float:
        return placed.bytes_per_second / self._mean_rate if self._mean_rate else 0.0

    def add(self, broker: int, placed: Placed, sign: int) -> None:
        """Count a partition that a broker leads, or no longer does."""
        if broker in self._counts:
            self._counts[broker] += sign
            self._rates[broker] += sign * self._weight(placed)

    def better_leader(self, placed: Placed, leader: int) -> int | None:
        """The replica that had best lead instead; None if the loads get no more level by any."""
        able = [each for each in placed.replicas if each in self._counts and each != leader]
        if leader not in self._counts or not able:
            return None
        weight, count, rate = self._weight(placed), self._counts[leader], self._rates[leader]

        def gain(other: int) -> float:
            """Half of what the sum of squares is less by."""
            by_rate = weight * (rate - self._rates[other] - weight)
            return count - self._counts[other] - 1 + by_rate

        best = max(able, key=gain)
        return best if gain(best) > _LEAST_GAIN else None


def _led_by(placed: Placed, leader: int) -> Placed:
    rest = (each for each in placed.replicas if each != leader)
    return placed._replace(replicas=(leader, *rest))
