"""What a group's journal shows that no group may do."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable
from itertools import pairwise
from typing import Any

STALL_S_MAX = 0.2
LATE_S = 30.0  # a refusal may be told that much later than others read the records again
_SHOWN = 5


def judge(lines: Iterable[list[Any]], acknowledged: Collection[int]) -> list[str]:
    """One sentence for each kind of anomaly, with its first cases. Lines as `group` has them."""
    by_kind: dict[str, list[list[Any]]] = defaultdict(list)
    for line in lines:
        by_kind[line[2] if isinstance(line[0], float) else line[0]].append(line)
    readings: dict[tuple[int, int], list[tuple[float, int, int]]] = defaultdict(list)
    for at_s, life, _, partition, offset, value in by_kind["got"]:
        readings[partition, offset].append((at_s, life, value))
    found = {
        "skipped": _skipped(
            readings.keys(), {each[0][2] for each in readings.values()}, acknowledged
        ),
        "given twice": _twice(readings, by_kind["refused"]),
        "written twice": _written_twice(readings),
        "left over": [each for line in by_kind["left over"] for each in line[1]],
        "stalled": [f"{s:.2f} s" for _, s in by_kind["stall"] if s > STALL_S_MAX],
    }
    return [
        f"{len(cases)} {kind}: {', '.join(map(str, cases[:_SHOWN]))}"
        for kind, cases in found.items()
        if cases
    ]


def _skipped(
    places: Collection[tuple[int, int]], values: set[int], acknowledged: Collection[int]
) -> list[object]:
    """Values that nobody read, and offsets between those that were."""
    ends: dict[int, int] = {}
    for partition, offset in places:
        ends[partition] = max(offset, ends.get(partition, 0))
    holes = [(p, n) for p, end in ends.items() for n in range(end) if (p, n) not in places]
    return [*sorted({*acknowledged} - values), *holes]


def _twice(
    readings: dict[tuple[int, int], list[tuple[float, int, int]]], refusals: list[list[Any]]
) -> list[object]:
    """Places given again although no commit was refused to who had them before."""
    refused_s: dict[int | None, list[float]] = defaultdict(list)
    for at_s, life, *_ in refusals:
        refused_s[life].append(at_s)

    def is_excused(life: int, from_s: float, until_s: float) -> bool:
        told_s = refused_s[life] + refused_s[None]  # of that member, or of one in its process
        return any(from_s <= each <= until_s + LATE_S for each in told_s)

    return [
        f"{place} to {former[1]} and {later[1]}"
        for place, several in readings.items()
        for former, later in pairwise(several)
        if not is_excused(former[1], former[0], later[0])
    ]


def _written_twice(readings: dict[tuple[int, int], list[tuple[float, int, int]]]) -> list[object]:
    """Values that are at more than one place."""
    places: dict[int, tuple[int, int]] = {}
    return [
        f"{each[2]} at {place} and {known}"
        for place, several in readings.items()
        for each in several
        if (known := places.setdefault(each[2], place)) != place
    ]
