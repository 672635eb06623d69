"""Spreads preferred leaders, which costs no bytes: only the order of replicas changes (pure).

Leading costs a broker something for each partition, and for each byte that is written to it. So two
loads are leveled at once: partitions led, and their bytes per second in shares of the mean.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from kdist.ops.reassignment.site import Placed

_LEAST_GAIN = 1e-3  # so that rounding cannot make it go round for ever


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
